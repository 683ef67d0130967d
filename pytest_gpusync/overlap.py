"""How much of two pieces of work a program runs at the same time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpusync.estimates import median_estimate
from pytest_gpusync.pairs import LEAST_ROUNDS, calls_of, no_garbage_collection, sample, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpusync.nvml import Disturbance
    from pytest_gpusync.pairs import Outcome

TOLERANCE: Final = 0.1
"""Width of the interval, as a part of the shorter piece of work, at which a measurement is complete."""

SIDES: Final = ("a", "b", "both")


class Triple(NamedTuple):
    """One round: milliseconds per call of `a`, of `b`, and of both together."""

    a: float
    b: float
    both: float

    @property
    def overlap(self) -> float:
        """The part of the shorter that ran while the other did: 0 one after the other, 1 all of it."""
        return (self.a + self.b - self.both) / min(self.a, self.b)


@dataclass(frozen=True, slots=True, repr=False)
class Overlap:
    """The part of the shorter of two pieces of work that ran while the other did."""

    value: float
    """Median over the rounds: 0 if one ran after the other, 1 if the shorter cost no time. Below 0 the two are slower
    together than one after the other."""
    low: float
    high: float
    """The truth lies between `low` and `high` with the stated confidence; minus and plus infinity where the machine
    was disturbed (see `note`)."""
    rounds: int
    outcome: Outcome
    confidence: float
    a_ms: float
    """Median milliseconds per call."""
    b_ms: float
    both_ms: float
    note: str | None = None
    """What NVML saw of throttling and other processes; None if nothing."""

    def __repr__(self) -> str:
        text = (
            f"{self.value * 100:.0f} % of the shorter overlaps ({self.confidence * 100:g} % interval "
            f"{self.low * 100:.0f} to {self.high * 100:.0f} %, {self.rounds} rounds; a {self.a_ms:.4g}, "
            f"b {self.b_ms:.4g}, both {self.both_ms:.4g} ms)"
        )
        if self.outcome == "too noisy to tell":
            text = f"too noisy to tell: {text}"
        return f"{text}; {self.note}" if self.note else text


def overlap_of(rounds: Sequence[Triple], tolerance: float, disturbance: Disturbance) -> Overlap:
    """Return the overlap that the rounds give; nothing can be claimed of it if the machine was disturbed."""
    estimate = median_estimate([one.overlap for one in rounds])
    found = Overlap(
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        rounds=len(rounds),
        outcome="measured" if estimate.high - estimate.low <= tolerance else "too noisy to tell",
        confidence=estimate.confidence,
        a_ms=median(one.a for one in rounds),
        b_ms=median(one.b for one in rounds),
        both_ms=median(one.both for one in rounds),
        note=disturbance.note,
    )
    return replace(found, low=-inf, high=inf, outcome="too noisy to tell") if disturbance.spoils else found


def measure_overlap(
    a: Callable[[], object],
    b: Callable[[], object],
    both: Callable[[], object],
    *,
    rounds: int,
    warmup: int,
    calls: int | None,
    tolerance: float,
) -> Overlap:
    """Time the three in turn on the current GPU; see :meth:`pytest_gpusync.fixtures.GpuElapsed.overlap`."""
    from pytest_gpusync.measure import aside
    from pytest_gpusync.nvml import watch_current

    sides = dict(zip(SIDES, (a, b, both), strict=True))
    found: list[Triple] = []
    with aside(), no_garbage_collection():
        for _ in range(warmup):
            for side in sides.values():
                side()
        settle()
        number = calls if calls is not None else calls_of(sides.values())
        watch = watch_current()
        try:
            while len(found) < rounds:
                watch.look()
                # The order turns from round to round: what warms or cools the GPU falls on each alike.
                turn = len(found) % len(SIDES)
                taken = {side: sample(sides[side], number) for side in (*SIDES[turn:], *SIDES[:turn])}
                found.append(Triple(**taken))
                if len(found) >= LEAST_ROUNDS and len(found) % len(SIDES) == 0 and _is_tight(found, tolerance):
                    break
        finally:
            disturbance = watch.close()
    return overlap_of(found, tolerance, disturbance)


def _is_tight(found: Sequence[Triple], tolerance: float) -> bool:
    estimate = median_estimate([one.overlap for one in found])
    return estimate.high - estimate.low <= tolerance
