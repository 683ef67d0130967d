"""A measurement as a notebook shows it: one sentence, and a table of the lines that waited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpusync.model.line_counts import line_counts
from pytest_gpusync.model.site_counts import device_counts
from pytest_gpusync.reporting.by_device import counts_text, uses_other_devices
from pytest_gpusync.reporting.rule_names import rules_for
from pytest_gpusync.reporting.site_rows import source_text
from pytest_gpusync.reporting.templates import fill
from pytest_gpusync.reporting.terminal import device_text, total_sentence

if TYPE_CHECKING:
    from pytest_gpusync.model.line_counts import LineCount
    from pytest_gpusync.model.measurement import Measurement

LINES_SHOWN: Final = 20


class _Row(NamedTuple):
    """A line that waited."""

    place: str
    source: str
    worst: int
    waited: float | None
    codes: str
    note: str
    """Why the line is not counted."""
    remedy: str
    """Otherwise how to avoid the wait."""


def to_fragment(measurement: Measurement) -> str:
    """Return the HTML of a measurement for a notebook."""
    found = line_counts(measurement)
    waited = _waited(measurement)
    environment = measurement.environment
    devices = device_counts(measurement)
    return fill(
        "notebook.html",
        sentence=total_sentence(measurement),
        by_device=counts_text(devices) if uses_other_devices(devices) else "",
        races=[race.message for race in (measurement.races or ())[:LINES_SHOWN]],
        rows=[_row(line, waited.get((line.path, line.line))) for line in found[:LINES_SHOWN]],
        is_timed=bool(waited),
        left_out=len(found) - LINES_SHOWN,
        environment=device_text(environment) + (f"; {environment.note}" if environment.note else ""),
    )


def _row(line: LineCount, waited: float | None) -> _Row:
    rules = rules_for(line.path, line.line)
    note = remedy = ""
    if line.allowed is not None:
        note = f"allowed: {line.allowed}"
    elif line.background:
        note = f"on thread {line.thread}: not counted"
    elif rules:
        remedy = rules[0].remedy
    return _Row(
        place=f"{line.path}:{line.line}",
        source=source_text(line.path, line.line),
        worst=max(line.by_step, default=0),
        waited=waited,
        codes=" ".join(rule.code for rule in rules),
        note=note,
        remedy=remedy,
    )


def _waited(measurement: Measurement) -> dict[tuple[str, int], float]:
    """Return how long the host waited in each line, in milliseconds; empty if not every sync was timed."""
    waited: dict[tuple[str, int], float] = {}
    for sync in measurement.all_syncs:
        if sync.blocked_ns is None:
            return {}
        place = sync.site.path, sync.site.line
        waited[place] = waited.get(place, 0.0) + sync.blocked_ns / 1e6
    return waited
