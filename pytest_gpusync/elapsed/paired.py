"""Compares elapsed times in rounds in which each side is timed once; the ratio of two times.

Two runs of the same code on a shared machine differ by 4 to 11 %. So all sides are timed alternately, in an order that
changes from round to round, and the median over the rounds is taken: what slows everything for a while cancels out.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil, inf
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, TypeVar

from pytest_gpusync.model.estimates import CONFIDENCE, Estimate, median_estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_gpusync.model.measurement import Disturbance

Outcome = Literal["measured", "too noisy to tell"]

ROUNDS: Final = 100
"""Default number of rounds after which measuring stops, even if the interval is still wide."""

TOLERANCE: Final = 0.02
"""Default width of the interval, as a share of the ratio, at which a measurement is complete."""

MIN_ROUNDS: Final = 12
"""Rounds before an interval is computed for the first time."""

EDGE_MS: Final = 0.012
"""Time in a sample that is not its work: on an idle H200 the first launch takes 9 to 12 us to arrive. The interval of a
ratio is widened by this much, because so small a difference is not due to the work."""

_INTERIM_CONFIDENCE: Final = 0.999
"""Confidence of each interim interval. Measuring stops once an interval is narrow, so it is computed repeatedly: each
needs a higher confidence for the stated one to hold for all of them together."""

_MIN_CALLS: Final = 3
"""Calls in one sample: from the second on, the host may run ahead of the device as it does in a training loop."""
_SAMPLE_MS: Final = 10.0
"""Least time of one sample, compared to which the cost of starting and ending it is small."""

Side = TypeVar("Side", bound=str)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Comparison:
    """The result of timing rounds, with an interval."""

    UNBOUNDED: ClassVar[tuple[float, float]] = (-inf, inf)
    """The unbounded interval."""

    value: float
    """Median over the rounds."""
    low: float
    high: float
    """The true value lies between `low` and `high` with the stated confidence. If the machine was disturbed (see
    `note`), the interval is unbounded."""
    rounds: int
    outcome: Outcome
    confidence: float = CONFIDENCE
    a_ms: float
    """Median milliseconds per call."""
    b_ms: float
    note: str | None = None
    """What NVML saw of throttling and other processes; None if nothing."""

    def _sentence(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        text = self._sentence()
        if self.outcome == "too noisy to tell":
            text = f"too noisy to tell: {text}"
        return f"{text}; {self.note}" if self.note else text


Compared = TypeVar("Compared", bound=Comparison)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Ratio(Comparison):
    """How many times as long as `b` `a` took."""

    UNBOUNDED: ClassVar[tuple[float, float]] = (0.0, inf)

    calls: int
    """Calls in each sample."""

    def _sentence(self) -> str:
        return (
            f"a took {self.value:.4g} times as long as b ({self.confidence * 100:g} % interval {self.low:.4g} to "
            f"{self.high:.4g}, {self.rounds} rounds of {self.calls} calls, {self.a_ms:.4g} against {self.b_ms:.4g} ms)"
        )


class Pair(NamedTuple):
    """One round: milliseconds per call of either side."""

    a: float
    b: float


def run_rounds(
    take: Callable[[Side], float],
    sides: Sequence[Side],
    rounds: int,
    is_sufficient: Callable[[Sequence[Mapping[Side, float]]], bool],
) -> list[dict[Side, float]]:
    """Run rounds until they are sufficient, but at most `rounds`.

    Args:
        take: times one sample of a side and returns milliseconds per call.
        sides: what is timed. The order rotates from round to round, so that warming or cooling of the GPU affects each
            side equally.
        rounds: most rounds.
        is_sufficient: whether the rounds so far show the result; called when each side was first equally often.
    """
    taken: list[dict[Side, float]] = []
    while len(taken) < rounds:
        turn = len(taken) % len(sides)
        taken.append({side: take(side) for side in (*sides[turn:], *sides[:turn])})
        if len(taken) >= MIN_ROUNDS and len(taken) % len(sides) == 0 and is_sufficient(taken):
            break
    return taken


def interim_estimate(samples: Sequence[float]) -> Estimate:
    """Return the median, with an interval that holds although it is computed repeatedly while rounds run."""
    return median_estimate(samples, _INTERIM_CONFIDENCE)


def ratio_estimate(pairs: Sequence[Pair], calls: int) -> Estimate:
    """Return the ratio from pairs of samples of `calls` calls, with its interval."""
    found = interim_estimate([pair.a / pair.b for pair in pairs])
    edges = sum(EDGE_MS / (calls * median(times)) for times in zip(*pairs, strict=True))
    return replace(found, low=max(0.0, found.low * (1 - edges)), high=found.high * (1 + edges))


def ratio_of(pairs: Sequence[Pair], calls: int, tolerance: float) -> Ratio:
    """Return the ratio from `pairs`."""
    estimate = ratio_estimate(pairs, calls)
    return Ratio(
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        rounds=len(pairs),
        outcome="measured" if _is_tight(estimate, tolerance) else "too noisy to tell",
        calls=calls,
        a_ms=median(pair.a for pair in pairs),
        b_ms=median(pair.b for pair in pairs),
    )


def _is_tight(estimate: Estimate, tolerance: float) -> bool:
    return estimate.high - estimate.low <= tolerance * estimate.value


def with_disturbance(found: Compared, disturbance: Disturbance) -> Compared:
    """Return a result with what NVML saw meanwhile; its interval is unbounded if that invalidates it."""
    if not disturbance.invalidates:
        return replace(found, note=disturbance.note)
    low, high = found.UNBOUNDED
    return replace(found, low=low, high=high, outcome="too noisy to tell", note=disturbance.note)


def measure_ratio(
    a: Callable[[], object],
    b: Callable[[], object],
    *,
    rounds: int = ROUNDS,
    warmup: int = 3,
    calls: int | None = None,
    tolerance: float = TOLERANCE,
) -> Ratio:
    """Time `a` and `b` alternately on the current GPU; see :meth:`pytest_gpusync.plugin.fixtures.GpuElapsed.ratio`."""

    def is_sufficient(taken: Sequence[Mapping[str, float]], number: int) -> bool:
        return _is_tight(ratio_estimate([Pair(**one) for one in taken], number), tolerance)

    taken, number, disturbance = measure_rounds(
        {"a": a, "b": b}, rounds=rounds, warmup=warmup, calls=calls, is_sufficient=is_sufficient
    )
    return with_disturbance(ratio_of([Pair(**one) for one in taken], number, tolerance), disturbance)


def measure_rounds(
    sides: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int,
    calls: int | None,
    is_sufficient: Callable[[Sequence[Mapping[str, float]], int], bool],
) -> tuple[list[dict[str, float]], int, Disturbance]:
    """Time sides alternately on the current GPU.

    Args:
        sides: what is timed, by name.
        rounds: most rounds.
        warmup: calls of each side before anything is timed.
        calls: calls of a side in one sample; None for as many as take 10 ms, at least three.
        is_sufficient: whether the rounds so far, in samples of this many calls, show the result.

    Returns:
        The rounds in milliseconds per call, the calls in each sample, and what NVML saw meanwhile.
    """
    from pytest_gpusync.machine.nvml import monitor_current_gpu
    from pytest_gpusync.measure.recording import uncounted

    names = list(sides)

    def take(name: str) -> float:
        if name == names[0]:
            watch.sample()
        return time_per_call(sides[name], number)

    with uncounted(), no_garbage_collection():
        for _ in range(warmup):
            for side in sides.values():
                side()
        wait_until_idle()
        number = calls if calls is not None else calls_per_sample(sides.values())
        watch = monitor_current_gpu()
        try:
            taken = run_rounds(take, names, rounds, lambda taken: is_sufficient(taken, number))
        finally:
            disturbance = watch.close()
    return taken, number, disturbance


def calls_per_sample(sides: Iterable[Callable[[], object]]) -> int:
    """Return how many calls one sample needs for the shortest side to take long enough."""
    shortest = min(time_per_call(side, 1) for side in sides)
    return max(_MIN_CALLS, ceil(_SAMPLE_MS / max(shortest, 1e-3)))


def time_per_call(function: Callable[[], object], calls: int) -> float:
    """Return the milliseconds per call from an idle device to the end of the work of the last of `calls` calls."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        function()
    end.record()
    wait_until_idle()
    elapsed: Any = start.elapsed_time(end)
    # An event has a resolution of half a microsecond; a ratio of two zeros would be undefined.
    return max(float(elapsed), 1e-3) / calls


def wait_until_idle() -> None:
    """Wait until the device is idle. No region counts this wait."""
    import torch

    from pytest_gpusync.measure.recording import uncounted

    with uncounted():
        torch.cuda.synchronize()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect garbage now, and not inside the ``with`` block."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
