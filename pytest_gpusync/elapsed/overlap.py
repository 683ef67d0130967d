"""How much of two pieces of work a program runs at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpusync.elapsed.paired import Comparison, interim_estimate, measure_rounds, with_disturbance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpusync.model.estimates import Estimate
    from pytest_gpusync.model.measurement import Disturbance

TOLERANCE: Final = 0.1
"""Width of the interval, as a share of the shorter piece of work, at which a measurement is complete."""


class Triple(NamedTuple):
    """One round: milliseconds per call of `a`, of `b`, and of both together."""

    a: float
    b: float
    both: float

    @property
    def overlap(self) -> float:
        """The share of the shorter piece that ran while the other did: 0 if one after the other, 1 if all of it."""
        return (self.a + self.b - self.both) / min(self.a, self.b)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Overlap(Comparison):
    """The share of the shorter of two pieces of work that ran while the other did.

    `value` is 0 if one ran after the other, 1 if the shorter one took no extra time, and below 0 if the two together
    take longer than one after the other.
    """

    both_ms: float

    def _sentence(self) -> str:
        return (
            f"{self.value * 100:.0f} % of the shorter overlaps ({self.confidence * 100:g} % interval "
            f"{self.low * 100:.0f} to {self.high * 100:.0f} %, {self.rounds} rounds; a {self.a_ms:.4g}, "
            f"b {self.b_ms:.4g}, both {self.both_ms:.4g} ms)"
        )


def overlap_of(rounds: Sequence[Triple], tolerance: float, disturbance: Disturbance) -> Overlap:
    """Return the overlap that the rounds show. If the machine was disturbed, its interval is unbounded."""
    estimate = interim_estimate([one.overlap for one in rounds])
    found = Overlap(
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        rounds=len(rounds),
        outcome="measured" if _is_tight(estimate, tolerance) else "too noisy to tell",
        a_ms=median(one.a for one in rounds),
        b_ms=median(one.b for one in rounds),
        both_ms=median(one.both for one in rounds),
    )
    return with_disturbance(found, disturbance)


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
    """Time the three alternately on the current GPU; see :meth:`pytest_gpusync.plugin.fixtures.GpuElapsed.overlap`."""

    def is_sufficient(taken: Sequence[Mapping[str, float]], _: int) -> bool:
        return _is_tight(interim_estimate([Triple(**one).overlap for one in taken]), tolerance)

    taken, _, disturbance = measure_rounds(
        {"a": a, "b": b, "both": both}, rounds=rounds, warmup=warmup, calls=calls, is_sufficient=is_sufficient
    )
    return overlap_of([Triple(**one) for one in taken], tolerance, disturbance)


def _is_tight(estimate: Estimate, tolerance: float) -> bool:
    return estimate.high - estimate.low <= tolerance
