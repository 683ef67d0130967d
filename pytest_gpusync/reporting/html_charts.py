"""The charts of the HTML page: syncs per step as bars, and the timeline of a region."""

from __future__ import annotations

from bisect import bisect, insort
from html import escape
from typing import TYPE_CHECKING, Final

from pytest_gpusync.reporting.page_model import format_number
from pytest_gpusync.reporting.terminal import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.reporting.page_model import Limit
    from pytest_gpusync.reporting.timeline import Block, Lane, Span, Timeline

BARS_SHOWN: Final = 200
BANDS_SHOWN: Final = 120
"""With more steps, their boundaries are closer than a screen can show."""
LABEL_ZOOMS: Final = (1, 4, 16)
"""Zoom levels at which more numbers appear along an axis."""
LABEL_WIDTH: Final = 0.09
"""Share of the axis that a step's number takes on a narrow screen."""
ZOOMS: Final = (1, 4, 16, 64)

_WIDTH: Final = 1000
"""Width of every chart in its own units; it is stretched to the available width."""
_LANE: Final = 26
"""Height of a lane in pixels, as in the style sheet."""


def steps_chart(per_step: Sequence[int], *, first: int, budget: Limit | None) -> str:
    """Return the syncs of each step as bars; with very many steps, the worst of each group.

    Args:
        per_step: syncs of the measured steps, in order.
        first: index of the first of them, counting warm-up.
        budget: drawn as a horizontal line.
    """
    size = -(-len(per_step) // BARS_SHOWN)
    bars = [max(per_step[start : start + size]) for start in range(0, len(per_step), size)]
    top = max([1, *bars, budget.number if budget else 0])
    width = _WIDTH / len(bars)
    drawn = []
    for number, syncs in enumerate(bars):
        over = budget is not None and (syncs != budget.number if budget.exact else syncs > budget.number)
        start = first + number * size
        which = (
            f"step {start}"
            if size == 1
            else f"worst of steps {start} to {min(start + size, first + len(per_step)) - 1}"
        )
        drawn.append(
            f'<rect class="{"over" if over else "bar"}" x="{number * width:.2f}" y="{100 - 100 * syncs / top:.2f}" '
            f'width="{width * 0.85:.2f}" height="{100 * syncs / top:.2f}">'
            f"<title>{which}: {plural(syncs, 'sync')}</title></rect>"
        )
    line = ""
    if budget is not None:
        y = 100 - 100 * budget.number / top
        line = f'<line class=limit x1="0" x2="{_WIDTH}" y1="{y:.2f}" y2="{y:.2f}"/>'
    last = first + len(per_step) - 1
    what = "syncs in each step" if size == 1 else f"syncs per step, the worst of every {size}"
    held = f", budget {budget}" if budget is not None else ""
    return (
        f"<figure class=steps><figcaption>{what}, up to {max(per_step)}{held}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} 100" preserveAspectRatio="none" role="img" aria-label="{what}">'
        f"{''.join(drawn)}{line}</svg><div class=ends><span>step {first}</span><span>step {last}</span></div></figure>"
    )


def lanes(drawn: Timeline, number: int, warmup: int) -> str:
    """Return a region's lanes, with zoom levels; `number` identifies the region on its page."""
    names = "".join(f'<div title="{escape(lane.label)}"><bdi>{escape(lane.label)}</bdi></div>' for lane in drawn.lanes)
    bands = _bands(drawn.spans)
    rows = "".join(
        f'<svg viewBox="0 0 {_WIDTH} {_LANE}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(lane.label)}">{_runs(lane, drawn) or bands}{_blocks(lane, warmup)}</svg>'
        for lane in drawn.lanes
    )
    scale = "" if drawn.length_ms is None else f"<div class=axis>{_ticks(drawn.length_ms)}</div>"
    corner = "<div class=axis>time</div>" if scale else ""
    zooms = "".join(
        f'<input type=radio name="zoom-{number}" id="zoom-{number}-{zoom}" class="z{zoom}"'
        f"{' checked' if zoom == 1 else ''}>"
        f'<label for="zoom-{number}-{zoom}">{zoom}×</label>'
        for zoom in ZOOMS
    )
    return (
        f"<figure class=timeline><figcaption>{escape(_caption(drawn))}</figcaption>{zooms}"
        f"<div class=lanes><div class=names>{corner}<div class=axis>step</div>{names}</div>"
        f"<div class=scroll><div class=stretch>{scale}<div class=axis>{_labels(drawn.spans)}</div>{rows}</div></div>"
        "</div></figure>"
    )


def _caption(drawn: Timeline) -> str:
    parts = []
    if drawn.length_ms is not None and drawn.waited_ms is not None:
        share = 100 * drawn.waited_ms / drawn.length_ms
        parts.append(
            f"{plural(drawn.syncs, 'sync')}: the host waited {_time(drawn.waited_ms)} of {_time(drawn.length_ms)} "
            f"({format_number(share)} %)"
        )
    else:
        timing = "not all of them timed" if drawn.partly_timed else "not timed"
        parts.append(f"{plural(drawn.syncs, 'sync')} in order, {timing}: every sync has the same width")
    if drawn.grouped:
        height = "their share of the time" if drawn.length_ms is not None else "their number"
        parts.append(f"neighboring syncs are drawn as one block, its height showing {height}")
    if drawn.warmup_ms is not None:
        parts.append(f"{_time(drawn.warmup_ms)} of warm-up not shown")
    if drawn.after_ms is not None:
        parts.append(f"{_time(drawn.after_ms)} after the last step not shown")
    if drawn.left_out:
        parts.append(f"{plural(drawn.left_out, 'later sync')} not listed")
    return "; ".join(parts)


def _time(milliseconds: float) -> str:
    """Return a time in a readable unit: 12 ms, 1.5 s."""
    if milliseconds >= 1000:
        return f"{format_number(milliseconds / 1000)} s"
    if 0 < milliseconds < 1:
        return f"{format_number(milliseconds * 1000)} µs"
    return f"{format_number(milliseconds)} ms"


def _runs(lane: Lane, drawn: Timeline) -> str:
    """Return the bar behind the host's waits: the time in which it ran. Empty for the lane of a line."""
    if drawn.length_ms is None or lane is not drawn.lanes[0]:
        return ""
    return f'<rect class=runs x="0" y="2" width="{_WIDTH}" height="{_LANE - 4}"/>'


def _blocks(lane: Lane, warmup: int) -> str:
    return "".join(_block(block, lane, warmup) for block in lane.blocks)


def _block(block: Block, lane: Lane, warmup: int) -> str:
    height = max((_LANE - 4) * block.height, 1.5)
    width = (block.end - block.start) * _WIDTH
    kind = "wait" if lane.counted else "excused"
    if block.step is None or (block.last_step is not None and block.last_step < warmup):
        kind += " aside"
    steps = "after the last step" if block.step is None else f"step {block.step}"
    if block.last_step is not None and block.last_step != block.step:
        steps = f"steps {block.step} to {block.last_step}"
    time = "not timed" if block.blocked_ms is None else _time(block.blocked_ms)
    return (
        f'<rect class="{kind}" x="{block.start * _WIDTH:.3f}" y="{_LANE - 2 - height:.2f}" width="{width:.3f}" '
        f'height="{height:.2f}"><title>{steps}: {plural(block.syncs, "sync")}, {time}</title></rect>'
    )


def _bands(spans: Sequence[Span]) -> str:
    """Return shading for every other step."""
    if len(spans) > BANDS_SHOWN:
        return ""
    return "".join(
        f'<rect class=band x="{span.start * _WIDTH:.2f}" y="0" width="{(span.end - span.start) * _WIDTH:.2f}" '
        f'height="{_LANE}"/>'
        for number, span in enumerate(spans)
        if number % 2
    )


def _labels(spans: Sequence[Span]) -> str:
    """Return the step numbers; one without room at a zoom level appears at a higher one."""
    zoom_of: dict[int, int] = {}
    for zoom in LABEL_ZOOMS:
        taken = [spans[number].start for number in sorted(zoom_of)]
        for number, span in enumerate(spans):
            if number not in zoom_of and _has_room(span.start, taken, LABEL_WIDTH / zoom):
                zoom_of[number] = zoom
                insort(taken, span.start)
    shown = [(spans[number], zoom_of[number]) for number in sorted(zoom_of)]
    return "".join(_mark(span.start, "after" if span.step is None else str(span.step), zoom) for span, zoom in shown)


def _ticks(length_ms: float) -> str:
    """Return times along the axis, four of them visible at each zoom level."""
    marks = 4 * LABEL_ZOOMS[-1]
    return "".join(
        _mark(number / marks, _time(length_ms * number / marks), _zoom_of_tick(number)) for number in range(marks)
    )


def _zoom_of_tick(number: int) -> int:
    return next(zoom for zoom in LABEL_ZOOMS if number % (LABEL_ZOOMS[-1] // zoom) == 0)


def _has_room(place: float, taken: Sequence[float], width: float) -> bool:
    at = bisect(taken, place)
    return (at == 0 or place - taken[at - 1] >= width) and (at == len(taken) or taken[at] - place >= width)


def _mark(place: float, text: str, zoom: int) -> str:
    """Return a text at a place on an axis, hidden below zoom level `zoom`."""
    if place > 1 - LABEL_WIDTH / 2:
        return f'<span class="end f{zoom}">{text}</span>'
    return f'<span class="f{zoom}" style="left:{100 * place:.2f}%">{text}</span>'
