"""The charts of the HTML page as plain numbers: syncs per step as bars, and the timeline of a region.

Positions are shares of the width or height, from 0 to 1. The markup is in page/charts.html.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log10
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpusync.reporting.page_model import format_number
from pytest_gpusync.reporting.terminal import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpusync.reporting.page_model import Limit
    from pytest_gpusync.reporting.timeline import Block, Lane, Span, Timeline

BARS_SHOWN: Final = 200
BANDS_SHOWN: Final = 120
"""With more steps, their boundaries are closer than a screen can show."""
TICKS: Final = 6
"""About as many numbers fit an axis on a narrow screen."""

LANE_HEIGHT: Final = 26
"""In pixels, as in the style sheet."""

_UNITS: Final = 10_000
"""Times are sent to the script as whole tenths of a microsecond, the resolution of run files."""


class Tick(NamedTuple):
    """A number along an axis."""

    place: float
    text: str


class Bar(NamedTuple):
    """The syncs of one step, or the worst of several steps."""

    start: float
    height: float
    is_over: bool
    title: str
    step: int
    """The step; of several, the worst."""


@dataclass(frozen=True, slots=True)
class StepsChart:
    """The bars of a region and their axes."""

    caption: str
    bars: list[Bar]
    width: float
    budget: float | None
    """Height of the budget's line."""
    counts: list[Tick]
    """The vertical axis; places are from the bottom."""
    steps: list[Tick]


