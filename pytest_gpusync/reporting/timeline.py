"""The timeline of a region: one lane for the host as a whole, and one for each line that waited.

Only what was recorded is drawn. If every sync was timed, the axis is time: a sync starts where it began and is as wide
as the host waited. Otherwise the axis is the order, and every sync has the same width.

A first step loads libraries and can take a thousand times as long as the others. If the warm-up is longer than all
measured steps together (without times: makes more syncs), the axis starts after it; if what follows the last step is,
the axis ends there. The caption says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.model.document import Document

HOST: Final = "host"
LANES_SHOWN: Final = 12
"""Lanes of lines, in addition to the host's."""
BLOCKS_SHOWN: Final = 800
"""Most syncs drawn one by one. With more, short ones in the same column of a lane are drawn as one."""

_STEPS_GROUPED: Final = 20


@dataclass
class Block:
    """One sync, or several of a lane drawn as one: from `start` to `end`, both from 0 to 1 along the axis."""

    start: float
    end: float
    height: float
    """Height, up to 1. For grouped syncs, their share of the block's width; without times, their number relative to the
    lane's largest."""
    syncs: int
    step: int | None
    """Step of the first of them."""
    last_step: int | None
    blocked_ms: float | None


@dataclass
class Lane:
    """The syncs of one line, or all those of the host."""

    label: str
    counted: bool
    """False if budgets do not count them: allowed, or on another thread."""
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Span:
    """Position of a step along the axis."""

    step: int | None
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The timeline of a region, ready to be drawn."""

    lanes: list[Lane]
    """The host's lane is first, if syncs were timed."""
    spans: list[Span]
    length_ms: float | None
    """Length of the axis in time; None if not every call was timed, so that the axis is the order."""
    waited_ms: float | None
    """Total wait of the region's own thread."""
    partly_timed: bool
    syncs: int
    left_out: int
    grouped: bool
    """True if a block may represent several syncs."""
    warmup_ms: float | None
    """How much of the warm-up is before the axis; None if it is drawn, or nothing was timed."""
    after_ms: float | None
    """How much time after the last step is behind the axis; None if it is drawn, or nothing was timed."""
    warmup_syncs: int
    """How many syncs of warm-up are not drawn."""
    after_syncs: int
    """How many syncs after the last step are not drawn."""
    columns: Columns
    """The syncs one by one."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The drawn syncs one by one, in order: what a page needs to draw a part of the axis in detail."""

    starts: list[float]
    """Position along the axis, from 0 to 1."""
    ends: list[float]
    steps: list[int | None]
    lanes: list[int]
    """Index of the line's lane."""
    own: list[bool]
    """Whether the host's lane has it: False for a sync of another thread."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a region that is drawn."""

    order: Document
    first_step: int = 0
    warmup_ms: float | None = None
    after_ms: float | None = None
    warmup_syncs: int = 0
    after_syncs: int = 0


@dataclass(frozen=True, slots=True)
class _Axis:
    """Positions of syncs and steps."""

    starts: list[float]
    ends: list[float]
    waits: list[float | None]
    spans: list[Span]
    length_ms: float | None


def timeline(region: Document) -> Timeline | None:
    """Return the timeline of a region object; None if no sync can be drawn: there are none, their order is unknown, or
    all of them are in a warm-up that would fill the view.
    """
    order = region.get("order")
    if not order or not order["sites"]:
        return None
    part = _measured_part(order, region["warmup"])
    order = part.order
    if not order["sites"]:
        return None
    axis = _times(order, part.first_step) or _sequence(order)
    timed = axis.length_ms is not None
    own = [not site["background"] for site in region["sites"]]
    lanes, lane_of = _lanes(region, order["sites"], axis)
    grouped = len(axis.starts) > BLOCKS_SHOWN
    columns = _columns(axis.spans, len(lanes), timed=timed) if grouped else []
    drawn = _BlockBuilder(axis, order["steps"], columns)
    host = Lane(HOST, counted=True)
    for number, site in enumerate(order["sites"]):
        drawn.add(lanes[lane_of[site]], number)
        if timed and own[site]:
            drawn.add(host, number)
    if grouped and not timed:
        for lane in lanes:
            _scale_by_count(lane)
    waited = [wait or 0.0 for wait, site in zip(axis.waits, order["sites"], strict=True) if own[site]]
    first_lane = 1 if timed else 0
    columns_of_all = Columns(
        starts=axis.starts,
        ends=axis.ends,
        steps=order["steps"],
        lanes=[lane_of[site] + first_lane for site in order["sites"]],
        own=[own[site] for site in order["sites"]],
    )
    return Timeline(
        lanes=[host, *lanes] if timed else lanes,
        spans=axis.spans,
        length_ms=axis.length_ms,
        waited_ms=sum(waited) if timed else None,
        partly_timed=not timed and any(wait is not None for wait in axis.waits),
        syncs=len(axis.starts),
        left_out=order["left_out"],
        grouped=grouped,
        warmup_ms=part.warmup_ms,
        after_ms=part.after_ms,
        warmup_syncs=part.warmup_syncs,
        after_syncs=part.after_syncs,
        columns=columns_of_all,
    )


