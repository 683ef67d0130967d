"""Real training steps inside a test: what the fixture ``gpu_train`` runs, and the results."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpusync.model.budgets import (
    DispatchBudget,
    FlightBudget,
    NotMeasured,
    judge_dispatch,
    judge_growth,
    judge_in_flight,
)
from pytest_gpusync.plugin.arguments import check_numbers, checked_budget, growth_budget, sync_budget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pytest_gpusync.elapsed.in_flight import InFlightLimiter
    from pytest_gpusync.elapsed.step_clock import StepClock
    from pytest_gpusync.measure.region import Region
    from pytest_gpusync.measure.step_on import StepOn
    from pytest_gpusync.model.estimates import Estimate
    from pytest_gpusync.model.measurement import GrownLine, Measurement, SiteCount
    from pytest_gpusync.model.memory_growth import CallsPerStep, MemoryKind
    from pytest_gpusync.plugin.measured_test import MeasuredTest, RegionRecord
    from pytest_gpusync.plugin.progress import Progress

_HISTORY_STEPS = 5
"""Last steps of a run, in which allocations are recorded if memory grows: the other steps are timed without that."""


class StepFigures(NamedTuple):
    """Measurements of one step after warm-up. What was not measured is None."""

    syncs: int
    blocked_ms: float | None
    """Host time in the counted syncs."""
    issue_ms: float | None
    """Host time from the call of the step to its return."""
    complete_ms: float | None
    """Device time from the start of the step to the end of its work."""
    in_flight: int | None
    """Steps that the device had not finished when this one returned, including itself."""
    allocated: int | None
    """Bytes at the end of the step, as for the following fields."""
    reserved: int | None
    process: int | None
    host: int | None
    device_mallocs: int | None
    """Calls in the step."""
    device_frees: int | None


class TrainingRun:
    """Steps that ran, and what was measured of them."""

    def __init__(self, run: MeasuredTest, record: RegionRecord, note: str | None, busy_ms: float | None = None) -> None:
        self._run = run
        self._record = record
        self.note = note
        """Why fewer steps ran than requested, or None."""
        self.busy_ms = busy_ms
        """Median device time of the work of a step, over the traced steps; None if none was traced."""

    @property
    def measurement(self) -> Measurement:
        """The whole measurement, including warm-up."""
        return self._record.measurement

    @property
    def steps(self) -> int:
        """Steps that ran, including warm-up."""
        return self.measurement.steps

    @property
    def syncs_per_step(self) -> list[int]:
        """Syncs of each step after warm-up, in order, without allowed ones and those of other threads."""
        from pytest_gpusync.model.site_counts import syncs_per_step

        return syncs_per_step(self.measurement)

    @property
    def per_step(self) -> list[StepFigures]:
        """Measurements of each step after warm-up, in order."""
        return step_figures(self.measurement)

    @property
    def sites(self) -> list[SiteCount]:
        """The lines that synced, most syncs first."""
        from pytest_gpusync.model.site_counts import site_counts

        return site_counts(self.measurement)

    def assert_syncs(
        self,
        max: int | None = None,
        exact: int | None = None,
        *,
        percentile: float | None = None,
        over: str | None = None,
        within: str | None = None,
    ) -> None:
        """Fail the test if a step after warm-up made more than `max` syncs, or a number other than `exact`.

        Args:
            max: most syncs of a step.
            exact: syncs of each step.
            percentile: with `max`, such as 95: at least this share of the steps, in percent, keeps `max`.
            over: with `max`, such as "1 in 10": of any ten consecutive steps, one may make more.
            within: the only lines that count, such as "train.py", "models/*.py", "train.py:10-40" or
                "train.py::Trainer.step".

        Raises:
            BudgetExceeded: with the sentence and the lines that made the syncs.
            NotMeasured: the syncs could not be counted, or fewer steps ran than requested.
            ValueError: neither or both of `max` and `exact` were given, or another argument is invalid.
        """
        __tracebackhide__ = True
        budget = sync_budget(max, exact, "assert_syncs", percentile, over, within)
        self._require_all_steps()
        self._run.check_budget(self._record, budget, subject="Run")

    def _require_all_steps(self) -> None:
        """Fail the test if fewer steps ran than it requested: a limit for 20 steps is not kept by 5.

        Raises:
            NotMeasured: with both numbers.
        """
        __tracebackhide__ = True
        if self.note is not None:
            raise NotMeasured(f"Not measured: {self.note}; give more batches, or steps={self.steps}")

    def memory_growth(self, of: MemoryKind = "allocated") -> Estimate | None:
        """Return the growth of memory in bytes per step after warm-up, with an interval; None if not measured."""
        from pytest_gpusync.model.memory_growth import growth

        return growth(self.measurement, of)

    def assert_memory_growth(self, max: int | str, of: MemoryKind = "allocated") -> None:
        """Fail the test if memory certainly grew by more than `max` per step after warm-up.

        If `max` lies inside the interval of the growth, the test goes on, and the session's summary lists it as
        undecided; with ``--gpu-require`` it fails.

        Args:
            max: bytes, or a size such as "1 MiB".
            of: "allocated": tensors on the GPU; "reserved": also torch's cache; "process": all that the driver gave the
                process, for a run with ``process=True``; "host": the process's resident set.

        Raises:
            BudgetExceeded: with the sentence.
            NotMeasured: too few steps ran, or nothing was measured.
            ValueError: `max` is not a size, or `of` not a kind of memory.
        """
        __tracebackhide__ = True
        budget = growth_budget(max, of, "assert_memory_growth")
        self._require_all_steps()
        self._run.apply_verdict(self._record, judge_growth(self.measurement, budget))

    def peak_over_baseline(self, of: MemoryKind = "allocated") -> int | None:
        """Return the most bytes at the end of a step above those at the end of warm-up; None if not measured."""
        from pytest_gpusync.model.memory_growth import peak_over_baseline

        return peak_over_baseline(self.measurement, of)

    @property
    def grown(self) -> tuple[GrownLine, ...] | None:
        """The lines whose allocations made memory grow, most bytes per step first; None if memory did not grow."""
        return self.measurement.grown

    @property
    def device_mallocs(self) -> CallsPerStep | None:
        """Calls of ``cudaMalloc`` and similar functions per step after warm-up, median and maximum; None if not
        counted.
        """
        from pytest_gpusync.model.memory_growth import device_mallocs_per_step

        return device_mallocs_per_step(self.measurement)

    @property
    def dispatch_ratio(self) -> Estimate | None:
        """Median of time to issue a step divided by time to complete it, with an interval; None without a real GPU."""
        from pytest_gpusync.model.step_times import dispatch_ratio

        return dispatch_ratio(self.measurement)

    def assert_dispatch_ratio(self, max: float) -> None:
        """Fail the test if the time to issue a step is certainly more than `max` times the time to complete it.

        If that is undecided the test goes on, as in :meth:`assert_memory_growth`. On the simulated device the test is
        skipped here: time is not simulated.

        Raises:
            BudgetExceeded: with the sentence.
            NotMeasured: too few steps ran, or they could not be timed.
            ValueError: `max` is not a valid ratio.
        """
        __tracebackhide__ = True
        budget = checked_budget(DispatchBudget, max, "assert_dispatch_ratio")
        self._require_all_steps()
        if self.measurement.environment.device != "cuda":
            self._run.skip_untimed()
        self._run.apply_verdict(self._record, judge_dispatch(self.measurement, budget))

    @property
    def max_in_flight(self) -> int | None:
        """Most steps that the device had not finished when one after warm-up returned; None without a real GPU."""
        from pytest_gpusync.model.step_times import most_in_flight

        return most_in_flight(self.measurement)

    def assert_max_in_flight(self, max: int) -> None:
        """Fail the test if more than `max` steps were in flight: issued by the host and not finished by the device.

        A step counts itself, so 1 is the minimum. On the simulated device the test is skipped here, because time is not
        simulated.

        Raises:
            BudgetExceeded: with the sentence.
            NotMeasured: the steps could not be timed.
            ValueError: `max` is not an integer of at least 1.
        """
        __tracebackhide__ = True
        budget = checked_budget(FlightBudget, max, "assert_max_in_flight")
        self._require_all_steps()
        if self.measurement.environment.device != "cuda":
            self._run.skip_untimed()
        self._run.apply_verdict(self._record, judge_in_flight(self.measurement, budget))


class StepLoop:
    """The steps of an open region, each between :meth:`begin` and :meth:`end`."""

    def __init__(
        self, region: Region, kind: str, clock: StepClock, limiter: InFlightLimiter | None, progress: Progress
    ) -> None:
        self.region = region
        self.ran = 0
        """Steps that have ended."""
        self.record: RegionRecord | None = None
        """What was measured, once the region is closed."""
        self._kind = kind
        self._clock = clock
        self._limiter = limiter
        self._progress = progress

    def begin(self) -> None:
        """Begin a step, once fewer steps than the limit are in flight."""
        event = None if self._limiter is None else self._limiter.event_to_wait_for()
        if event is not None:
            from pytest_gpusync.measure.recording import uncounted

            with uncounted():
                event.synchronize()
        self._clock.begin()

    def end(self) -> None:
        """End a step."""
        self._clock.end()
        if self._limiter is not None:
            self._limiter.mark_step()
        self.region.mark_step(self._kind)
        self.ran += 1
        self._progress.show(self.ran)


class StepRunner:
    """Runs steps inside a test and keeps what was measured of them."""

    def __init__(self, run: MeasuredTest, progress: Callable[[int | None], Progress]) -> None:
        self._run = run
        self._progress = progress

    @contextmanager
    def _loop(
        self,
        kind: str,
        steps: int | None,
        warmup: int,
        in_flight: int | None,
        *,
        process: bool,
        step_on: StepOn = None,
    ) -> Iterator[StepLoop]:
        """Open a region whose steps are made between ``begin()`` and ``end()`` of what this yields.

        Args:
            kind: what ends a step, as reports name it.
            steps: how many there will be, if that is known.
            warmup: steps that are left out of budgets.
            in_flight: most steps that the host may run ahead.
            process: query the driver after each step.
            step_on: what ends steps instead.
        """
        __tracebackhide__ = True
        from pytest_gpusync.elapsed.step_clock import Timekeeper

        limiter = _limiter(kind, in_flight)
        region, loop, timekeeper, progress = None, None, Timekeeper(), self._progress(steps)
        try:
            with (
                self._run.region(
                    None, kind.partition(",")[0], warmup, memory=True, process_memory=process, step_on=step_on
                ) as region,
                timekeeper,
            ):
                loop = StepLoop(region, kind, timekeeper.clock, limiter, progress)
                if steps is not None:
                    region.record_allocations_from(steps - _HISTORY_STEPS)
                yield loop
                timekeeper.give_times_to(region, only_if=None if step_on is None else -1)
        finally:
            progress.close()
            ran = 0 if loop is None else loop.ran
            record = self._keep(region, ran > warmup or step_on is not None)
            if loop is not None:
                loop.record = record

    def _keep(self, region: Region | None, suffices: bool) -> RegionRecord | None:
        """Keep the measurement of a region; the test's budgets apply to it if `suffices`."""
        if region is None:
            return None
        record = self._run.keep(region)
        if suffices:
            self._run.runs.append(record)
        return record


