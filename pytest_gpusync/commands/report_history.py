"""``gpusync report history``: the figures of many runs over commits."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.commands.report_io import (
    USAGE_ERROR,
    Refusal,
    add_inputs,
    add_output,
    chosen_format,
    deliver,
    say,
)

if TYPE_CHECKING:
    from pytest_gpusync.reporting.run_history import History

_FORMATS: Final = ("text", "json", "html")

_DESCRIPTION: Final = """\
Draw the syncs of each test and line over commits, and name the commits at which they changed.

PATH is a folder with run files, also in folders and zip files below it (the artifacts of a CI), a zip file, or a run
file. With --branch, the run files are read from a branch of git, all of their versions in its history, and PATH is a
folder in it. Commits are in the order of the repository in the working directory; those that it does not know are put
between them by the dates of their runs."""

_EPILOG: Final = (
    "exit status: 0; 2 if nothing can be read or written, or if some file cannot be read: then it is named, and the "
    "others are shown all the same"
)


def add_parser(actions: Any) -> None:
    """Add the parser of the action."""
    parser = actions.add_parser(
        "history",
        help="draw tests and lines over commits, with the commits at which they changed",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_inputs(parser)
    add_output(parser, *_FORMATS)


def run(options: argparse.Namespace) -> int:
    """Draw the history and return the exit code.

    Raises:
        Refusal: there are no runs, or the output cannot be written.
    """
    from pytest_gpusync.commands import run_inputs
    from pytest_gpusync.reporting.run_history import CommitInfo, history

    output_format = chosen_format(options, *_FORMATS)
    problems: list[str] = []
    found = history(
        run_inputs.selected_runs(options, problems),
        lambda names: {name: CommitInfo(*commit) for name, commit in run_inputs.commits(names).items()},
    )
    for problem in problems:
        say(problem)
    if found.left_out:
        others = len(found.left_out) - 1
        more = f" and {others} more" if others else ""
        say(f"note: left out, because they have neither commit nor date: {found.left_out[0]}{more}")
    if not found.moments:
        raise Refusal("no run files found that fulfill the conditions; gpusync trace --json and pytest write them")
    deliver(_rendered(found, output_format), None if options.output is None else Path(options.output))
    return USAGE_ERROR if problems else 0


def _rendered(found: History, output_format: str) -> str:
    if output_format == "html":
        from pytest_gpusync.reporting.history_page import to_html

        return to_html(found)
    from pytest_gpusync.reporting import history_formats

    return history_formats.to_json(found) if output_format == "json" else history_formats.to_text(found)
