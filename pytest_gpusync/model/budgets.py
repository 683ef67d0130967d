"""Budgets and verdicts: pure functions of a measurement.

A sync budget limits the syncs of one step, in the worst step after warm-up; a region without steps is one step. Budgets
of memory and time are compared with an estimate and its interval: they fail only if the whole interval lies beyond the
limit, and are undecided if the limit lies inside it. What was not measured satisfies no budget: it has neither passed
nor is it zero.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import ceil
from statistics import median
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple

from pytest_gpusync.model import memory_growth, sizes, step_times
from pytest_gpusync.model.estimates import MIN_SAMPLES, Estimate
from pytest_gpusync.model.line_counts import counted_per_step, line_counts, measured_steps
from pytest_gpusync.model.measurement import PER_REQUEST, PER_TOKEN, RETURN_OF

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.model.line_counts import LineCount
    from pytest_gpusync.model.measurement import Measurement

Outcome = Literal["passed", "failed", "not_measured", "undecided"]
"""``undecided``: the estimate is too uncertain to show on which side of the limit the true value lies."""

WHOLE_REGION: Final = "whole region"
"""``Measurement.step_source`` of a region without steps."""

MAX_COUNTS_LISTED: Final = 4
"""Most different numbers of syncs per step that a sentence lists."""

_OVER: Final = re.compile(r"\s*(\d+)\s+in\s+(\d+)\s*", re.ASCII)


class Over(NamedTuple):
    """Steps that may exceed a limit: at most `steps` of any `of` consecutive ones."""

    steps: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Over:
        """Read "1 in 10".

        Raises:
            ValueError: it is something else.
        """
        found = _OVER.fullmatch(text) if isinstance(text, str) else None
        if found is None or not 0 < int(found[1]) < int(found[2]):
            raise ValueError(f'over of a sync budget is a share of the steps such as "1 in 10", not {text!r}')
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.steps} in {self.of}"


_GROUP: Final = re.compile(r"(?P<path>.+?)(?:::(?P<function>[\w.<>]+)|:(?P<first>\d+)(?:-(?P<last>\d+))?)?", re.ASCII)


class LineGroup(NamedTuple):
    """Lines of the project: of files, of a function, or between two line numbers."""

    text: str
    """As written: "train.py", "models/*.py", "train.py:10-40", "train.py::Trainer.step"."""
    path: str
    """A pattern, as for :func:`fnmatch.fnmatchcase`."""
    function: str | None = None
    first: int | None = None
    last: int | None = None

    @classmethod
    def parse(cls, text: str) -> LineGroup:
        """Read a group.

        Raises:
            ValueError: it is something else.
        """
        found = _GROUP.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ValueError(
                'within of a sync budget is lines such as "train.py", "models/*.py", "train.py:10-40" or '
                f'"train.py::Trainer.step", not {text!r}'
            )
        first = None if found["first"] is None else int(found["first"])
        last = first if found["last"] is None else int(found["last"])
        return cls(text, found["path"], found["function"], first, last)

    def has(self, line: LineCount) -> bool:
        """Return whether a line belongs to the group."""
        if not fnmatchcase(line.path, self.path):
            return False
        if self.function is not None:
            return line.function == self.function or line.function.endswith(f".{self.function}")
        return self.first is None or (self.last is not None and self.first <= line.line <= self.last)


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on the syncs of one step: at most `max`, or exactly `exact`.

    By default it applies to every step. With `percentile`, at least this share of the steps, in percent, keeps `max`.
    With `over`, some steps may exceed `max`, such as those that log.
    """

    max: int | None = None
    exact: int | None = None
    source: str = "budget"
    """Who set it, for reports: "marker gpu_sync_budget", "--gpu-sync-budget", "assert_syncs"."""
    percentile: float | None = None
    """Above 0, up to 100."""
    over: Over | None = None
    within: LineGroup | None = None
    """The only lines whose syncs count; None for all."""
    quantity: ClassVar[str] = "syncs"

    def __post_init__(self) -> None:
        if (self.max is None) == (self.exact is None):
            given = "neither" if self.max is None else "both"
            raise ValueError(f"a sync budget takes either max or exact, not {given}")
        for name, value in (("max", self.max), ("exact", self.exact)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ValueError(f"{name} of a sync budget must be an integer of at least 0, not {value!r}")
        if self.max is None and (self.percentile is not None or self.over is not None):
            raise ValueError("percentile and over of a sync budget go with max")
        if self.percentile is not None and self.over is not None:
            raise ValueError("a sync budget takes either percentile or over, not both")
        if self.percentile is not None and not _is_percentile(self.percentile):
            raise ValueError(f"percentile of a sync budget is a number above 0 and up to 100, not {self.percentile!r}")

    def holds(self, counts: Sequence[int]) -> bool:
        """Return whether steps with these numbers of syncs, in order, keep the budget."""
        if self.over is not None:
            return self.most_over(counts)[0] <= self.over.steps
        if self.percentile is not None:
            return self.excess(_nearest_rank(counts, self.percentile)) <= 0
        return all(self.excess(syncs) <= 0 for syncs in counts)

    def most_over(self, counts: Sequence[int]) -> tuple[int, int]:
        """Return how many steps exceed `max` in the worst run of ``over.of`` consecutive steps, and where it begins."""
        assert self.over is not None
        window = min(self.over.of, len(counts))
        runs = range(len(counts) - window + 1)
        exceeding = [sum(self.excess(syncs) > 0 for syncs in counts[start : start + window]) for start in runs]
        most = max(exceeding)
        return most, exceeding.index(most)

    def excess(self, syncs: int) -> int:
        """Return how far `syncs` lies beyond the limit, in either direction for an exact one; above 0 breaks the
        budget.
        """
        if self.exact is not None:
            return abs(syncs - self.exact)
        assert self.max is not None
        return syncs - self.max

    def __str__(self) -> str:
        if self.over is not None:
            return f"budget {self.max} but for {self.over} steps"
        if self.percentile is not None:
            return f"budget {self.max} at percentile {self.percentile:g}"
        return f"budget {self.max}" if self.exact is None else f"expected exactly {self.exact}"


def _is_percentile(value: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 100


def _nearest_rank(counts: Sequence[int], percentile: float) -> int:
    return sorted(counts)[ceil(len(counts) * percentile / 100) - 1]


@dataclass(frozen=True, slots=True)
class GrowthBudget:
    """A limit on the growth of memory from step to step."""

    max: int
    """Bytes per step."""
    of: memory_growth.MemoryKind = "allocated"
    source: str = "budget"
    exact: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.of not in memory_growth.MEMORY_KINDS:
            raise ValueError(f"of must be {' or '.join(map(repr, memory_growth.MEMORY_KINDS))}, not {self.of!r}")

    @classmethod
    def parse(cls, size: int | str, of: memory_growth.MemoryKind = "allocated", source: str = "budget") -> GrowthBudget:
        """Return a budget of `size` per step, such as "1 MiB".

        Raises:
            ValueError: `size` is not a size, or `of` not a kind of memory.
        """
        return cls(sizes.parse_size(size), of, source)

    @property
    def quantity(self) -> str:
        """The limited quantity, by its name in the run file."""
        return f"{self.of}_growth"

    def __str__(self) -> str:
        return f"budget {sizes.format_size(self.max)}"


def _is_positive(value: object) -> bool:
    """Return whether a value is a finite number above 0."""
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 < value < float("inf")


@dataclass(frozen=True, slots=True)
class DispatchBudget:
    """A limit on the time to issue a step, as a share of the time to complete it."""

    max: float
    source: str = "budget"
    quantity: ClassVar[str] = "dispatch_ratio"
    exact: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not _is_positive(self.max):
            raise ValueError(f"max of a dispatch ratio must be a number above 0, such as 0.5, not {self.max!r}")

    def __str__(self) -> str:
        return f"budget {self.max:g}"


@dataclass(frozen=True, slots=True)
class LatencyBudget:
    """A limit on the time of a step of inference, in milliseconds."""

    max: float
    source: str = "budget"
    quantity: ClassVar[str] = "latency_ms"
    exact: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not _is_positive(self.max):
            raise ValueError(f"max of a latency must be a number of milliseconds above 0, not {self.max!r}")

    def __str__(self) -> str:
        return f"budget {self.max:g} ms"


@dataclass(frozen=True, slots=True)
class FlightBudget:
    """A limit on the steps that the host has issued and the device has not finished."""

    max: int
    source: str = "budget"
    quantity: ClassVar[str] = "in_flight"
    exact: ClassVar[None] = None

    def __post_init__(self) -> None:
        if isinstance(self.max, bool) or not isinstance(self.max, int) or self.max < 1:
            raise ValueError(f"max of steps in flight must be an integer of at least 1, not {self.max!r}")

    def __str__(self) -> str:
        return f"budget {self.max}"


@dataclass(frozen=True, slots=True)
class RaceBudget:
    """No race may be found. It comes with every other budget, on the simulated device."""

    source: str = "--gpu-races"
    quantity: ClassVar[str] = "races"
    max: ClassVar[int] = 0
    exact: ClassVar[None] = None

    def __str__(self) -> str:
        return "none allowed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of comparing a measurement with a budget."""

    outcome: Outcome
    sentence: str
    budget: Budget | GrowthBudget | DispatchBudget | LatencyBudget | FlightBudget | RaceBudget
    syncs: int | None = None
    """Syncs of the worst measured step; None if nothing was measured."""
    step: int | None = None
    """Index of that step, counting warm-up."""
    offenders: tuple[LineCount, ...] = ()
    """For a failed budget, the lines that made the syncs of that step, ordered by their syncs in it."""
    uncounted: tuple[LineCount, ...] = ()
    """Lines that were allowed or ran on other threads: reported, not counted."""
    estimate: Estimate | None = None
    """For a budget of memory or time, the estimate; None if nothing was measured."""


class BudgetExceeded(AssertionError):
    """A budget was broken. The text is the sentence and, for syncs, the lines that made them."""

    def __init__(self, text: str, verdict: Verdict) -> None:
        super().__init__(text)
        self.verdict = verdict


class NotMeasured(AssertionError):
    """A budget could not be decided, usually because nothing was measured. Not measured is not zero."""


def judge(measurement: Measurement, budget: Budget, *, subject: str = "Region") -> Verdict:
    """Compare `measurement` with `budget`.

    Args:
        measurement: a closed region.
        budget: the limit for each measured step.
        subject: what the sentence calls a region without steps: "Test made 7 syncs".
    """
    problem = why_not_measured(measurement) or why_unused(measurement)
    if problem is not None:
        return Verdict("not_measured", f"Not measured: {problem}", budget)
    found = [line for line in line_counts(measurement) if budget.within is None or budget.within.has(line)]
    counts = counted_per_step(found, measurement)
    worst = max(range(len(counts)), key=lambda index: budget.excess(counts[index]))
    passed = budget.holds(counts)
    offenders = [] if passed else [line for line in found if line.counted and line.by_step[worst]]
    return Verdict(
        outcome="passed" if passed else "failed",
        sentence=_sentence(measurement, budget, counts, worst, subject),
        budget=budget,
        syncs=counts[worst],
        step=measured_steps(measurement)[worst],
        offenders=tuple(sorted(offenders, key=lambda line: -line.by_step[worst])),
        uncounted=tuple(line for line in found if not line.counted and any(line.by_step)),
    )


def judge_growth(measurement: Measurement, budget: GrowthBudget) -> Verdict:
    """Compare the growth of memory over the steps after warm-up with `budget`."""
    estimate = memory_growth.growth(measurement, budget.of)
    if estimate is None or (budget.of != "host" and not measurement.device_used):
        return Verdict("not_measured", f"Not measured: {_why_no_growth(measurement, budget)}", budget)
    outcome = _decide(estimate, budget.max)
    unit = sizes.unit_of(max(abs(estimate.value), abs(estimate.low), abs(estimate.high)))
    value, low, high = (sizes.format_number(part, unit) for part in (estimate.value, estimate.low, estimate.high))
    text = (
        f"{budget.of.capitalize()} memory grew {value} {unit} per step, {budget} "
        f"(slope over {_steps_text(measurement)}, {_confidence(estimate)} interval {low} to {high} {unit})"
    )
    return Verdict(outcome, _sentence_of(outcome, text), budget, estimate=estimate)


_PROCESS_HINT: Final = "gpu_train(..., process=True) queries the driver, and NVML must list this process"


def judge_dispatch(measurement: Measurement, budget: DispatchBudget) -> Verdict:
    """Compare the dispatch ratio (time to issue divided by time to complete) of the steps after warm-up
    with `budget`.
    """
    estimate = step_times.dispatch_ratio(measurement)
    if estimate is None or estimate.samples < MIN_SAMPLES:
        return Verdict("not_measured", f"Not measured: {_why_no_dispatch(measurement)}", budget)
    outcome = _decide(estimate, budget.max)
    text = (
        f"Time to issue was {estimate.value:.2f} of time to complete, {budget} "
        f"(median of {_steps_text(measurement)}, {_confidence(estimate)} interval "
        f"{estimate.low:.2f} to {estimate.high:.2f})"
    )
    if measurement.disturbance is not None and measurement.disturbance.invalidates:
        text = f"Undecided: {measurement.disturbance.note}. {text}"
        return Verdict("undecided", text, budget, estimate=estimate)
    if outcome == "failed" and step_times.launch_queue_may_be_full(measurement):
        waited = "the host ran so far ahead that launches may have waited for room in the driver's queue"
        return Verdict("undecided", f"Undecided: {waited}. {text}", budget, estimate=estimate)
    return Verdict(outcome, _sentence_of(outcome, text), budget, estimate=estimate)


def judge_latency(measurement: Measurement, budget: LatencyBudget) -> Verdict:
    """Compare the median time of the steps after warm-up with `budget`."""
    estimate = step_times.latency_ms(measurement)
    if estimate is None or estimate.samples < MIN_SAMPLES:
        few = _why_too_few("the latency", measurement)
        is_few = few is not None and measurement.environment.device != "simulated"
        return Verdict("not_measured", f"Not measured: {few if is_few else _why_not_timed(measurement)}", budget)
    outcome = _decide(estimate, budget.max)
    unit = unit_of(measurement)
    text = (
        f"A {unit} took {estimate.value:.3g} ms, {budget} (median of {_steps_text(measurement)}, "
        f"{_confidence(estimate)} interval {estimate.low:.3g} to {estimate.high:.3g} ms)"
    )
    if measurement.disturbance is not None and measurement.disturbance.invalidates:
        text = f"Undecided: {measurement.disturbance.note}. {text}"
        return Verdict("undecided", text, budget, estimate=estimate)
    return Verdict(outcome, _sentence_of(outcome, text), budget, estimate=estimate)


def judge_in_flight(measurement: Measurement, budget: FlightBudget) -> Verdict:
    """Compare the most steps in flight, when a step after warm-up returned, with `budget`."""
    most = step_times.most_in_flight(measurement)
    if most is None:
        return Verdict("not_measured", f"Not measured: {_why_not_timed(measurement)}", budget)
    text = (
        f"{most} {'step was' if most == 1 else 'steps were'} in flight, {budget} (most of {_steps_text(measurement)})"
    )
    exact = Estimate(most, most, most, len(measured_steps(measurement)), 1.0)
    return Verdict("failed" if most > budget.max else "passed", text, budget, estimate=exact)


def judge_races(measurement: Measurement, budget: RaceBudget) -> Verdict | None:
    """Compare the races of `measurement` with `budget`; None if races were not checked."""
    if measurement.races is None:
        return None
    found = len(measurement.races)
    exact = Estimate(found, found, found, 1, 1.0)
    if not found:
        return Verdict("passed", "No races", budget, estimate=exact)
    first = measurement.races[0].message
    text = f"A race: {first}" if found == 1 else f"{found} races. The first: {first}"
    return Verdict("failed", text, budget, estimate=exact)


def _decide(estimate: Estimate, limit: float) -> Outcome:
    if estimate.low > limit:
        return "failed"
    return "passed" if estimate.high <= limit else "undecided"


def _sentence_of(outcome: Outcome, text: str) -> str:
    return f"Too noisy to tell: {text[0].lower()}{text[1:]}" if outcome == "undecided" else text


def _confidence(estimate: Estimate) -> str:
    return f"{estimate.confidence * 100:g} %"


def _steps_text(measurement: Measurement) -> str:
    steps = len(measured_steps(measurement))
    return f"{steps} {unit_of(measurement)}s{' after warm-up' if measurement.warmup else ''}"


def _why_no_growth(measurement: Measurement, budget: GrowthBudget) -> str:
    return (
        _why_too_few("memory growth", measurement)
        or (measurement.memory is None and "memory was not sampled in this region")
        or why_unused(measurement)
        or (budget.of == "process" and f"process memory is not known here: {_PROCESS_HINT}")
        or f"{budget.of} memory is not counted here"
    )


def _why_no_dispatch(measurement: Measurement) -> str:
    few = _why_too_few("the dispatch ratio", measurement)
    return few if few and measurement.environment.device != "simulated" else _why_not_timed(measurement)


def _why_not_timed(measurement: Measurement) -> str:
    if measurement.environment.device == "simulated":
        return step_times.SIMULATED
    return (
        measurement.timing is None and "the steps of this region were not timed on a device"
    ) or "CUDA was initialized inside a step after warm-up"


def _why_too_few(what: str, measurement: Measurement) -> str | None:
    """Return why there are too few steps for an estimate, as a clause; None if there are enough."""
    if measurement.step_source == WHOLE_REGION:
        return f"{what} needs steps, and none was seen: optimizer.step(), mark_step() and gpu_train end one"
    ran = len(measured_steps(measurement))
    if ran >= MIN_SAMPLES:
        return None
    return f"{what} needs {MIN_SAMPLES} steps after warm-up, and {ran} ran (warm-up took {measurement.warmup})"


def why_not_measured(measurement: Measurement) -> str | None:
    """Return why `measurement` can satisfy no budget, as a clause; None if it can."""
    if measurement.problem is not None:
        return measurement.problem
    if not measurement.complete:
        return "the recorder stopped before the region ended"
    if not measured_steps(measurement):
        return f"no step was measured: {measurement.steps} ran, and warm-up takes {measurement.warmup}"
    return None


NOTHING_RAN: Final = "nothing ran on the device"


def why_unused(measurement: Measurement) -> str | None:
    """Return why `measurement` counted nothing that ran on the device, as a clause; None if it did."""
    if measurement.device_used:
        return None
    return measurement.unused or NOTHING_RAN


_UNITS: Final = {PER_REQUEST: "request", PER_TOKEN: "token"}


def unit_of(measurement: Measurement) -> str:
    """Return what a step of `measurement` is called: "step", "request" or "token"."""
    return _UNITS.get(measurement.step_source, "step")


def _step_noun(measurement: Measurement) -> str:
    """Return what a step is called where nothing else says that it is one of training."""
    unit = unit_of(measurement)
    return "training step" if unit == "step" and not measurement.step_source.startswith(RETURN_OF) else unit


def _sentence(measurement: Measurement, budget: Budget, counts: Sequence[int], worst: int, subject: str) -> str:
    """Return the outcome of a sync budget, given the syncs of each measured step and which step was the worst."""
    where = "" if budget.within is None else f" in {budget.within.text}"
    made = f"made {counts[worst]} {'sync' if counts[worst] == 1 else 'syncs'}{where}, {budget}"
    if measurement.step_source == WHOLE_REGION:
        return f"{subject} {made}"
    if budget.over is not None or budget.percentile is not None:
        return _sentence_of_most_steps(measurement, budget, counts)
    unit = unit_of(measurement)
    which = f"worst of {len(counts)} {unit}s" if len(counts) > 1 else f"1 {unit}"
    after = " after warm-up" if measurement.warmup else ""
    varied = ""
    if len(set(counts)) > 1:
        number = measured_steps(measurement)[worst] + 1
        varied = f": {unit} {number} of {measurement.steps}; {_distribution(counts)}"
    return f"{_step_noun(measurement).capitalize()} {made} ({which}{after}{varied})"


def _sentence_of_most_steps(measurement: Measurement, budget: Budget, counts: Sequence[int]) -> str:
    """Return the outcome of a budget that some steps may exceed."""
    made = f"{_steps_text(measurement)}: {_distribution(counts)}"
    if budget.over is None:
        assert budget.percentile is not None
        reached = _nearest_rank(counts, budget.percentile)
        step = _step_noun(measurement)
        return f"Percentile {budget.percentile:g} of the syncs of a {step} was {reached}, {budget} ({made})"
    exceeding, start = budget.most_over(counts)
    window = min(budget.over.of, len(counts))
    first = measured_steps(measurement)[start] + 1
    where = f"{unit_of(measurement)}s {first} to {first + window - 1} of {measurement.steps}"
    return (
        f"{exceeding} of {window} consecutive {_step_noun(measurement)}s made more than "
        f"{budget.max} {'sync' if budget.max == 1 else 'syncs'}, {budget} ({where}; {made})"
    )


def _distribution(counts: Sequence[int]) -> str:
    """Return how many steps made how many syncs: "2 steps made 1, 3 steps made 2"."""
    steps = Counter(counts)
    if len(steps) > MAX_COUNTS_LISTED:
        return f"the steps made {min(counts)} to {max(counts)}, median {median(counts):g}"
    return ", ".join(
        f"{number} {'step' if number == 1 else 'steps'} made {syncs}" for syncs, number in sorted(steps.items())
    )