class GpuTrain(StepRunner):
    """The value of the fixture ``gpu_train``: call it to run real steps."""

    def __call__(
        self,
        step: Callable[..., object],
        batches: Iterable[Any] | None = None,
        steps: int | None = None,
        warmup: int = 3,
        in_flight: int | None = None,
        *,
        process: bool = False,
        trace: int = 0,
    ) -> TrainingRun:
        """Run `steps` steps and measure each; the first `warmup` of them are left out of budgets.

        Args:
            step: called as ``step(batch)``, or as ``step()`` without batches. It need not call an optimizer. The step
                of a Lightning module is called as ``training_step(batch, number)``, that of a Hugging Face Trainer as
                ``training_step(model, batch)``.
            batches: a DataLoader, a list, a generator. It is iterated again, if possible, until `steps` steps have run.
                If a generator ends earlier, so does the run: ``note`` of the result says so, and its assertions
                fail.
            steps: steps to run, including warm-up; by default one pass over `batches`.
            warmup: steps that are run first and left out of budgets.
            in_flight: most steps that the host may run ahead: a step begins when the step this many before it is done.
                These waits belong to the fixture and are not counted. By default the host is not held back.
            process: query the driver after each step for the memory of the process; takes some tenths of a millisecond.
            trace: number of additional steps run under torch.profiler afterwards, for the device time of their work
                (``busy_ms`` of the result).

        Raises:
            ValueError: the arguments leave no step to measure.
            NotMeasured: nothing can be measured here, or the batches ran out before the end of warm-up.
        """
        __tracebackhide__ = True
        steps = number_of_steps("gpu_train", "batches", batches, steps, warmup)
        check_numbers("gpu_train", trace=(trace, 0))
        call = _adapted(step)
        arguments = step_arguments(batches, steps, trace + 1 if trace else 0)
        with _as_in_training(step), self._loop("gpu_train", steps, warmup, in_flight, process=process) as loop:
            while loop.ran < steps:
                batch = next(arguments, None)
                if batch is None:
                    break
                loop.begin()
                call(loop.ran, *batch)
                loop.end()
        note = None if loop.ran == steps else f"{loop.ran} of {steps} steps ran: the batches ran out"
        if loop.ran <= warmup:
            raise NotMeasured(f"Not measured: {note}, and the first {warmup} are warm-up")
        assert loop.record is not None
        return TrainingRun(self._run, loop.record, note, self._busy(call, arguments, steps, trace))

    def whole(
        self,
        function: Callable[..., object],
        *arguments: Any,
        warmup: int = 3,
        process: bool = False,
        step_on: StepOn = None,
        **named: Any,
    ) -> TrainingRun:
        """Run a whole training and measure its steps: each ends at ``optimizer.step()``.

        ``gpu_train.whole(trainer.train)`` for a Trainer of Hugging Face, ``gpu_train.whole(trainer.fit, module,
        loader)`` for Lightning's, or any function that trains. With several optimizers, a step lasts until one that was
        already called in it is called again; such steps are not timed.

        Args:
            function: called once, with the other arguments.
            arguments: passed to `function`, and so are `named`.
            warmup: first steps, which are left out of budgets.
            process: as for single steps.
            step_on: what ends a step, as in ``gpu_sync.step_on``; such steps are not timed.

        Raises:
            ValueError: `warmup` or `step_on` is invalid.
            NotMeasured: nothing can be measured here, or there were no more steps than the warm-up.
        """
        __tracebackhide__ = True
        check_numbers("gpu_train.whole", warmup=(warmup, 0))
        from pytest_gpusync.elapsed.step_clock import Timekeeper
        from pytest_gpusync.measure.step_boundaries import OptimizerSteps

        region, timekeeper, progress = None, Timekeeper(), self._progress(None)
        seen = 0

        def stepped(*_: object) -> None:
            nonlocal seen
            seen += 1
            timekeeper.clock.end()
            timekeeper.clock.begin()
            progress.show(seen)

        optimizers = OptimizerSteps(stepped)
        try:
            with (
                self._run.region(
                    None, "gpu_train", warmup, memory=True, process_memory=process, step_on=step_on
                ) as region,
                timekeeper,
            ):
                optimizers.attach()
                timekeeper.clock.begin()
                function(*arguments, **named)
                timekeeper.give_times_to(region, only_if=seen if step_on is None else -1)
        finally:
            optimizers.detach()
            progress.close()
            record = self._keep(region, seen > warmup or step_on is not None)
        assert record is not None
        if (seen < 2 and step_on is None) or record.measurement.steps <= warmup:
            ran = f"{seen} calls of optimizer.step() were seen, and the first {warmup} steps are warm-up"
            raise NotMeasured(f"Not measured: {ran}")
        return TrainingRun(self._run, record, None)

    def _busy(
        self, call: Callable[..., object], arguments: Iterator[tuple[Any, ...]], steps: int, trace: int
    ) -> float | None:
        """Run `trace` more steps under torch.profiler, and return the median device time of their work."""
        if not trace or self._run.device.is_simulated:
            return None
        from pytest_gpusync.elapsed.profiler_trace import TraceUnreadable, busy_ms, trace_steps
        from pytest_gpusync.measure.recording import allow

        try:
            with allow("gpu_train traces a step"):
                return busy_ms(trace_steps(lambda: call(steps, *next(arguments)), trace))
        except (TraceUnreadable, StopIteration):
            return None


