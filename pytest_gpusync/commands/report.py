"""``gpusync report``: merges and compares the files of several runs, and draws the reports of a run from its file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.commands import report_diff, report_fleet, report_history, report_import
from pytest_gpusync.commands.report_io import USAGE_ERROR, Refusal, rendered, restricted_sources, say, write
from pytest_gpusync.reporting.run_filter import add_filters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpusync.model.document import Document
    from pytest_gpusync.reporting.run_filter import Filter

_RUN = "a run file"

_DRAWN: Final = {
    "md": (".md", "Markdown"),
    "html": (".html", "one HTML page"),
    "trace": (".trace.json", "a Chrome trace, which Perfetto opens"),
}
"""The formats that have a command of their own, with their endings and names."""

_MODULES: Final = {
    "diff": report_diff,
    "history": report_history,
    "fleet": report_fleet,
    "import": report_import,
}
"""The actions that have a module of their own, which adds their parser and runs them."""

_MERGE = """\
Write the files of several runs as one. They are all run files (gpusync trace --json, pytest --gpu-sync-report), all
outputs of the linter in one format that can be merged, such as gpusync lint --output-format sarif. The result does not
depend on their order.

Regions with the same name in several files stay separate: the rank or the file is added to their names. Findings with
the same key become one finding. A run is written in the format of OUT's ending: .json, .md, .html or .trace.json."""

_EPILOG = "exit status: 0, or 2 if a file cannot be read, merged or written; then nothing is written."


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    options = command_parser().parse_args(list(argv))
    try:
        if options.action in _MODULES:
            code: int = _MODULES[options.action].run(options)
            return code
        if options.action == "merge":
            _merge(options)
        elif options.action == "show":
            _show(options.file)
        else:
            _draw(options.file, _DRAWN[options.action][0], options.output)
    except Refusal as refusal:
        for problem in refusal.args:
            say(problem)
        return USAGE_ERROR
    return 0


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        prog="gpusync report",
        description=(
            "Merge or compare the files of several runs, import a trace of another tool, or show a run from its file "
            "in another format."
        ),
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
    merge.add_argument(
        "files", metavar="FILE", nargs="+", help="the files to merge, or folders or zip files of run files"
    )
    add_filters(merge)
    show = actions.add_parser("show", help="print a run file as pytest's summary does", epilog=_EPILOG)
    show.add_argument("file", metavar="RUN.json", help="a run file")
    for name, (_, what) in _DRAWN.items():
        drawn = actions.add_parser(name, help=f"write a run file as {what}", epilog=_EPILOG)
        drawn.add_argument("file", metavar="RUN.json", help="a run file")
        drawn.add_argument("-o", dest="output", metavar="FILE", help="the file to write (default: standard output)")
    for module in _MODULES.values():
        module.add_parser(actions)
    return parser


def _merge(options: argparse.Namespace) -> None:
    """Merge files of one kind.

    Raises:
        Refusal: a file cannot be read, the files are of different kinds, or OUT cannot be written.
    """
    out, names = Path(options.out), options.files
    filters: list[Filter] = []
    if options.where:
        from pytest_gpusync.commands.run_inputs import filters_of

        filters = filters_of(options)
    _check_distinct(out, names)
    found = _read_all(names, filters)
    if not found:
        raise Refusal(f"{names[0]}: no run files in it" + (" that fulfill --where" if filters else ""))
    first, _, kind = found[0]
    for name, _, other in found:
        if other != kind:
            raise Refusal(f"{first} is {kind} and {name} is {other}; merge one kind at a time")
    documents = [(name, document) for name, document, _ in found]
    if kind == _RUN:
        from pytest_gpusync.reporting.merging import NothingLeftError, merge_runs

        try:
            write(out, rendered(merge_runs(documents, filters), out))
        except NothingLeftError:
            raise Refusal("no run fulfills --where, so nothing is written") from None
        return
    if filters:
        raise Refusal(f"--where is for run files, and {first} is {kind}")
    write(out, json.dumps(_merged_findings(kind, documents), indent=2) + "\n")


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
    raise Refusal(*(found or problems or [f"the files cannot be merged as {kind}; write them again"]))


def _check_distinct(out: Path, names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        real = os.path.realpath(name)
        if real in seen:
            raise Refusal(f"{name} is given twice, and would be counted twice")
        seen[real] = name
    if os.path.realpath(out) in seen:
        raise Refusal(f"{out} is both the file to write and a file to merge; give OUT another name")


def _show(name: str) -> None:
    """Print a run as pytest's summary does."""
    from pytest_gpusync.reporting.summary import document_lines

    run = _run(name)
    with restricted_sources():
        print("\n".join(document_lines(run)))


def _draw(name: str, ending: str, output: str | None) -> None:
    text = rendered(_run(name), None if output is None else Path(output), ending)
    if output is None:
        sys.stdout.write(text)
    else:
        write(Path(output), text)


def _run(name: str) -> Document:
    """Return the run object of a file."""
    document, kind = _read(name)
    if kind != _RUN:
        raise Refusal(f"{name} is {kind}; give a run file (gpusync trace --json, pytest --gpu-sync-report)")
    return document


def _read_all(names: Sequence[str], filters: Sequence[Filter]) -> list[tuple[str, Document, str]]:
    """Return the name, document and kind of each file; the refusal names every file that cannot be read."""
    found: list[tuple[str, Document, str]] = []
    problems: list[Any] = []
    for name in names:
        try:
            if os.path.isdir(name) or name.endswith(".zip"):
                found += [(file, document, _RUN) for file, document in _runs_in(name, problems, filters)]
            else:
                found.append((name, *_read(name)))
        except Refusal as refusal:
            problems += refusal.args
    if problems:
        raise Refusal(*problems)
    return found


def _runs_in(folder: str, problems: list[Any], filters: Sequence[Filter]) -> Iterator[tuple[str, Document]]:
    """Return the run files in a folder or a zip file, as far as a part of them fulfills the filters."""
    from pytest_gpusync.commands.run_inputs import in_paths, runs
    from pytest_gpusync.reporting.run_figures import figures_of
    from pytest_gpusync.reporting.run_filter import filtered

    for content in in_paths([folder]):
        for name, run in runs([content], problems):
            if not filters or any(True for _ in filtered(figures_of(name, run), filters)):
                yield name, json.loads(content.data)


def _read(name: str) -> tuple[Document, str]:
    """Return the document of a file and its kind, after checking it if it is a run."""
    from gpusync_lint.files.run_files import RunFileError, check_run, is_run, read_json

    try:
        document: Any = read_json(name)
        if is_run(document):
            check_run(name, document)
            return document, _RUN
    except RunFileError as error:
        raise Refusal(str(error)) from None
    from gpusync_lint.output import mergeable

    for each in mergeable():
        if each.recognizes(document):
            return document, each.kind
    kinds = ", ".join(each.kind for each in mergeable())
    raise Refusal(f"{name}: neither a run file nor an output of the linter that can be merged ({kinds})")
