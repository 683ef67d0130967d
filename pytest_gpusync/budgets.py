"""Budgets and verdicts: pure functions over a measurement.

A budget limits the syncs of one step, in the worst step after warm-up; a region without steps is one step. What was not
measured keeps no budget: it is neither passed nor zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pytest_gpusync.lines import counted_per_step, lines, measured_steps

if TYPE_CHECKING:
    from pytest_gpusync.events import Measurement
    from pytest_gpusync.lines import Line

Outcome = Literal["passed", "failed", "not_measured"]

WHOLE_REGION: Final = "whole region"
"""``Measurement.step_source`` of a region in which no step was told apart."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on the syncs of one step: either at most `max` or exactly `exact`."""

    max: int | None = None
    exact: int | None = None
    source: str = "budget"
    """Who set it, for reports: "marker", "--gpu-sync-budget", "assert_syncs"."""

    def __post_init__(self) -> None:
        if (self.max is None) == (self.exact is None):
            given = "neither" if self.max is None else "both"
            raise ValueError(f"a sync budget takes either max or exact, and was given {given}")
        for name, value in (("max", self.max), ("exact", self.exact)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ValueError(f"{name} of a sync budget is a whole number from 0 on, not {value!r}")

    def excess(self, syncs: int) -> int:
        """Return how far `syncs` lies beyond the limit, on either side of an exact one; above 0 is too far."""
        if self.exact is not None:
            return abs(syncs - self.exact)
        assert self.max is not None
        return syncs - self.max

    def __str__(self) -> str:
        return f"budget {self.max}" if self.exact is None else f"expected exactly {self.exact}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of holding a budget against a measurement."""

    outcome: Outcome
    sentence: str
    budget: Budget
    syncs: int | None = None
    """Syncs of the worst measured step; None when nothing was measured."""
    step: int | None = None
    """Index of that step, warm-up counted."""
    offenders: tuple[Line, ...] = ()
    """For a failed budget, the lines that made the syncs of that step, those with most syncs in it first."""
    excused: tuple[Line, ...] = ()
    """Lines that were allowed or ran on other threads: reported, not counted."""


class BudgetExceeded(AssertionError):
    """A measured step broke its sync budget. The text is the sentence and the offending lines."""

    def __init__(self, text: str, verdict: Verdict) -> None:
        super().__init__(text)
        self.verdict = verdict


class NotMeasured(AssertionError):
    """A budget was asked for and its syncs could not be counted. Not measured is not zero."""


def judge(measurement: Measurement, budget: Budget, *, subject: str = "Region") -> Verdict:
    """Hold `budget` against `measurement`.

    Args:
        measurement: a closed region.
        budget: the limit for each measured step.
        subject: how the sentence names a region without steps: "Test made 7 syncs".
    """
    problem = why_not_measured(measurement)
    if problem is not None:
        return Verdict("not_measured", f"Not measured: {problem}", budget)
    found = lines(measurement)
    counts = counted_per_step(found, measurement)
    worst = max(range(len(counts)), key=lambda index: budget.excess(counts[index]))
    passed = budget.excess(counts[worst]) <= 0
    offenders = [] if passed else [line for line in found if line.counted and line.by_step[worst]]
    return Verdict(
        outcome="passed" if passed else "failed",
        sentence=_sentence(measurement, budget, counts[worst], subject),
        budget=budget,
        syncs=counts[worst],
        step=measured_steps(measurement)[worst],
        offenders=tuple(sorted(offenders, key=lambda line: -line.by_step[worst])),
        excused=tuple(line for line in found if not line.counted and any(line.by_step)),
    )


def why_not_measured(measurement: Measurement) -> str | None:
    """Return why `measurement` can satisfy no budget, as a clause; None when it can."""
    if measurement.problem is not None:
        return measurement.problem
    if not measurement.complete:
        return "the recorder stopped before the region ended"
    if not measured_steps(measurement):
        return f"no step was measured: {measurement.steps} ran and warm-up takes {measurement.warmup}"
    return None


def _sentence(measurement: Measurement, budget: Budget, syncs: int, subject: str) -> str:
    made = f"made {syncs} {'sync' if syncs == 1 else 'syncs'}, {budget}"
    if measurement.step_source == WHOLE_REGION:
        return f"{subject} {made}"
    steps = len(measured_steps(measurement))
    which = f"worst of {steps} steps" if steps > 1 else "1 step"
    after = " after warm-up" if measurement.warmup else ""
    return f"Training step {made} ({which}{after})"
