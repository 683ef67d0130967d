"""Comparing findings with runs: which findings waited, and which lines waited without a finding.

Runs are files of `gpusync trace --json` and `pytest --gpu-sync-report` (``gpusync.run/1``), read as plain data. Only
findings of GS1xx to GS6xx are about waits, so only these are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from gpusync_lint.files.line_ranges import merge_ranges, overlaps
from gpusync_lint.model.findings import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from gpusync_lint.files.run_files import Site
    from gpusync_lint.model.findings import Finding
    from gpusync_lint.settings.selection import Reported

_WAITING = ("GS1", "GS2", "GS3", "GS4", "GS5", "GS6")
_TO_DEVICE = "GS5"


class ObservedError(UserError):
    """Files are not runs. The message is one line that names them all."""


class Evidence(str, Enum):
    """What the runs show about a line."""

    WAITED = "waited"
    SILENT = "did_not_wait"
    """It ran and made no sync."""
    NOT_RUN = "not_run"
    UNRECORDED = "not_recorded"
    """It made no sync, but the runs did not record which lines ran."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the runs show about a finding. The figures are those of its line; findings on one line share them."""

    evidence: Evidence
    syncs: int | None = None
    """The syncs in all runs, including warm-up and allowed syncs; None unless it waited."""
    per_step_max: int | None = None
    """The highest number of syncs in a measured step."""
    blocked_ms: float | None = None
    """The time that the host spent in these calls, in milliseconds; None if it was not measured."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A line that waited in measured steps without a reported finding."""

    path: str
    line: int
    function: str
    syncs: int
    per_step_max: int
    blocked_ms: float | None
    code: str | None
    """The code of a finding for the line whose heat or confidence is not reported; None if no rule covers the line."""


@dataclass(slots=True)
class _Line:
    """The syncs of a line with one copy direction, over all runs."""

    function: str
    code: str | None
    syncs: int = 0
    per_step_max: int = 0
    blocked_ms: float | None = None
    in_steps: bool = False


@dataclass(frozen=True, slots=True)
class Runs:
    """What one or more runs recorded."""

    names: tuple[str, ...]
    """The names of the files, as the user gave them."""
    lines: dict[Path, dict[int, dict[str | None, _Line]]] = field(default_factory=dict)
    """The syncs by file, line and copy direction (None for a sync that is no copy)."""
    ran: dict[Path, list[list[int]]] | None = None
    """The lines that ran, by file, as merged ranges; None unless every run recorded them."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Findings, ranked by what the runs show about them."""

    reported: tuple[Reported, ...]
    observations: dict[str, Observation]
    """By the key of the finding; without findings that are not about waits."""
    gaps: tuple[Gap, ...]
    runs: tuple[str, ...]
    """The names of the run files, as the user gave them."""


def load(names: Sequence[str], cwd: Path) -> Runs:
    """Read run files. Relative paths in them are relative to `cwd`, the working directory of the linter.

    Raises:
        ObservedError: a file cannot be read, or is not a run.
    """
    from gpusync_lint.files.run_files import RunFileError, read_run  # loads msgspec, which nothing else here needs

    found = []
    errors = []
    for name in names:
        try:
            found.append(read_run(name, cwd))
        except RunFileError as error:
            errors.append(str(error))
    if errors:
        raise ObservedError("; ".join(errors))
    runs = Runs(tuple(names))
    ran: dict[Path, list[tuple[int, int]]] = {}
    for run in found:
        for region in run.regions:
            for site in region.sites:
                _take(runs, cwd / site.path, site)
        for path, ranges in (run.lines or {}).items():
            ran.setdefault(cwd / path, []).extend(ranges)
    if any(run.lines is None for run in found):
        return runs
    return replace(runs, ran={path: merge_ranges(ranges) for path, ranges in ran.items()})


def _take(runs: Runs, path: Path, site: Site) -> None:
    directions = runs.lines.setdefault(path, {}).setdefault(site.line, {})
    line = directions.setdefault(site.direction, _Line(site.function, site.code))
    line.syncs += site.syncs
    line.per_step_max = max(line.per_step_max, site.per_step_max)
    line.in_steps = line.in_steps or site.steps > 0
    if site.blocked_ms is not None:
        line.blocked_ms = (line.blocked_ms or 0.0) + site.blocked_ms


def join(reported: Sequence[Reported], runs: Runs, cwd: Path, linted: Iterable[str]) -> Observed:
    """Compare findings with runs.

    Args:
        reported: the findings, by path and line.
        runs: what the runs recorded.
        cwd: the folder to which the paths of findings are relative.
        linted: the paths of the linted files; waits in other files are not gaps.

    Returns:
        The findings, most expensive first, and the lines that waited without a finding.
    """
    waited: dict[str, list[_Line]] = {}
    by_path: dict[Path, list[Finding]] = {}
    for one in reported:
        if one.finding.code.startswith(_WAITING):
            by_path.setdefault(cwd / one.finding.path, []).append(one.finding)
    gaps = []
    for path in linted:
        for number, directions in runs.lines.get(cwd / path, {}).items():
            for direction, line in directions.items():
                named = _named(by_path.get(cwd / path, ()), number, direction)
                for finding in named:
                    waited.setdefault(finding.key, []).append(line)
                if not named and line.in_steps:
                    gaps.append(_gap(path, number, line))
    observations = {
        finding.key: _observation(waited.get(finding.key), finding, path, runs)
        for path, findings in by_path.items()
        for finding in findings
    }
    ranked = sorted(reported, key=lambda one: _rank(observations.get(one.finding.key)))
    gaps.sort(key=lambda gap: (-(gap.blocked_ms or 0.0), -gap.syncs, gap.path, gap.line))
    return Observed(tuple(ranked), observations, tuple(gaps), runs.names)


def _named(findings: Sequence[Finding], line: int, direction: str | None) -> list[Finding]:
    """The findings to which a sync of a line belongs: those that start there, else the smallest that contains it."""
    starting = [one for one in findings if one.span.line == line]
    if not starting:
        covering = [one for one in findings if one.span.line < line <= one.span.end_line]
        starting = sorted(covering, key=lambda one: one.span.end_line - one.span.line)[:1]
    if direction is None:
        return starting
    same = [one for one in starting if one.code.startswith(_TO_DEVICE) == (direction == "H2D")]
    return same or starting


def _observation(lines: list[_Line] | None, finding: Finding, path: Path, runs: Runs) -> Observation:
    if lines:
        times = [line.blocked_ms for line in lines if line.blocked_ms is not None]
        return Observation(
            Evidence.WAITED,
            sum(line.syncs for line in lines),
            sum(line.per_step_max for line in lines),
            sum(times) if times else None,
        )
    if runs.ran is None:
        return Observation(Evidence.UNRECORDED)
    has_run = overlaps(runs.ran.get(path, []), finding.span.line, finding.span.end_line)
    return Observation(Evidence.SILENT if has_run else Evidence.NOT_RUN)


def _rank(observation: Observation | None) -> tuple[int, float, int]:
    if observation is None:
        return (1, 0.0, 0)
    if observation.evidence is Evidence.WAITED:
        return (0, -(observation.blocked_ms or 0.0), -(observation.syncs or 0))
    order = (Evidence.UNRECORDED, Evidence.NOT_RUN, Evidence.SILENT)
    return (1 + order.index(observation.evidence), 0.0, 0)


def _gap(path: str, number: int, line: _Line) -> Gap:
    return Gap(path, number, line.function, line.syncs, line.per_step_max, line.blocked_ms, line.code)
