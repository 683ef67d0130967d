"""A run in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Each region is a process that begins at 0, with a track for its steps and one for each thread that waited. If syncs were
not timed, as on the simulated device, they are drawn in order, one unit each, and the region's name says so.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.reporting.run_file import escape_surrogates
from pytest_gpusync.reporting.site_rows import source_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpusync.model.document import Document

UNIT_US: Final = 1000.0
"""Microseconds that represent one sync if none was timed."""

_TRACKS: Final = 1000
"""Tracks of a region are numbered from this number times the region's: Perfetto takes track 0 for the one with the
number of its process, and merges tracks with the same number."""
_STEPS_TRACK: Final = 0
_MICROSECONDS: Final = 1000.0
"""In a millisecond."""

Event = dict[str, Any]


def to_trace(document: Document) -> str:
    """Return a run object as the text of a ``.trace.json`` file."""
    events = [event for number, region in enumerate(document["regions"], start=1) for event in _region(region, number)]
    environment = {key: value for key, value in document["environment"].items() if value is not None}
    # One event per line: such files are searched and compared.
    lines = ",\n".join(json.dumps(event, ensure_ascii=False, allow_nan=False) for event in events)
    other = json.dumps(environment, ensure_ascii=False, allow_nan=False)
    return escape_surrogates(f'{{"displayTimeUnit": "ms", "otherData": {other}, "traceEvents": [\n{lines}\n]}}\n')


def _region(region: Document, process: int) -> Iterator[Event]:
    order = region.get("order")
    if not order or not order["sites"]:
        return
    timed = _is_timed(order)
    name = region["name"] if timed else f"{region['name']} (not timed: the order of the syncs)"
    yield _name("process_name", process, _STEPS_TRACK, name)
    yield _name("thread_name", process, _STEPS_TRACK, "steps")
    tracks: dict[str, int] = {}
    for site in (region["sites"][index] for index in order["sites"]):
        if site["thread"] not in tracks:
            tracks[site["thread"]] = len(tracks) + 1
            yield _name("thread_name", process, tracks[site["thread"]], f"waits of {site['thread']}")
    for step, start, end in _steps(order) if timed else _steps_in_order(order):
        label = "after the last step" if step is None else f"step {step}"
        kind = "warm-up" if step is not None and step < region["warmup"] else "step"
        yield _slice(label, kind, process, _STEPS_TRACK, start, end - start, {})
    for number, index in enumerate(order["sites"]):
        site = region["sites"][index]
        start, length = number * UNIT_US, UNIT_US
        if timed:
            start = order["began_ms"][number] * _MICROSECONDS
            length = order["blocked_ms"][number] * _MICROSECONDS
        yield _slice(_label(site), "sync", process, tracks[site["thread"]], start, length, _details(site))
    if order["left_out"]:
        place = max(start + length, 0.0)
        said = f"{order['left_out']} later syncs are not listed"
        track = _TRACKS * process + _STEPS_TRACK
        yield {"ph": "i", "name": said, "pid": process, "tid": track, "ts": place, "s": "p"}


def _is_timed(order: Document) -> bool:
    columns = (order.get("began_ms"), order["blocked_ms"], order.get("step_ends_ms"))
    return all(column is not None and None not in column for column in columns)


def _steps(order: Document) -> Iterator[tuple[int | None, float, float]]:
    began = 0.0
    for step, end in enumerate(order["step_ends_ms"]):
        yield step, began * _MICROSECONDS, end * _MICROSECONDS
        began = end
    if order["closed_ms"] > began:
        yield None, began * _MICROSECONDS, order["closed_ms"] * _MICROSECONDS


def _steps_in_order(order: Document) -> Iterator[tuple[int | None, float, float]]:
    place = 0
    for step, syncs in groupby(order["steps"]):
        number = len(list(syncs))
        yield step, place * UNIT_US, (place + number) * UNIT_US
        place += number


def _label(site: Document) -> str:
    source = source_text(site["path"], site["line"])
    return f"{site['path']}:{site['line']}  {source}" if source else f"{site['path']}:{site['line']}"


def _details(site: Document) -> dict[str, Any]:
    shown = ("code", "function", "kind", "direction", "via", "phase", "allowed")
    return {key: site[key] for key in shown if site[key] is not None}


def _slice(
    name: str, category: str, process: int, track: int, start: float, length: float, details: dict[str, Any]
) -> Event:
    return {"ph": "X", "name": name, "cat": category, "pid": process, "tid": _TRACKS * process + track} | {
        "ts": round(start, 1),
        "dur": round(length, 1),
        "args": details,
    }


def _name(what: str, process: int, track: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": _TRACKS * process + track, "args": {"name": name}}
