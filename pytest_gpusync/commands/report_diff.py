"""``gpusync report diff``: what changed between two runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.commands.report_io import Refusal, add_output, chosen_format, deliver, figures, say

if TYPE_CHECKING:
    from pytest_gpusync.reporting.run_diff import RunDiff

MORE_SYNCS = 1

_FORMATS: Final = ("text", "md", "json")

_DESCRIPTION: Final = """\
Compare two run files: which lines wait for the GPU that did not before, which no longer do, and which wait more or
less often, per step after warm-up. A line that only moved is not a change: lines are matched by path, function, kind
of call and source text.

A test or line that one of the runs did not measure is listed as not compared. What else differs between the runs
(device, coverage, torch, number of steps) is said first. Times are shown where both runs have them."""

_EPILOG: Final = (
    "exit status: 0; with --exit-nonzero-on-more 1 if a line waits more often, or if nothing could be compared; 2 if a "
    "file cannot be read or written"
)


def add_parser(actions: Any) -> None:
    """Add the parser of the action."""
    parser = actions.add_parser(
        "diff",
        help="compare two runs: lines that wait more or less often, are new or gone",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", metavar="BEFORE.json", help="the run file to compare with")
    parser.add_argument("after", metavar="AFTER.json", help="the run file that is compared")
    add_output(parser, *_FORMATS)
    parser.add_argument(
        "--exit-nonzero-on-more",
        action="store_true",
        help="exit with status 1 if a line waits more often or is new, if a test of the first run could not be "
        "measured in the second, or if nothing could be compared",
    )

    parser.add_argument(
        "--comment",
        metavar="NAME",
        nargs="?",
        const="report",
        help="in a job of GitHub or GitLab, also write the comparison as a comment of the pull or merge request, or "
        "update the one that an earlier run wrote; NAME tells several apart",
    )


def run(options: argparse.Namespace) -> int:
    """Compare the runs and return the exit code.

    Raises:
        Refusal: a file cannot be read or written.
    """
    from pytest_gpusync.reporting.run_diff import compare

    problems: list[Any] = []
    runs = []
    for name in (options.before, options.after):
        try:
            runs.append(figures(name))
        except Refusal as refusal:
            problems += refusal.args
    if problems:
        raise Refusal(*problems)
    found = compare(*runs)
    deliver(
        _rendered(found, chosen_format(options, *_FORMATS)), None if options.output is None else Path(options.output)
    )
    if options.comment is not None:
        _comment(found, options.comment)
    return _code(found) if options.exit_nonzero_on_more else 0


def _comment(found: RunDiff, name: str) -> None:
    """Write or update the comment; a comparison does not fail because that is not possible."""
    from pytest_gpusync.commands.review_comment import CommentError, post
    from pytest_gpusync.reporting.diff_formats import to_markdown

    try:
        done = post(to_markdown(found), name, only_update=bool(found.tests) and not found.sites)
    except CommentError as error:
        say(f"no comment was written: {error}")
    else:
        say(f"note: {done}")


def _rendered(found: RunDiff, output_format: str) -> str:
    from pytest_gpusync.reporting import diff_formats

    if output_format == "md":
        return diff_formats.to_markdown(found)
    if output_format == "json":
        return diff_formats.to_json(found)
    return diff_formats.to_text(found)


def _code(found: RunDiff) -> int:
    if not found.tests:
        say("nothing could be compared, so more syncs cannot be excluded")
    elif found.lost:
        say(f"{found.lost[0]} was measured before and could not be compared, so more syncs cannot be excluded")
    elif not found.is_more:
        return 0
    return MORE_SYNCS