def step_figures(measurement: Measurement) -> list[StepFigures]:
    """Return the measurements of each step after warm-up, in order."""
    from pytest_gpusync.model.site_counts import syncs_per_step

    warmup = measurement.warmup
    blocked: dict[int | None, float] = {}
    for sync in measurement.all_syncs:
        if sync.allowed is None and not sync.background and sync.blocked_ns is not None:
            blocked[sync.step] = blocked.get(sync.step, 0.0) + sync.blocked_ns / 1e6
    figures = []
    for number, syncs in enumerate(syncs_per_step(measurement), start=warmup):
        time = measurement.timing[number] if measurement.timing else None
        memory = measurement.memory[number] if measurement.memory else None
        before = measurement.memory[number - 1] if measurement.memory and number else None
        figures.append(
            StepFigures(
                syncs=syncs,
                blocked_ms=None if measurement.times is None else blocked.get(number, 0.0),
                issue_ms=None if time is None else time.issue / 1e6,
                complete_ms=None if time is None or time.complete is None else time.complete / 1e6,
                in_flight=None if time is None else time.in_flight,
                allocated=None if memory is None else memory.allocated,
                reserved=None if memory is None else memory.reserved,
                process=None if memory is None else memory.process,
                host=None if memory is None else memory.host,
                device_mallocs=_calls(before, memory, "device_mallocs"),
                device_frees=_calls(before, memory, "device_frees"),
            )
        )
    return figures


