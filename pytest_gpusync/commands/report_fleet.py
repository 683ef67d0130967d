"""``gpusync report fleet``: many runs by groups, with budgets and a baseline for each group."""

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
    write,
)

if TYPE_CHECKING:
    from pytest_gpusync.reporting.fleet import Fleet, FleetBudget

OVER = 1

_FORMATS: Final = ("text", "md", "json", "html")

_DESCRIPTION: Final = """\
Put many run files in groups, such as the jobs of a model on a kind of GPU, and report the syncs, lines and budgets of
each group. PATH is as for gpusync report history.

Groups are made of properties of a run (gpu, device, coverage, torch, python, commit and others) and of labels. A job
has the labels in its environment variable GPUSYNC_LABELS, such as GPUSYNC_LABELS=model=gpt-2,team=vision.

A file of budgets is TOML. To each run applies the first budget whose conditions it fulfills:

    [[budget]]
    where = { model = "gpt-*", gpu = "*H100*" }
    max = 1          # syncs in the worst step of a test

    [[budget]]
    max = 4          # all other runs"""

_EPILOG: Final = (
    "exit status: 0; 1 if a group is over its budget or baseline, or has one and was not measured; 2 if nothing can be "
    "read or written, or if some file cannot be read: then it is named, and the others count all the same"
)


def add_parser(actions: Any) -> None:
    """Add the parser of the action."""
    parser = actions.add_parser(
        "fleet",
        help="put many runs in groups, such as by model and GPU, with budgets and baselines",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_inputs(parser)
    parser.add_argument(
        "--by", metavar="NAME[,NAME...]", default="device", help="what makes a group (default: %(default)s)"
    )
    parser.add_argument("--budgets", metavar="FILE", help="TOML file with the budgets of the groups")
    parser.add_argument("--baseline", metavar="FILE", help="fail where a line makes more syncs than in this file")
    parser.add_argument("--write-baseline", metavar="FILE", help="write the syncs of each group as a baseline")
    add_output(parser, *_FORMATS)


def run(options: argparse.Namespace) -> int:
    """Report the groups and return the exit code.

    Raises:
        Refusal: there are no runs, an argument cannot be used, or the output cannot be written.
    """
    from pytest_gpusync.commands import run_inputs
    from pytest_gpusync.reporting import fleet as groups

    by = [name.strip() for name in options.by.split(",") if name.strip()]
    if not by:
        raise Refusal("--by needs a property or a label, such as --by model,gpu")
    output_format = chosen_format(options, *_FORMATS)
    problems: list[str] = []
    budgets = _budgets(options.budgets)
    found = groups.fleet(run_inputs.selected_runs(options, problems), by, budgets)
    for problem in problems:
        say(problem)
    if not found.runs:
        raise Refusal("no run files found that fulfill the conditions")
    if options.baseline is not None:
        _compare(found, Path(options.baseline))
    if options.write_baseline is not None:
        from pytest_gpusync.reporting.baseline_file import to_text

        write(Path(options.write_baseline), to_text(groups.baseline_of(found)))
    deliver(_rendered(found, output_format), None if options.output is None else Path(options.output))
    if problems:
        return USAGE_ERROR
    is_gate = bool(budgets) or options.baseline is not None
    return OVER if is_gate and any(group.outcome in ("failed", "not_measured") for group in found.groups) else 0


def _budgets(name: str | None) -> list[FleetBudget]:
    if name is None:
        return []
    from gpusync_lint.files.run_files import RunFileError, read_bytes

    from pytest_gpusync.reporting.fleet import BudgetFileError, read_budgets

    try:
        return read_budgets(name, read_bytes(name))
    except (RunFileError, BudgetFileError) as error:
        raise Refusal(str(error)) from None


def _compare(found: Fleet, path: Path) -> None:
    from pytest_gpusync.reporting.baseline_file import BaselineError, read_baseline
    from pytest_gpusync.reporting.fleet import compare_with

    try:
        baseline = read_baseline(path)
    except BaselineError as error:
        raise Refusal(str(error)) from None
    for name in compare_with(found, baseline):
        say(f"note: {path} has no entries for the group {name}; --write-baseline writes them")
    fewer = sum(len(group.decreases) for group in found.groups)
    if fewer:
        say(f"note: {path} can be tightened: {fewer} entries have more syncs than were made; --write-baseline does it")


def _rendered(found: Fleet, output_format: str) -> str:
    from pytest_gpusync.reporting import fleet_formats

    if output_format == "html":
        return fleet_formats.to_html(found)
    if output_format == "json":
        return fleet_formats.to_json(found)
    return fleet_formats.to_markdown(found) if output_format == "md" else fleet_formats.to_text(found)
