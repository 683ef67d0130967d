"""What the actions of ``gpusync report`` share: refusals, notes on standard error, and output to a file or a stream."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpusync_lint.escaping import escaped

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from pytest_gpusync.model.document import Document
    from pytest_gpusync.reporting.run_figures import RunFigures

USAGE_ERROR: Final = 2

_REFUSED_SHOWN: Final = 3
"""Most files named in the note about sources that are not read."""

FORMATS: Final = {"text": "", "md": ".md", "json": ".json", "html": ".html"}
"""The formats of comparisons and histories, with the endings of their files."""


class Refusal(Exception):
    """A request that cannot be carried out, in one line for each problem."""


def say(message: str) -> None:
    """Print a line on standard error."""
    print(escaped(f"gpusync report: {message}"), file=sys.stderr)


def write(path: Path, text: str) -> None:
    """Write a file.

    Raises:
        Refusal: it cannot be written.
    """
    from pytest_gpusync.reporting.run_file import write_atomic

    try:
        write_atomic(path, text)
    except OSError as error:
        raise Refusal(f"{path}: cannot be written ({error.strerror})") from None


def deliver(text: str, path: Path | None) -> None:
    """Write a file, or standard output if there is no path."""
    if path is None:
        sys.stdout.write(text)
    else:
        write(path, text)


def add_output(parser: argparse.ArgumentParser, *formats: str) -> None:
    """Add the options for the format and the file of the output."""
    parser.add_argument(
        "--output-format",
        choices=formats,
        help=f"format of the output (default: by the ending of -o FILE, otherwise {formats[0]})",
    )
    parser.add_argument("-o", dest="output", metavar="FILE", help="the file to write (default: standard output)")


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which run files of many are read."""
    from pytest_gpusync.reporting.run_filter import add_filters

    parser.add_argument("paths", metavar="PATH", nargs="*", help="folders, zip files or run files")
    parser.add_argument("--branch", metavar="REF", help="read the run files of a branch, without checking it out")
    add_filters(parser)


def chosen_format(options: argparse.Namespace, *formats: str) -> str:
    """Return the format that the options name.

    Raises:
        Refusal: it cannot be written here.
    """
    name = options.output or ""
    by_ending = next((each for each in formats if FORMATS[each] and name.endswith(FORMATS[each])), formats[0])
    chosen: str = options.output_format or by_ending
    if chosen == "html":
        from pytest_gpusync.reporting.files import why_unavailable

        if (why := why_unavailable(".html")) is not None:
            raise Refusal(why)
    return chosen


def figures(name: str) -> list[RunFigures]:
    """Return the figures of a run file, of each part for a merged one.

    Raises:
        Refusal: the file cannot be read, or is not a run.
    """
    from gpusync_lint.files.run_files import RunFileError, check_run, parse_run, read_bytes, read_json

    from pytest_gpusync.reporting.run_figures import figures_of

    try:
        run = parse_run(name, read_bytes(name))
        return figures_of(name, check_run(name, read_json(name)) if run is None else run)
    except RunFileError as error:
        raise Refusal(str(error)) from None


def rendered(document: Document, out: Path | None, ending: str | None = None) -> str:
    """Return a run object as the text of a file, in the format of its ending or of `ending`.

    Raises:
        Refusal: there is no such format, or it cannot be written here.
    """
    from pytest_gpusync.reporting.files import ENDINGS, ending_of, render, why_unavailable

    ending = ending or ending_of(out.name if out is not None else "")
    if ending is None:
        raise Refusal(f"{out}: a run can be written as {', '.join(ENDINGS)}; give the file one of these endings")
    if (why := why_unavailable(ending)) is not None:
        raise Refusal(why)
    with restricted_sources():
        return render(document, ending, None if out is None else out.parent)


@contextmanager
def restricted_sources() -> Iterator[None]:
    """Read sources below the working directory only, and name those that are not read."""
    from pytest_gpusync.reporting.sources import restricted

    with restricted(Path.cwd()) as restriction:
        yield
    refused = list(restriction.refused)
    if refused:
        more = f" and {len(refused) - _REFUSED_SHOWN} more" if len(refused) > _REFUSED_SHOWN else ""
        say(
            f"note: sources are read from Python files below the working directory only; not shown: "
            f"{', '.join(refused[:_REFUSED_SHOWN])}{more}"
        )
