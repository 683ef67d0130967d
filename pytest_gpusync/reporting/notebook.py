"""A measurement as a notebook shows it: one sentence, and a table of the lines that waited.

Notebooks remove style sheets and scripts, so this is plain HTML in the notebook's own colors.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from pytest_gpusync.model.line_counts import line_counts
from pytest_gpusync.model.site_counts import device_counts
from pytest_gpusync.reporting.by_device import counts_text, uses_other_devices
from pytest_gpusync.reporting.page_model import format_number, text_and_code
from pytest_gpusync.reporting.rule_names import rules_for
from pytest_gpusync.reporting.site_rows import source_text
from pytest_gpusync.reporting.terminal import device_text, plural, total_sentence

if TYPE_CHECKING:
    from pytest_gpusync.model.line_counts import LineCount
    from pytest_gpusync.model.measurement import Measurement

LINES_SHOWN: Final = 20

_LEFT: Final = ' style="text-align:left"'


def to_fragment(measurement: Measurement) -> str:
    """Return the HTML of a measurement for a notebook."""
    found = line_counts(measurement)
    shown = found[:LINES_SHOWN]
    waited = _waited(measurement)
    rows = "".join(_row(line, waited.get((line.path, line.line))) for line in shown)
    time = "<th>waited</th>" if waited else ""
    head = f"<th{_LEFT}>line</th><th{_LEFT}>source</th><th>worst step</th>{time}<th>rule</th><th{_LEFT}>remedy</th>"
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    more = f"<div>and {plural(len(found) - len(shown), 'line')} more</div>" if len(found) > len(shown) else ""
    races = "".join(f"<li>{escape(race.message)}</li>" for race in (measurement.races or ())[:LINES_SHOWN])
    table = f"<div>races:</div><ul{_LEFT}>{races}</ul>{table}" if races else table
    environment = measurement.environment
    note = f"; {environment.note}" if environment.note else ""
    devices = device_counts(measurement)
    by_device = f"<div>{escape(counts_text(devices))}</div>" if uses_other_devices(devices) else ""
    return (
        f"<div><strong>{escape(total_sentence(measurement))}</strong>{by_device}{table}{more}"
        f"<div><small>{escape(device_text(environment) + note)}</small></div></div>"
    )


def _row(line: LineCount, waited: float | None) -> str:
    rules = rules_for(line.path, line.line)
    source = source_text(line.path, line.line)
    if line.allowed is not None:
        remark = f"allowed: {escape(line.allowed)}"
    elif line.background:
        remark = f"on thread {escape(line.thread)}: not counted"
    else:
        parts = text_and_code(rules[0].remedy) if rules else []
        remark = "".join(f"<code>{escape(part)}</code>" if code else escape(part) for part, code in parts)
    cells = [
        f"<td{_LEFT}><code>{escape(f'{line.path}:{line.line}')}</code></td>",
        f"<td{_LEFT}><code>{escape(source)}</code></td>",
        f"<td>{max(line.by_step, default=0)}</td>",
        *([f"<td>{format_number(waited)} ms</td>"] if waited is not None else []),
        f"<td>{escape(' '.join(rule.code for rule in rules))}</td>",
        f"<td{_LEFT}>{remark}</td>",
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _waited(measurement: Measurement) -> dict[tuple[str, int], float]:
    """Return how long the host waited in each line, in milliseconds; empty if not every sync was timed."""
    waited: dict[tuple[str, int], float] = {}
    for sync in measurement.all_syncs:
        if sync.blocked_ns is None:
            return {}
        place = sync.site.path, sync.site.line
        waited[place] = waited.get(place, 0.0) + sync.blocked_ns / 1e6
    return waited
