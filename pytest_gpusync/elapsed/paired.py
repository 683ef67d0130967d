"""Elapsed times against each other, from rounds in which each side has its turn; the ratio of two.

Two runs of the same code on a shared machine differ by 4 to 11 %. So all sides are timed in turn, the order changing
from round to round, and the median of what the rounds say is taken: what slows all for a while cancels out.
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
"""Rounds after which an interval that is still wide is given up, unless told otherwise."""

TOLERANCE: Final = 0.02
"""Width of the interval, as a part of the ratio, at which a measurement is complete, unless told otherwise."""

LEAST_ROUNDS: Final = 12
"""Rounds before an interval is looked at."""

EDGE_MS: Final = 0.012
"""What a sample may hold besides its work: on an idle H200 the first launch takes 9 to 12 us to arrive. The interval of
a ratio is widened by as much, for a difference that small is none of the work's."""

_LOOK_CONFIDENCE: Final = 0.999
"""Of each look at an interval. Rounds end when one is narrow, so it is looked at again and again: the stated confidence
holds for all looks together if each has more."""

_LEAST_CALLS: Final = 3
"""Calls in one sample: from the second on, the host may run ahead of the device as it does in a training loop."""
_SAMPLE_MS: Final = 10.0
"""Least time of one sample: what starting and ending it costs is small against this."""

Side = TypeVar("Side", bound=str)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Comparison:
    """What rounds of timing say, with an interval."""

    NOTHING: ClassVar[tuple[float, float]] = (-inf, inf)
    """The interval that claims nothing."""

    value: float
    """Median over the rounds."""
    low: float
    high: float
    """The truth lies between `low` and `high` with the stated confidence. Where the machine was disturbed (see `note`)
    they are the ends of all there can be: nothing can be claimed."""
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

    NOTHING: ClassVar[tuple[float, float]] = (0.0, inf)

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


def take_rounds(
    take: Callable[[Side], float],
    sides: Sequence[Side],
    rounds: int,
    is_enough: Callable[[Sequence[Mapping[Side, float]]], bool],
) -> list[dict[Side, float]]:
    """Take rounds until they are enough, `rounds` of them at most.

    Args:
        take: takes one sample of a side: milliseconds per call.
        sides: what is timed. The order turns from round to round: what warms or cools the GPU falls on each alike.
        rounds: rounds to take at most.
        is_enough: whether these tell what is to be told; asked when each side was first as often as the others.
    """
    taken: list[dict[Side, float]] = []
    while len(taken) < rounds:
        turn = len(taken) % len(sides)
        taken.append({side: take(side) for side in (*sides[turn:], *sides[:turn])})
        if len(taken) >= LEAST_ROUNDS and len(taken) % len(sides) == 0 and is_enough(taken):
            break
    return taken


def look(samples: Sequence[float]) -> Estimate:
    """Return the median with the interval that looking at it after every few rounds leaves."""
    return median_estimate(samples, _LOOK_CONFIDENCE)


def ratio_estimate(pairs: Sequence[Pair], calls: int) -> Estimate:
    """Return the ratio that pairs of samples of so many calls give, with its interval."""
    found = look([pair.a / pair.b for pair in pairs])
    edges = sum(EDGE_MS / (calls * median(times)) for times in zip(*pairs, strict=True))
    return replace(found, low=max(0.0, found.low * (1 - edges)), high=found.high * (1 + edges))


def ratio_of(pairs: Sequence[Pair], calls: int, tolerance: float) -> Ratio:
    """Return the ratio that `pairs` give."""
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


def disturbed(found: Compared, disturbance: Disturbance) -> Compared:
    """Return what was found with what NVML saw meanwhile; nothing can be claimed from it if that spoils it."""
    if not disturbance.spoils:
        return replace(found, note=disturbance.note)
    low, high = found.NOTHING
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
    """Time `a` against `b` on the current GPU; see :meth:`pytest_gpusync.plugin.fixtures.GpuElapsed.ratio`."""

    def is_enough(taken: Sequence[Mapping[str, float]], number: int) -> bool:
        return _is_tight(ratio_estimate([Pair(**one) for one in taken], number), tolerance)

    taken, number, disturbance = measure_rounds(
        {"a": a, "b": b}, rounds=rounds, warmup=warmup, calls=calls, is_enough=is_enough
    )
    return disturbed(ratio_of([Pair(**one) for one in taken], number, tolerance), disturbance)


def measure_rounds(
    sides: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int,
    calls: int | None,
    is_enough: Callable[[Sequence[Mapping[str, float]], int], bool],
) -> tuple[list[dict[str, float]], int, Disturbance]:
    """Time sides in turn on the current GPU.

    Args:
        sides: what is timed, by name.
        rounds: most rounds.
        warmup: calls of each side before anything is timed.
        calls: calls of a side in one sample; None: as many as take 10 ms, and at least three.
        is_enough: whether the rounds taken, in samples of so many calls, tell what is to be told.

    Returns:
        the rounds in milliseconds per call, the calls in each sample, and what NVML saw meanwhile.
    """
    from pytest_gpusync.machine.nvml import watch_current
    from pytest_gpusync.measure.recording import uncounted

    names = list(sides)

    def take(name: str) -> float:
        if name == names[0]:
            watch.look()
        return sample(sides[name], number)

    with uncounted(), no_garbage_collection():
        for _ in range(warmup):
            for side in sides.values():
                side()
        settle()
        number = calls if calls is not None else calls_of(sides.values())
        watch = watch_current()
        try:
            taken = take_rounds(take, names, rounds, lambda taken: is_enough(taken, number))
        finally:
            disturbance = watch.close()
    return taken, number, disturbance


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

    from pytest_gpusync.measure.recording import uncounted

    with uncounted():
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