def _calls(before: object, after: object, name: str) -> int | None:
    first, last = getattr(before, name, None), getattr(after, name, None)
    return None if first is None or last is None else last - first


def _adapted(step: Callable[..., object]) -> Callable[..., object]:
    """Return a function that calls a step, given its number and its batch, if any.

    A step with two parameters belongs to a trainer: a Trainer's takes its model first, a module's the number last.
    """
    names = _required_parameters(step)
    owner: Any = getattr(step, "__self__", None)
    takes_model = owner is not None and len(names) == 2 and names[0] == "model" and hasattr(owner, "model")
    takes_number = len(names) == 2 and names[1] in ("batch_idx", "batch_index", "batch_nb")

    def call(number: int, *batch: Any) -> object:
        __tracebackhide__ = True  # an exception of the step begins at the step
        if takes_model:
            return step(owner.model, *batch)
        return step(*batch, number) if takes_number else step(*batch)

    return call


@contextmanager
def _as_in_training(step: Callable[..., object]) -> Iterator[None]:
    """Give the Trainer of Hugging Face whose step this is the attribute that its ``training_step`` reads and only its
    ``train`` sets.
    """
    trainer: Any = getattr(step, "__self__", None)
    accumulation = getattr(getattr(trainer, "args", None), "gradient_accumulation_steps", None)
    if accumulation is None or hasattr(trainer, "current_gradient_accumulation_steps"):
        yield
        return
    trainer.current_gradient_accumulation_steps = accumulation
    try:
        yield
    finally:
        del trainer.current_gradient_accumulation_steps