class _BlockBuilder:
    """Adds syncs to lanes, as blocks of their own or grouped with their neighbors."""

    def __init__(self, axis: _Axis, steps: Sequence[int | None], columns: Sequence[float]) -> None:
        self._axis = axis
        self._steps = steps
        self._columns = columns
        self._open: dict[tuple[int, int], Block] = {}

    def add(self, lane: Lane, number: int) -> None:
        start, end = self._axis.starts[number], self._axis.ends[number]
        step, wait = self._steps[number], self._axis.waits[number]
        if not self._columns:
            lane.blocks.append(Block(start, end, 1.0, 1, step, step, wait))
            return
        column = min(bisect_right(self._columns, (start + end) / 2), len(self._columns) - 1) - 1
        left, right = self._columns[column], self._columns[column + 1]
        if end - start >= right - left:
            lane.blocks.append(Block(start, end, 1.0, 1, step, step, wait))
            return
        block = self._open.get((id(lane), column))
        if block is None:
            block = Block(left, right, 0.0, 0, step, step, None if wait is None else 0.0)
            self._open[id(lane), column] = block
            lane.blocks.append(block)
        block.height = min(block.height + (end - start) / (right - left), 1.0)
        block.syncs, block.last_step = block.syncs + 1, step
        block.blocked_ms = None if wait is None or block.blocked_ms is None else block.blocked_ms + wait


def _measured_part(order: Document, warmup: int) -> _Part:
    """Return only the measured steps of a region, if what is outside them would leave no room for them."""
    began, waits, ends = order.get("began_ms"), order["blocked_ms"], order.get("step_ends_ms") or []
    if began is None or waits is None or None in began or None in waits or None in ends or len(ends) <= warmup:
        return _measured_syncs(order, warmup)
    closed = order["closed_ms"]
    start, stop = (ends[warmup - 1] if warmup else 0.0), ends[-1]
    skips, stops = start > stop - start, closed - stop > stop - start
    low, high = (start if skips else 0.0), (stop if stops else float("inf"))
    shown = [number for number, time in enumerate(began) if low <= time < high]
    first = warmup if skips else 0
    cut = _columns_of(order, shown) | {
        "began_ms": [began[number] - low for number in shown],
        "step_ends_ms": [end - low for end in ends[first:]],
        "closed_ms": min(closed, high) - low,
    }
    return _Part(
        cut,
        first,
        start if skips else None,
        closed - stop if stops else None,
        sum(time < low for time in began),
        sum(time >= high for time in began),
    )


def _measured_syncs(order: Document, warmup: int) -> _Part:
    """Return what :func:`_measured_part` does, by the number of syncs."""
    before = [number for number, step in enumerate(order["steps"]) if step is not None and step < warmup]
    after = [number for number, step in enumerate(order["steps"]) if step is None]
    measured = len(order["steps"]) - len(before) - len(after)
    left_out = {*(before if len(before) > measured else ()), *(after if len(after) > measured and measured else ())}
    if not left_out:
        return _Part(order)
    shown = [number for number in range(len(order["steps"])) if number not in left_out]
    cut = _columns_of(order, shown) | {"began_ms": None, "step_ends_ms": None, "closed_ms": None}
    return _Part(
        cut,
        warmup_syncs=len(left_out.intersection(before)),
        after_syncs=len(left_out.intersection(after)),
    )


