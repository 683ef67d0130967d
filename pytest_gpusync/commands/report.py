"""``gpusync report``: merges the files of several runs, and draws the reports of a run from its file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpusync_lint.escaping import escaped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpusync.model.document import Document

USAGE_ERROR = 2

_RUN = "a run file"

_DRAWN: Final = {
    "md": (".md", "Markdown"),
    "html": (".html", "one HTML page"),
    "trace": (".trace.json", "a Chrome trace, which Perfetto opens"),
}
"""The formats that have a command of their own, with their endings and names."""

_MERGE = """\
Write the files of several runs as one. They are all run files (gpusync trace --json, pytest --gpu-sync-report), all
outputs of the linter in one format that can be merged, such as gpusync lint --output-format sarif. The result does not
depend on their order.

Regions with the same name in several files stay separate: the rank or the file is added to their names. Findings with
the same key become one finding. A run is written in the format of OUT's ending: .json, .md, .html or .trace.json."""

_EPILOG = "exit status: 0, or 2 if a file cannot be read, merged or written; then nothing is written."


_REFUSED_SHOWN: Final = 3
"""Most files named in the note about sources that are not read."""


class _Refusal(Exception):
    """A request that cannot be carried out, in one line for each problem."""


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    options = command_parser().parse_args(list(argv))
    try:
        if options.action == "merge":
            _merge(Path(options.out), options.files)
        elif options.action == "show":
            _show(options.file)
        else:
            _draw(options.file, _DRAWN[options.action][0], options.output)
    except _Refusal as refusal:
        for problem in refusal.args:
            _say(problem)
        return USAGE_ERROR
    return 0


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        prog="gpusync report",
        description="Merge the files of several runs, or show a run from its file in another format.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    merge = actions.add_parser(
        "merge",
        help="merge the files of several ranks or shards into one",
        description=_MERGE,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    merge.add_argument("out", metavar="OUT", help="the file to write")
    merge.add_argument("files", metavar="FILE", nargs="+", help="the files to merge")
    show = actions.add_parser("show", help="print a run file as pytest's summary does", epilog=_EPILOG)
    show.add_argument("file", metavar="RUN.json", help="a run file")
    for name, (_, what) in _DRAWN.items():
        drawn = actions.add_parser(name, help=f"write a run file as {what}", epilog=_EPILOG)
        drawn.add_argument("file", metavar="RUN.json", help="a run file")
        drawn.add_argument("-o", dest="output", metavar="FILE", help="the file to write (default: standard output)")
    return parser


def _merge(out: Path, names: Sequence[str]) -> None:
    """Merge files of one kind.

    Raises:
        _Refusal: a file cannot be read, the files are of different kinds, or OUT cannot be written.
    """
    _check_distinct(out, names)
    found = _read_all(names)
    first, _, kind = found[0]
    for name, _, other in found:
        if other != kind:
            raise _Refusal(f"{first} is {kind} and {name} is {other}; merge one kind at a time")
    documents = [(name, document) for name, document, _ in found]
    if kind == _RUN:
        from pytest_gpusync.reporting.merging import merge_runs

        _write(out, _rendered(merge_runs(documents), out))
        return
    _write(out, json.dumps(_merged_findings(kind, documents), indent=2) + "\n")


def _merged_findings(kind: str, documents: Sequence[tuple[str, Document]]) -> Any:
    """Return outputs of the linter as one; the refusal names every one that is damaged."""
    from gpusync_lint.output import mergeable
    from gpusync_lint.output.base.merging import MergeError

    merge = next(each for each in mergeable() if each.kind == kind).merge
    try:
        return merge(documents)
    except (MergeError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        problems = [str(error)] if isinstance(error, MergeError) else []
    found = []
    for name, document in documents:
        try:
            merge([(name, document)])
        except MergeError as error:
            found.append(str(error))
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
            found.append(f"{name}: damaged {kind}; write the file again")
    raise _Refusal(*(found or problems or [f"the files cannot be merged as {kind}; write them again"]))


def _say(message: str) -> None:
    print(escaped(f"gpusync report: {message}"), file=sys.stderr)


def _check_distinct(out: Path, names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        real = os.path.realpath(name)
        if real in seen:
            raise _Refusal(f"{name} is given twice, and would be counted twice")
        seen[real] = name
    if os.path.realpath(out) in seen:
        raise _Refusal(f"{out} is both the file to write and a file to merge; give OUT another name")


def _show(name: str) -> None:
    """Print a run as pytest's summary does."""
    from pytest_gpusync.reporting.summary import document_lines

    run = _run(name)
    with _restricted_sources():
        print("\n".join(document_lines(run)))


def _draw(name: str, ending: str, output: str | None) -> None:
    text = _rendered(_run(name), None if output is None else Path(output), ending)
    if output is None:
        sys.stdout.write(text)
    else:
        _write(Path(output), text)


def _rendered(document: Document, out: Path | None, ending: str | None = None) -> str:
    from pytest_gpusync.reporting.files import ENDINGS, ending_of, render, why_unavailable

    ending = ending or ending_of(out.name if out is not None else "")
    if ending is None:
        raise _Refusal(f"{out}: a run can be written as {', '.join(ENDINGS)}; give the file one of these endings")
    if (why := why_unavailable(ending)) is not None:
        raise _Refusal(why)
    with _restricted_sources():
        return render(document, ending, None if out is None else out.parent)


@contextmanager
def _restricted_sources() -> Iterator[None]:
    """Read sources below the working directory only, and name those that are not read."""
    from pytest_gpusync.reporting.sources import restricted

    with restricted(Path.cwd()) as restriction:
        yield
    refused = list(restriction.refused)
    if refused:
        more = f" and {len(refused) - _REFUSED_SHOWN} more" if len(refused) > _REFUSED_SHOWN else ""
        _say(
            f"note: sources are read from Python files below the working directory only; not shown: "
            f"{', '.join(refused[:_REFUSED_SHOWN])}{more}"
        )


def _run(name: str) -> Document:
    """Return the run object of a file."""
    document, kind = _read(name)
    if kind != _RUN:
        raise _Refusal(f"{name} is {kind}; give a run file (gpusync trace --json, pytest --gpu-sync-report)")
    return document


def _read_all(names: Sequence[str]) -> list[tuple[str, Document, str]]:
    """Return the name, document and kind of each file; the refusal names every file that cannot be read."""
    found: list[tuple[str, Document, str]] = []
    problems: list[Any] = []
    for name in names:
        try:
            found.append((name, *_read(name)))
        except _Refusal as refusal:
            problems += refusal.args
    if problems:
        raise _Refusal(*problems)
    return found


def _read(name: str) -> tuple[Document, str]:
    """Return the document of a file and its kind, after checking it if it is a run."""
    from gpusync_lint.files.run_files import RunFileError, check_run, is_run, read_json

    try:
        document: Any = read_json(name)
        if is_run(document):
            check_run(name, document)
            return document, _RUN
    except RunFileError as error:
        raise _Refusal(str(error)) from None
    from gpusync_lint.output import mergeable

    for each in mergeable():
        if each.recognizes(document):
            return document, each.kind
    kinds = ", ".join(each.kind for each in mergeable())
    raise _Refusal(f"{name}: neither a run file nor an output of the linter that can be merged ({kinds})")


def _write(path: Path, text: str) -> None:
    from pytest_gpusync.reporting.run_file import write_atomic

    try:
        write_atomic(path, text)
    except OSError as error:
        raise _Refusal(f"{path}: cannot be written ({error.strerror})") from None