def _required_parameters(step: Callable[..., object]) -> list[str]:
    """Return the names of the required parameters of a step."""
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in parameters if one.kind in positional and one.default is inspect.Parameter.empty]


def _limiter(kind: str, limit: int | None) -> InFlightLimiter | None:
    __tracebackhide__ = True
    if limit is None:
        return None
    from pytest_gpusync.elapsed.in_flight import InFlightLimiter

    try:
        return InFlightLimiter(limit)
    except ValueError as error:
        complaint = str(error)
    raise ValueError(f"{kind.partition(',')[0]}: in_flight: {complaint}")


def number_of_steps(source: str, items: str, given: Iterable[Any] | None, steps: int | None, warmup: int) -> int:
    """Return how many steps to run.

    Args:
        source: the fixture.
        items: what it runs a step with, in the plural.
        given: these.
        steps: the number that was asked for.
        warmup: how many of them are warm-up.

    Raises:
        ValueError: a number is invalid, or no step would be measured.
    """
    __tracebackhide__ = True
    for name, value in (("steps", steps), ("warmup", warmup)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise ValueError(f"{source}: {name} must be an integer of at least 0, not {value!r}")
    if steps is None:
        try:
            steps = len(given)  # type: ignore[arg-type]
        except TypeError:
            missing = f"there are no {items}" if given is None else f"the {items} have no length"
            raise ValueError(f"{source} needs steps=..., because {missing}") from None
    if steps <= warmup:
        raise ValueError(
            f"{source}: steps={steps} are all warm-up (warmup={warmup}): give more steps or a smaller warmup"
        )
    return steps


def step_arguments(batches: Iterable[Any] | None, steps: int, more: int) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of each step, and of `more` steps, iterating over `batches` again if that yields anything."""
    steps += more
    if batches is None:
        yield from ((),) * steps
        return
    yielded = 0
    while yielded < steps:
        before = yielded
        iterator = iter(batches)
        for batch in iterator:
            yield (batch,)
            yielded += 1
            if yielded == steps:
                return
        if iterator is batches or yielded == before:
            return