def steps_chart(per_step: Sequence[int], *, first: int, budget: Limit | None) -> StepsChart:
    """Return the syncs of each step as bars; with very many steps, the worst of each group.

    Args:
        per_step: syncs of the measured steps, in order.
        first: index of the first of them, counting warm-up.
        budget: drawn as a horizontal line.
    """
    size = -(-len(per_step) // BARS_SHOWN)
    number = -(-len(per_step) // size)
    top = max([1, *per_step, budget.number if budget else 0])
    bars = []
    for position in range(number):
        group = per_step[position * size : (position + 1) * size]
        worst = max(group)
        begin = first + position * size
        end = begin + len(group) - 1
        which = f"step {begin}" if begin == end else f"worst of steps {begin} to {end}"
        over = budget is not None and (worst != budget.number if budget.exact else worst > budget.number)
        bars.append(
            Bar(position / number, worst / top, over, f"{which}: {plural(worst, 'sync')}", begin + group.index(worst))
        )
    what = "Syncs in each step" if size == 1 else f"Syncs per step, the worst of every {size}"
    held = f", budget {budget}" if budget is not None else ""
    last = first + len(per_step)
    labels = [step for step in round_numbers(first, last - 1) if step == int(step)]
    return StepsChart(
        caption=f"{what}, up to {max(per_step)}{held}",
        bars=bars,
        width=1 / number,
        budget=None if budget is None else budget.number / top,
        counts=[Tick(count / top, str(int(count))) for count in round_numbers(0, top, 3) if count == int(count)],
        steps=[Tick((step - first + 0.5) / (size * number), str(int(step))) for step in labels],
    )


def round_numbers(low: float, high: float, most: int = TICKS) -> list[float]:
    """Return the multiples of 1, 2 or 5 times a power of ten from `low` to `high`, at most about `most`."""
    if high <= low:
        return [low]
    rough = (high - low) / most
    power: float = 10 ** floor(log10(rough))
    step = next(step for factor in (1, 2, 5, 10) if (step := factor * power) >= rough)
    first = -(-low // step)
    return [number * step for number in _range(first, high / step)]


def _range(first: float, last: float) -> Iterator[float]:
    while first <= last * (1 + 1e-9):
        yield first
        first += 1


def caption(drawn: Timeline) -> str:
    """Return the sentence above a timeline: what was timed, and what is not drawn."""
    parts = []
    if drawn.length_ms is not None and drawn.waited_ms is not None:
        share = 100 * drawn.waited_ms / drawn.length_ms
        parts.append(
            f"{plural(drawn.syncs, 'sync')}: the host waited {format_time(drawn.waited_ms)} of "
            f"{format_time(drawn.length_ms)} ({format_number(share)} %)"
        )
    else:
        timing = "not all of them timed" if drawn.partly_timed else "not timed"
        parts.append(f"{plural(drawn.syncs, 'sync')} in order, {timing}: every sync has the same width")
    if drawn.grouped:
        height = "their share of the time" if drawn.length_ms is not None else "their number"
        parts.append(f"neighboring syncs are drawn as one block, its height showing {height}")
    if drawn.warmup_ms is not None:
        parts.append(f"{format_time(drawn.warmup_ms)} of warm-up not shown")
    elif drawn.warmup_syncs:
        parts.append(f"{plural(drawn.warmup_syncs, 'sync')} of warm-up not shown")
    if drawn.after_ms is not None:
        parts.append(f"{format_time(drawn.after_ms)} after the last step not shown")
    elif drawn.after_syncs:
        parts.append(f"{plural(drawn.after_syncs, 'sync')} after the last step not shown")
    if drawn.left_out:
        parts.append(f"{plural(drawn.left_out, 'later sync')} not listed")
    return "; ".join(parts)


def format_time(milliseconds: float) -> str:
    """Return a time in a readable unit: 12 ms, 1.5 s."""
    if milliseconds >= 1000:
        return f"{format_number(milliseconds / 1000)} s"
    if 0 < milliseconds < 1:
        return f"{format_number(milliseconds * 1000)} µs"
    return f"{format_number(milliseconds)} ms"


def axis_ticks(drawn: Timeline) -> list[Tick]:
    """Return the numbers along the axis: times, or the ordinals of the syncs."""
    if drawn.length_ms is None:
        ordinals = round_numbers(0, drawn.syncs)
        return [Tick(ordinal / drawn.syncs, str(int(ordinal))) for ordinal in ordinals if ordinal == int(ordinal)]
    return [Tick(time / drawn.length_ms, format_time(time)) for time in round_numbers(0, drawn.length_ms)]


def step_ticks(spans: Sequence[Span]) -> list[Tick]:
    """Return the numbers of some steps, where they begin; what follows the last step is "after"."""
    numbers = [span.step for span in spans if span.step is not None]
    wanted = {int(step) for step in round_numbers(numbers[0], numbers[-1])} if numbers else set()
    ticks: list[Tick] = []
    for span in spans:
        is_free = not ticks or span.start - ticks[-1].place >= 1 / (2 * TICKS if span.step is not None else TICKS)
        if is_free and (span.step is None or span.step in wanted):
            ticks.append(Tick(span.start, "after" if span.step is None else str(span.step)))
    return ticks


def bands(spans: Sequence[Span]) -> list[Span]:
    """Return every other step, to be shaded; none if there are too many."""
    return list(spans[1::2]) if len(spans) <= BANDS_SHOWN else []


def block_class(block: Block, lane: Lane, warmup: int) -> str:
    """Return how a block is drawn: in another color if budgets do not count it, paler outside the measured steps."""
    kind = "wait" if lane.counted else "excused"
    is_outside = block.step is None or (block.last_step is not None and block.last_step < warmup)
    return f"{kind} aside" if is_outside else kind


def block_title(block: Block) -> str:
    """Return what a block stands for."""
    steps = "after the last step" if block.step is None else f"step {block.step}"
    if block.last_step is not None and block.last_step != block.step:
        steps = f"steps {block.step} to {block.last_step}"
    time = "not timed" if block.blocked_ms is None else format_time(block.blocked_ms)
    return f"{steps}: {plural(block.syncs, 'sync')}, {time}"


def script_data(drawn: Timeline, warmup: int) -> dict[str, Any]:
    """Return what the page's script needs to draw a part of the timeline: positions as differences, in whole units."""
    columns = drawn.columns
    timed = drawn.length_ms is not None
    unit = (drawn.length_ms or 0.0) * _UNITS if timed else len(columns.starts)
    # Threads are recorded one after the other; the script searches by time.
    numbers = sorted(range(len(columns.starts)), key=columns.starts.__getitem__)
    return {
        "timed": timed,
        "total": round(unit) or 1,
        "warmup": warmup,
        "starts": _differences([round(columns.starts[number] * unit) for number in numbers]),
        "waits": [round((columns.ends[number] - columns.starts[number]) * unit) for number in numbers]
        if timed
        else None,
        "lanes": [columns.lanes[number] for number in numbers],
        "others": [place for place, number in enumerate(numbers) if not columns.own[number]],
        "counted": [lane.counted for lane in drawn.lanes],
        "steps": [span.step for span in drawn.spans],
        "edges": _differences([round(span.start * unit) for span in drawn.spans]),
    }


def _differences(numbers: Sequence[int]) -> list[int]:
    return [number - before for number, before in zip(numbers, [0, *numbers], strict=False)]