def _columns_of(order: Document, shown: Sequence[int]) -> Document:
    """Return the columns that every order has, of some syncs."""
    columns = ("sites", "steps", "blocked_ms")
    cut = {name: order[name] and [order[name][number] for number in shown] for name in columns}
    return {**cut, "left_out": order["left_out"]}


def _times(order: Document, first_step: int) -> _Axis | None:
    """Return an axis of time; None if not every sync was timed."""
    began: list[Any] | None = order.get("began_ms")
    waits: list[Any] | None = order["blocked_ms"]
    closed = order.get("closed_ms")
    if began is None or waits is None or closed is None or None in began or None in waits:
        return None
    over = max(start + wait for start, wait in zip(began, waits, strict=True))
    # If syncs were left out, the axis ends with the last one listed.
    length = over if order["left_out"] else max(over, closed)
    if length <= 0:
        return None
    edges = [0.0, *(min(end / length, 1.0) for end in order["step_ends_ms"])]
    spans = [Span(first_step + step, edges[step], end) for step, end in enumerate(edges[1:]) if edges[step] < 1]
    if edges[-1] < 1:
        spans.append(Span(None, edges[-1], 1.0))
    ends = [min((start + wait) / length, 1.0) for start, wait in zip(began, waits, strict=True)]
    return _Axis([start / length for start in began], ends, waits, spans, length)


def _sequence(order: Document) -> _Axis:
    """Return an axis of order."""
    number = len(order["sites"])
    edges = [place / number for place in range(number + 1)]
    waits = order["blocked_ms"] or [None] * number
    return _Axis(edges[:-1], edges[1:], waits, _spans(order["steps"], edges), None)


def _columns(spans: Sequence[Span], lanes: int, *, timed: bool) -> list[float]:
    """Return the edges of the columns in which syncs are grouped.

    Without times, whole steps are grouped if there are enough of them: other columns would interfere with the steps.
    """
    number = BLOCKS_SHOWN // min(lanes, 4)
    if timed or len(spans) < _STEPS_GROUPED:
        return [column / number for column in range(number)] + [1.0]
    return [span.start for span in spans[:: -(-len(spans) // number)]] + [1.0]


def _scale_by_count(lane: Lane) -> None:
    """Set each block's height by its number of syncs, relative to the lane's largest: without times, shares mean
    nothing.
    """
    most = max((block.syncs for block in lane.blocks), default=1)
    for block in lane.blocks:
        block.height = block.syncs / most


def _lanes(region: Document, made: Sequence[int], axis: _Axis) -> tuple[list[Lane], dict[int, int]]:
    """Return the lanes, the one with the longest waits first, and the lane of each site; remaining lines share the last
    lane.
    """
    keys = [(s["path"], s["line"], s["allowed"] is None and not s["background"]) for s in region["sites"]]
    weight: Counter[tuple[str, int, bool]] = Counter()
    for site, start, end in zip(made, axis.starts, axis.ends, strict=True):
        weight[keys[site]] += end - start  # type: ignore[assignment]
    # Rounded, because sums of floating-point shares differ in their last digits for equal lines.
    ranked = sorted(weight, key=lambda key: (-round(weight[key], 9), key))
    shown = ranked if len(ranked) <= LANES_SHOWN else ranked[: LANES_SHOWN - 1]
    lanes = [Lane(f"{path}:{line}", counted) for path, line, counted in shown]
    if len(shown) < len(ranked):
        lanes.append(Lane(f"{len(ranked) - len(shown)} other lines", counted=True))
    position = {key: number for number, key in enumerate(shown)}
    return lanes, {site: position.get(keys[site], len(shown)) for site in set(made)}


def _spans(steps: Sequence[int | None], edges: Sequence[float]) -> list[Span]:
    spans: list[Span] = []
    for number, step in enumerate(steps):
        if spans and spans[-1].step == step:
            spans[-1] = Span(step, spans[-1].start, edges[number + 1])
        else:
            spans.append(Span(step, edges[number], edges[number + 1]))
    return spans
