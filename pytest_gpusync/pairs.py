"""The ratio of two elapsed times, from pairs.

Two runs of the same code on a shared machine differ by 4 to 11 %. So both sides are timed in turn, the order changing
from round to round, and the median of the ratios is taken: what slows both for a while cancels out.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil, inf
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pytest_gpusync.estimates import median_estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_gpusync.nvml import Disturbance

Outcome = Literal["measured", "too noisy to tell"]

ROUNDS: Final = 100
"""Rounds after which an interval that is still wide is given up, unless told otherwise."""

TOLERANCE: Final = 0.02
"""Width of the interval, as a part of the ratio, at which a measurement is complete, unless told otherwise."""

LEAST_ROUNDS: Final = 12
"""Rounds before an interval is looked at."""

_LEAST_CALLS: Final = 3
"""Calls in one sample: from the second on, the host may run ahead of the device as it does in a training loop."""
_SAMPLE_MS: Final = 10.0
"""Least time of one sample: what starting and ending it costs is small against this."""


class Pair(NamedTuple):
    """One round: milliseconds per call of either side."""

    a: float
    b: float


@dataclass(frozen=True, slots=True, repr=False)
class Ratio:
    """How many times as long as `b` `a` took."""

    value: float
    """Median over the rounds."""
    low: float
    high: float
    """The truth lies between `low` and `high` with the stated confidence. Where the machine was disturbed (see `note`)
    they are 0 and infinity: nothing can be claimed."""
    rounds: int
    outcome: Outcome
    confidence: float
    calls: int
    """Calls in each sample."""
    a_ms: float
    """Median milliseconds per call."""
    b_ms: float
    note: str | None = None
    """What NVML saw of throttling and other processes; None if nothing."""

    def __repr__(self) -> str:
        text = (
            f"a took {self.value:.4g} times as long as b ({self.confidence * 100:g} % interval {self.low:.4g} to "
            f"{self.high:.4g}, {self.rounds} rounds of {self.calls} calls, {self.a_ms:.4g} against {self.b_ms:.4g} ms)"
        )
        if self.outcome == "too noisy to tell":
            text = f"too noisy to tell: {text}"
        return f"{text}; {self.note}" if self.note else text


def take_pairs(take: Callable[[Literal["a", "b"]], float], rounds: int, tolerance: float) -> list[Pair]:
    """Take pairs until the interval of their ratio is tight, `rounds` of them at most.

    Args:
        take: takes one sample of a side: milliseconds per call.
        rounds: pairs to take at most.
        tolerance: width of the interval, as a part of the ratio, that is tight.
    """
    pairs: list[Pair] = []
    for number in range(rounds):
        if number % 2:
            b = take("b")
            pairs.append(Pair(take("a"), b))
        else:
            pairs.append(Pair(take("a"), take("b")))
        # After an even number both orders weigh the same.
        if number % 2 and len(pairs) >= LEAST_ROUNDS and is_tight(pairs, tolerance):
            break
    return pairs


def is_tight(pairs: Sequence[Pair], tolerance: float) -> bool:
    """Tell whether the interval of the ratio is narrow enough to stop."""
    estimate = median_estimate([pair.a / pair.b for pair in pairs])
    return estimate.high - estimate.low <= tolerance * estimate.value


def ratio_of(pairs: Sequence[Pair], calls: int, tolerance: float) -> Ratio:
    """Return the ratio that `pairs` give."""
    estimate = median_estimate([pair.a / pair.b for pair in pairs])
    return Ratio(
        value=estimate.value,
        low=max(0.0, estimate.low),
        high=estimate.high,
        rounds=len(pairs),
        outcome="measured" if is_tight(pairs, tolerance) else "too noisy to tell",
        confidence=estimate.confidence,
        calls=calls,
        a_ms=median(pair.a for pair in pairs),
        b_ms=median(pair.b for pair in pairs),
    )


def disturbed(ratio: Ratio, disturbance: Disturbance) -> Ratio:
    """Return `ratio` with what NVML saw meanwhile; nothing can be claimed from it if that spoils it."""
    if not disturbance.spoils:
        return replace(ratio, note=disturbance.note)
    return replace(ratio, low=0.0, high=inf, outcome="too noisy to tell", note=disturbance.note)


def measure_ratio(
    a: Callable[[], object],
    b: Callable[[], object],
    *,
    rounds: int = ROUNDS,
    warmup: int = 3,
    calls: int | None = None,
    tolerance: float = TOLERANCE,
) -> Ratio:
    """Time `a` against `b` on the current GPU; see :meth:`pytest_gpusync.fixtures.GpuElapsed.ratio`."""
    from pytest_gpusync.measure import aside
    from pytest_gpusync.nvml import watch_current

    sides = {"a": a, "b": b}

    def take(side: Literal["a", "b"]) -> float:
        if side == "a":
            watch.look()
        return sample(sides[side], number)

    with aside(), no_garbage_collection():
        for _ in range(warmup):
            a()
            b()
        settle()
        number = calls if calls is not None else calls_of(sides.values())
        watch = watch_current()
        try:
            pairs = take_pairs(take, rounds, tolerance)
        finally:
            disturbance = watch.close()
    return disturbed(ratio_of(pairs, number, tolerance), disturbance)


def calls_of(sides: Iterable[Callable[[], object]]) -> int:
    """Return how many calls one sample takes, so that the shortest side takes long enough to be timed."""
    shortest = min(sample(side, 1) for side in sides)
    return max(_LEAST_CALLS, ceil(_SAMPLE_MS / max(shortest, 1e-3)))


def sample(function: Callable[[], object], calls: int) -> float:
    """Return the milliseconds per call from an idle device to the end of the work of the last of `calls` calls."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        function()
    end.record()
    settle()
    elapsed: Any = start.elapsed_time(end)
    # An event resolves half a microsecond; a ratio of nothing by nothing would be no number.
    return max(float(elapsed), 1e-3) / calls


def settle() -> None:
    """Wait until the device is idle. It is the measurement's own wait: no region counts it."""
    import torch

    from pytest_gpusync.measure import aside

    with aside():
        torch.cuda.synchronize()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect garbage now, and not in the ``with`` block."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
