"""The lanes of a region: one per line that waited, its syncs from left to right in the order in which they were made.

Nothing is drawn that was not recorded. Where every call was timed, a sync is as wide as the host waited, and the waits
stand side by side: the time between them was not recorded. Otherwise every sync is equally wide.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.reporting.json_ import Document

LANES_SHOWN: Final = 12
BLOCKS_SHOWN: Final = 800
"""Syncs that are drawn one by one; with more, the short ones that fall into the same column of a lane become one."""

_STEPS_GROUPED: Final = 20


@dataclass
class Block:
    """One sync, or several of a lane drawn as one: from `start` to `end`, both from 0 to 1 along the axis."""

    start: float
    end: float
    share: float
    """How high it is drawn, up to 1. Of several that were grouped, the share of the stretch that is theirs; without
    times their number, by the largest of the lane."""
    syncs: int
    step: int | None
    """Of the first of them."""
    last_step: int | None
    blocked_ms: float | None


@dataclass
class Lane:
    """The syncs of one line."""

    label: str
    counted: bool
    """False if a budget does not limit them: allowed, or of another thread."""
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Span:
    """Where the syncs of one step lie along the axis."""

    step: int | None
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What is drawn of a region."""

    lanes: list[Lane]
    spans: list[Span]
    total_ms: float | None
    """All waits together; None where not every call was timed: then the axis is the order alone."""
    partly_timed: bool
    syncs: int
    left_out: int
    grouped: bool
    """True if a block may stand for several syncs."""


def timeline(region: Document) -> Timeline | None:
    """Return the lanes of a region object; None if the order of its syncs is not known or there are none."""
    order = region.get("order")
    if not order or not order["sites"]:
        return None
    waits: list[float | None] = order["blocked_ms"] or [None] * len(order["sites"])
    timed = all(wait is not None for wait in waits) and sum(wait or 0.0 for wait in waits) > 0
    widths = [wait or 0.0 for wait in waits] if timed else [1.0] * len(waits)
    total = sum(widths)
    edges = [0.0, *(edge / total for edge in accumulate(widths))]
    lanes, lane_of = _lanes(region, order["sites"], widths)
    grouped = len(waits) > BLOCKS_SHOWN
    spans = _spans(order["steps"], edges)
    columns = _columns(spans, len(lanes), timed=timed) if grouped else []
    open_blocks: dict[tuple[int, int], Block] = {}
    for number, site in enumerate(order["sites"]):
        lane = lane_of[site]
        start, end, step, wait = edges[number], edges[number + 1], order["steps"][number], waits[number]
        column = bisect_right(columns, (start + end) / 2) - 1
        width = columns[column + 1] - columns[column] if grouped else 0.0
        if end - start >= width:
            lanes[lane].blocks.append(Block(start, end, 1.0, 1, step, step, wait))
            continue
        block = open_blocks.get((lane, column))
        if block is None:
            block = Block(columns[column], columns[column + 1], 0.0, 0, step, step, None if wait is None else 0.0)
            open_blocks[lane, column] = block
            lanes[lane].blocks.append(block)
        block.share = min(block.share + (end - start) / width, 1.0)
        block.syncs, block.last_step = block.syncs + 1, step
        block.blocked_ms = None if wait is None or block.blocked_ms is None else block.blocked_ms + wait
    if grouped and not timed:
        for lane_drawn in lanes:
            _by_number(lane_drawn)
    return Timeline(
        lanes=lanes,
        spans=spans,
        total_ms=total if timed else None,
        partly_timed=not timed and any(wait is not None for wait in waits),
        syncs=len(waits),
        left_out=order["left_out"],
        grouped=grouped,
    )


def _columns(spans: Sequence[Span], lanes: int, *, timed: bool) -> list[float]:
    """Return the edges of the columns in which syncs are grouped.

    Without times whole steps are grouped, where there are enough: columns of their own would beat with the steps.
    """
    number = BLOCKS_SHOWN // min(lanes, 4)
    if timed or len(spans) < _STEPS_GROUPED:
        return [column / number for column in range(number)] + [1.0]
    return [span.start for span in spans[:: -(-len(spans) // number)]] + [1.0]


def _by_number(lane: Lane) -> None:
    """Make each block as high as it has syncs, the highest filling the lane: without times no share means anything."""
    most = max((block.syncs for block in lane.blocks), default=1)
    for block in lane.blocks:
        block.share = block.syncs / most


def _lanes(region: Document, made: Sequence[int], widths: Sequence[float]) -> tuple[list[Lane], dict[int, int]]:
    """Return the lanes, the widest first, and the lane of each site; lines beyond the last share one."""
    keys = [(s["path"], s["line"], s["allowed"] is None and not s["background"]) for s in region["sites"]]
    weight: Counter[tuple[str, int, bool]] = Counter()
    for site, width in zip(made, widths, strict=True):
        weight[keys[site]] += width  # type: ignore[assignment]
    ranked = [key for key, _ in weight.most_common()]
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
