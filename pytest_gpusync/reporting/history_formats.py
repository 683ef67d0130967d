"""A history of runs as text and JSON."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from gpusync_lint.escaping import escaped

from pytest_gpusync.reporting.page_model import format_number
from pytest_gpusync.reporting.run_file import escape_surrogates
from pytest_gpusync.reporting.terminal import plural

if TYPE_CHECKING:
    from pytest_gpusync.reporting.run_history import Event, History, Moment, Series

SCHEMA: Final = "gpusync.history/1"

TESTS_NAMED: Final = 3
"""Most tests named for a change in the text."""


def to_text(history: History) -> str:
    """Return a history for the terminal: its changes, the latest first."""
    lines = [f"{headline(history)}"]
    lines += [f"  {group}" for group in history.groups]
    shown = [event for event in history.events if not event.is_explained]
    moment = None
    for event in shown:
        if event.moment != moment:
            moment = event.moment
            lines += ["", moment_text(history.moments[moment])]
        lines += [f"  {line}" for line in _event_lines(event, history)]
    lines += ["", conclusion(history)]
    return "\n".join(map(escaped, lines)) + "\n"


def to_json(history: History) -> str:
    """Return a history as JSON: the moments, each series with its points, and the changes."""
    numbers = {id(series): number for number, series in enumerate(history.series)}
    document = {
        "schema": SCHEMA,
        "runs": history.runs,
        "left_out": history.left_out,
        "moments": [_moment_document(moment) for moment in history.moments],
        "series": [_series_document(series) for series in history.series],
        "changes": [
            {
                "moment": event.moment,
                "end": event.end,
                "direction": "more" if event.is_more else "fewer",
                "before": event.before,
                "after": event.after,
                "confirmed": event.confirmed,
                "is_explained_by_site": event.is_explained,
                "notes": event.notes,
                "series": [numbers[id(series)] for series in event.series],
            }
            for event in history.events
        ],
    }
    return escape_surrogates(json.dumps(document, ensure_ascii=False)) + "\n"


def headline(history: History) -> str:
    """Return what the history covers."""
    if not history.moments:
        return "No runs"
    first, last = history.moments[0].time[:10], history.moments[-1].time[:10]
    dates = f", {first} to {last}" if first and last else ""
    commits = sum(1 for moment in history.moments if moment.commit)
    what = plural(commits, "commit") if commits else plural(len(history.moments), "date")
    return f"{what}, {plural(history.runs, 'run')}{dates}"


def conclusion(history: History) -> str:
    """Return how much changed, in one clause."""
    tests = len({series.test for series in history.series})
    sites = len({series.key for series in history.series if series.key is not None})
    counted = Counter(event.verb for event in history.events if not event.is_explained)
    changes = ", ".join(f"{number} × {verb}" for verb, number in counted.items()) or "no change"
    return f"{plural(tests, 'test')}, {plural(sites, 'site')}: {changes}"


def moment_text(moment: Moment) -> str:
    """Return a commit, its date and its subject."""
    return "  ".join(part for part in (moment.label, moment.time[:10], moment.subject) if part)


def change_text(event: Event) -> str:
    """Return a change of a figure: ``1 -> 2 syncs per step``."""
    quantity = event.series[0].quantity
    unit = "ms of step time" if quantity == "step time" else quantity
    return f"{format_number(event.before)} -> {format_number(event.after)} {unit}"


def certainty_text(event: Event, history: History) -> str | None:
    """Return how long a change has lasted, if it has ended or is too recent to be confirmed."""
    if event.end is not None:
        return f"until {history.moments[event.end].label}"
    return None if event.confirmed else "so far only in the latest runs"


def place_of(event: Event) -> str:
    """Return the site that changed, or the test."""
    first = event.series[0]
    if first.key is None:
        return first.test
    return f"{first.key.path}:{first.line}"


def _event_lines(event: Event, history: History) -> list[str]:
    first = event.series[0]
    source = "" if first.key is None else f"  {first.key.source or f'in {first.key.function}: {first.key.kind}'}"
    code = f"  {first.code}" if first.code else ""
    facts = [change_text(event)]
    if (certainty := certainty_text(event, history)) is not None:
        facts.append(certainty)
    if first.key is not None:
        names = [series.test for series in event.series]
        more = f" and {len(names) - TESTS_NAMED} more" if len(names) > TESTS_NAMED else ""
        facts.append(f"in {', '.join(names[:TESTS_NAMED])}{more}")
    if len(history.groups) > 1:
        facts.append(f"on {first.group}")
    return [f"{event.verb}: {place_of(event)}{source}{code}", f"  {'; '.join([*facts, *event.notes])}"]


def _moment_document(moment: Moment) -> dict[str, Any]:
    return {
        "label": moment.label,
        "commit": moment.commit,
        "time": moment.time or None,
        "subject": moment.subject or None,
        "runs": moment.runs,
    }


def _series_document(series: Series) -> dict[str, Any]:
    return {
        "group": series.group,
        "test": series.test,
        "site": None if series.key is None else {**series.key._asdict(), "line": series.line, "code": series.code},
        "quantity": series.quantity,
        "steady": series.steady,
        "moments": series.indices,
        "values": [point.value for point in series.points],
        "intervals": None
        if all(point.low == point.high for point in series.points)
        else [[_finite(point.low), _finite(point.high)] for point in series.points],
    }


def _finite(bound: float) -> float | None:
    return None if abs(bound) == float("inf") else bound
