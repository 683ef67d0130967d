"""The fixtures: regions, real training steps, elapsed times and memory inside a test."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_gpusync.budgets import (
    Budget,
    DispatchBudget,
    FlightBudget,
    GrowthBudget,
    NotMeasured,
    judge_dispatch,
    judge_growth,
    judge_in_flight,
)
from pytest_gpusync.estimates import LEAST_SAMPLES
from pytest_gpusync.overlap import TOLERANCE as OVERLAP_TOLERANCE
from pytest_gpusync.pairs import LEAST_ROUNDS, ROUNDS, TOLERANCE, Ratio, measure_ratio
from pytest_gpusync.stalls import ROUNDS as STALL_ROUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from pytest_gpusync.decomposition import Decomposition
    from pytest_gpusync.estimates import Estimate
    from pytest_gpusync.events import Measurement, SiteCount
    from pytest_gpusync.measure import Region
    from pytest_gpusync.memory import Mallocs, Of
    from pytest_gpusync.overlap import Overlap
    from pytest_gpusync.ring import EventRing
    from pytest_gpusync.stalls import Stalls
    from pytest_gpusync.testrun import Record, TestRun


Made = TypeVar("Made", DispatchBudget, FlightBudget)


class GpuSync:
    """What the fixture ``gpu_sync`` gives: regions of a test, with or without a budget of their own."""

    def __init__(self, run: TestRun) -> None:
        self._run = run

    def budget(
        self,
        max: int | None = None,
        exact: int | None = None,
        warmup: int | None = None,
        name: str | None = None,
    ) -> AbstractContextManager[Region]:
        """Fail the test if a step of the ``with`` block makes more than `max` syncs, or another number than `exact`.

        A block without ``optimizer.step()`` is one step. An exception of the block's own is left alone.

        Raises:
            BudgetExceeded: with the sentence and the offending lines.
            NotMeasured: the syncs could not be counted.
            ValueError: neither or both of `max` and `exact` were given.
        """
        __tracebackhide__ = True
        return self._hold(_budget(max, exact, "gpu_sync.budget"), warmup, name)

    @contextmanager
    def _hold(self, budget: Budget, warmup: int | None, name: str | None) -> Iterator[Region]:
        __tracebackhide__ = True
        region = None
        try:
            with self._run.region(name, "gpu_sync.budget", warmup) as region:
                yield region
        except BaseException:
            if region is not None:
                self._run.keep(region)
            raise
        self._run.hold(self._run.keep(region), budget, subject=f"Region {name!r}" if name else "Region")

    @contextmanager
    def record(self, name: str | None = None, warmup: int | None = None) -> Iterator[Region]:
        """Measure the ``with`` block and only look: ``syncs``, ``sites`` and ``result()`` of what it yields.

        Raises:
            NotMeasured: nothing can be measured here.
        """
        __tracebackhide__ = True
        region = None
        try:
            with self._run.region(name, "gpu_sync.record", warmup) as region:
                yield region
        finally:
            if region is not None:
                self._run.keep(region)

    def allow(self, reason: str) -> AbstractContextManager[None]:
        """Report the syncs that this thread makes in the ``with`` block with a reason, and do not count them."""
        from pytest_gpusync.measure import allow

        return allow(reason)


class TrainingRun:
    """Steps that ran, and what they made the host wait for."""

    def __init__(self, run: TestRun, kept: Record, note: str | None) -> None:
        self._run = run
        self._kept = kept
        self.note = note
        """Why fewer steps ran than were asked for, or None."""

    @property
    def measurement(self) -> Measurement:
        """All that was measured, warm-up included."""
        return self._kept.measurement

    @property
    def steps(self) -> int:
        """Steps that ran, warm-up included."""
        return self.measurement.steps

    @property
    def syncs_per_step(self) -> list[int]:
        """Syncs of each step after warm-up, in order; allowed ones and those of other threads left out."""
        from pytest_gpusync.measure import syncs_per_step

        return syncs_per_step(self.measurement)

    @property
    def sites(self) -> list[SiteCount]:
        """The lines that synced, most syncs first."""
        from pytest_gpusync.measure import site_counts

        return site_counts(self.measurement)

    def assert_syncs(self, max: int | None = None, exact: int | None = None) -> None:
        """Fail the test if a step after warm-up made more than `max` syncs, or another number than `exact`.

        Raises:
            BudgetExceeded: with the sentence and the offending lines.
            NotMeasured: the syncs could not be counted.
            ValueError: neither or both of `max` and `exact` were given.
        """
        __tracebackhide__ = True
        self._run.hold(self._kept, _budget(max, exact, "assert_syncs"), subject="Run")

    def memory_growth(self, of: Of = "allocated") -> Estimate | None:
        """Return the bytes that memory grew by per step after warm-up, with an interval; None if not measured."""
        from pytest_gpusync.memory import growth

        return growth(self.measurement, of)

    def assert_memory_growth(self, max: int | str, of: Of = "allocated") -> None:
        """Fail the test if memory surely grew by more than `max` per step after warm-up.

        Where the interval of the growth straddles `max` the test goes on, and the summary of the session says that it
        could not be told; under ``--gpu-require`` it fails.

        Args:
            max: bytes, or a size like "1 MiB".
            of: "allocated": tensors on the GPU; "reserved": torch's cache as well; "host": the process's resident set.

        Raises:
            BudgetExceeded: with the sentence.
            NotMeasured: too few steps ran, or nothing was measured.
            ValueError: `max` is no size, or `of` no memory.
        """
        __tracebackhide__ = True
        budget = _growth_budget(max, of, "assert_memory_growth")
        self._run.settle(self._kept, judge_growth(self.measurement, budget))

    @property
    def device_mallocs(self) -> Mallocs | None:
        """Calls of ``cudaMalloc`` and its like per step after warm-up, median and most; None where not counted."""
        from pytest_gpusync.memory import device_mallocs_per_step

        return device_mallocs_per_step(self.measurement)

    @property
    def dispatch_ratio(self) -> Estimate | None:
        """Time to issue a step by time to complete it, in the median, with an interval; None without a real GPU."""
        from pytest_gpusync.timing import dispatch_ratio

        return dispatch_ratio(self.measurement)

    def assert_dispatch_ratio(self, max: float) -> None:
        """Fail the test if the time to issue a step is surely more than `max` of the time to complete it.

        Where that cannot be told the test goes on, as in :meth:`assert_memory_growth`. On the simulated device the test
        is skipped here: time is not simulated.

        Raises:
            BudgetExceeded: with the sentence.
            NotMeasured: too few steps ran, or they could not be timed.
            ValueError: `max` is no ratio.
        """
        __tracebackhide__ = True
        budget = _made(DispatchBudget, max, "assert_dispatch_ratio")
        if self.measurement.environment.device == "simulated":
            self._run.skip_untimed()
        self._run.settle(self._kept, judge_dispatch(self.measurement, budget))

    @property
    def max_in_flight(self) -> int | None:
        """The most steps that the device had not done when one after warm-up returned; None without a real GPU."""
        from pytest_gpusync.timing import most_in_flight

        return most_in_flight(self.measurement)

    def assert_max_in_flight(self, max: int) -> None:
        """Fail the test if more than `max` steps were in flight: issued by the host and not done by the device.

        A step counts itself, so 1 is the least there is. On the simulated device the test is skipped here: what runs
        at once is a matter of time, and time is not simulated.

        Raises:
            BudgetExceeded: with the sentence.
            NotMeasured: the steps could not be timed.
            ValueError: `max` is no number of steps.
        """
        __tracebackhide__ = True
        budget = _made(FlightBudget, max, "assert_max_in_flight")
        if self.measurement.environment.device == "simulated":
            self._run.skip_untimed()
        self._run.settle(self._kept, judge_in_flight(self.measurement, budget))


class GpuTrain:
    """What the fixture ``gpu_train`` gives: call it to run real steps."""

    def __init__(self, run: TestRun) -> None:
        self._run = run

    def __call__(
        self,
        step: Callable[..., object],
        batches: Iterable[Any] | None = None,
        steps: int | None = None,
        warmup: int = 3,
        in_flight: int | None = None,
    ) -> TrainingRun:
        """Run `steps` steps and measure each; the first `warmup` of them are left out of budgets.

        Args:
            step: called as ``step(batch)``, or as ``step()`` without batches. It need not call an optimizer.
            batches: a DataLoader, a list, a generator. What can be iterated again is, until `steps` have run; a
                generator that ends before ends the run, and ``note`` of the result says so.
            steps: steps to run, warm-up included; by default one pass over `batches`.
            warmup: steps that are run first and left out of budgets.
            in_flight: let the host run no further ahead than this: a step begins when the one so many before it is
                done. The waits are the fixture's own and not counted. By default nothing holds the host back.

        Raises:
            ValueError: the arguments leave no step to measure.
            NotMeasured: nothing can be measured here, or the batches ran out before the end of warm-up.
        """
        __tracebackhide__ = True
        steps = _number_of_steps(batches, steps, warmup)
        from pytest_gpusync.clock import StepClock
        from pytest_gpusync.measure import aside

        ring = _ring(in_flight)
        region, ran, clock = None, 0, StepClock()
        try:
            with self._run.region(None, "gpu_train", warmup, memory=True) as region:
                for arguments in _arguments(batches, steps):
                    if ring is not None:
                        with aside():
                            ring.wait()
                    clock.begin()
                    step(*arguments)
                    clock.end()
                    if ring is not None:
                        ring.mark()
                    region.mark_step("gpu_train")
                    ran += 1
                region.time_steps(clock.collect())
        finally:
            if region is not None:
                kept = self._run.keep(region)
                if ran > warmup:
                    self._run.runs.append(kept)
        note = None if ran == steps else f"{ran} of {steps} steps ran: the batches ran out"
        if ran <= warmup:
            raise NotMeasured(f"Not measured: {note}, and the first {warmup} are warm-up")
        return TrainingRun(self._run, kept, note)


class GpuMemory:
    """What the fixture ``gpu_memory`` gives: regions of a test in which memory is sampled at the end of each step."""

    def __init__(self, run: TestRun) -> None:
        self._run = run

    @contextmanager
    def record(self, name: str | None = None, warmup: int | None = None) -> Iterator[Region]:
        """Sample memory in the ``with`` block and only look: ``result().memory`` of what it yields.

        A step ends at ``optimizer.step()``, or where ``mark_step()`` of what it yields is called.

        Raises:
            NotMeasured: nothing can be measured here.
        """
        __tracebackhide__ = True
        with self._open(name, "gpu_memory.record", warmup) as (region, _):
            yield region

    @contextmanager
    def budget(
        self, max: int | str, of: Of = "allocated", warmup: int | None = None, name: str | None = None
    ) -> Iterator[Region]:
        """Fail the test if memory surely grew by more than `max` per step of the ``with`` block, after warm-up.

        Arguments and errors are those of :meth:`TrainingRun.assert_memory_growth`; steps those of :meth:`record`. An
        exception of the block's own is left alone.
        """
        __tracebackhide__ = True
        budget = _growth_budget(max, of, "gpu_memory.budget")
        with self._open(name, "gpu_memory.budget", warmup) as (region, kept):
            yield region
        self._run.settle(kept[0], judge_growth(kept[0].measurement, budget))

    @contextmanager
    def _open(self, name: str | None, kind: str, warmup: int | None) -> Iterator[tuple[Region, list[Record]]]:
        """Open a region; its record is in the list once it is closed."""
        __tracebackhide__ = True
        region: Region | None = None
        kept: list[Record] = []
        try:
            with self._run.region(name, kind, warmup, memory=True) as region:
                yield region, kept
        finally:
            if region is not None:
                kept.append(self._run.keep(region))


class GpuElapsed:
    """What the fixture ``gpu_elapsed`` gives: elapsed times on a real GPU, against each other."""

    def __init__(self, run: TestRun) -> None:
        self._run = run

    def ratio(
        self,
        a: Callable[[], object],
        b: Callable[[], object],
        *,
        rounds: int = ROUNDS,
        warmup: int = 3,
        calls: int | None = None,
        tolerance: float = TOLERANCE,
    ) -> Ratio:
        """Return how many times as long as `b` `a` takes, with an interval.

        Both are timed in turn, the order changing from round to round. A sample is the time from an idle device to the
        end of the work of several calls, by CUDA events; the device is waited for between samples. The garbage
        collector is off meanwhile. Rounds end when the interval is tight, or after `rounds` of them: then the outcome
        is "too noisy to tell", and ``low`` and ``high`` hold all the same. Nothing can be claimed where the GPU was
        throttled or another process kept it busy: then they are 0 and infinity, and ``note`` says so.

        Without a real GPU the test is skipped here; under ``--gpu-require`` it fails.

        Args:
            a: called without arguments; its work is issued to the current stream, or waited for by it.
            b: likewise.
            rounds: most rounds, from 12 on.
            warmup: calls of each side before anything is timed.
            calls: calls of a side in one sample; by default as many as take 10 ms, and at least three.
            tolerance: width of the interval, as a part of the ratio, that is tight.

        Raises:
            NotMeasured: there is no real GPU, and ``--gpu-require`` asks for one.
            ValueError: an argument cannot be meant.
        """
        __tracebackhide__ = True
        self._need("ratio", tolerance, rounds=(rounds, LEAST_ROUNDS), warmup=(warmup, 0), calls=(calls, 1))
        ratio = measure_ratio(a, b, rounds=rounds, warmup=warmup, calls=calls, tolerance=tolerance)
        self._run.keep_elapsed("ratio", ratio)
        return ratio

    def overlap(
        self,
        a: Callable[[], object],
        b: Callable[[], object],
        both: Callable[[], object],
        *,
        rounds: int = ROUNDS,
        warmup: int = 3,
        calls: int | None = None,
        tolerance: float = OVERLAP_TOLERANCE,
    ) -> Overlap:
        """Return which part of the shorter of two pieces of work runs while the other does.

        `a` and `b` do one piece each, `both` does the two as the program does them: on two streams, say. 0 is one after
        the other, 1 all of the shorter beside the longer. Timing, arguments and errors are those of :meth:`ratio`; the
        `tolerance` is a part of the shorter piece.
        """
        __tracebackhide__ = True
        self._need("overlap", tolerance, rounds=(rounds, LEAST_ROUNDS), warmup=(warmup, 0), calls=(calls, 1))
        from pytest_gpusync.overlap import measure_overlap

        found = measure_overlap(a, b, both, rounds=rounds, warmup=warmup, calls=calls, tolerance=tolerance)
        self._run.keep_elapsed("overlap", found)
        return found

    def decompose(
        self, step: Callable[[], object], read: Callable[[], object], *, steps: int = 100, warmup: int = 3
    ) -> Decomposition:
        """Take a step apart: host dispatch t1, device work t2, read-back t3.

        Beside them stands what `steps` of them take, with a read in each step, n (t1 + t2 + t3), and with one at the
        end, t1 + n t2 + t3: as predicted from the parts, and as measured.

        Without a real GPU the test is skipped here; under ``--gpu-require`` it fails.

        Args:
            step: called without arguments; issues the work and must not wait for it.
            read: called without arguments; brings the result to the host.
            steps: n, from 1 on.
            warmup: steps, read each, before anything is timed.

        Raises:
            NotMeasured: there is no real GPU, and ``--gpu-require`` asks for one.
            ValueError: an argument cannot be meant, or `step` makes the host wait.
        """
        __tracebackhide__ = True
        self._need("decompose", steps=(steps, 1), warmup=(warmup, 0))
        from pytest_gpusync.decomposition import StepWaits, decompose

        try:
            found = decompose(step, read, steps=steps, warmup=warmup)
        except StepWaits as error:
            complaint = str(error)
        else:
            self._run.keep_elapsed("decompose", found)
            return found
        raise ValueError(f"gpu_elapsed.decompose: {complaint}")

    def dispatch_ratio(self, step: Callable[[], object], *, steps: int = 20, warmup: int = 3) -> Estimate:
        """Return the time to issue a step by the time to complete it, in the median of `steps`, with an interval.

        Near 1 the device is kept waiting by the host, or the host by the device; well below 1 the host runs ahead.
        :meth:`GpuTrain.__call__` tells the same of real batches, beside syncs and memory.

        Without a real GPU the test is skipped here; under ``--gpu-require`` it fails.

        Args:
            step: called without arguments.
            steps: steps that are timed, from 8 on.
            warmup: steps before anything is timed, from 1 on.

        Raises:
            NotMeasured: there is no real GPU, and ``--gpu-require`` asks for one.
            ValueError: an argument cannot be meant.
        """
        __tracebackhide__ = True
        self._need("dispatch_ratio", steps=(steps, LEAST_SAMPLES), warmup=(warmup, 1))
        from pytest_gpusync.clock import measure_dispatch

        found = measure_dispatch(step, steps=steps, warmup=warmup)
        self._run.keep_elapsed("dispatch_ratio", found)
        return found

    def stalls(
        self,
        step: Callable[[], object],
        *,
        rounds: int = STALL_ROUNDS,
        warmup: int = 3,
        steps: int | None = None,
    ) -> Stalls:
        """Return for each line at which a step waits how long the device is idle after it, and what a step would gain.

        The step runs some hundred times: in blocks without any instrument, in blocks with its waits recorded, and once
        under torch.profiler. From this a replay tells how long a step would take without the waits of a line. What a
        line reads from the device is then not read; what it copies to the device is copied without waiting. By how much
        the replay misses the measured time of the step widens the interval of each gain. Where that is wider than 4 %
        of the step the outcome is "too noisy to tell". On a GPU that was disturbed nothing can be claimed, as in
        :meth:`ratio`.

        The waits are reported as allowed and count against no budget. Without a real GPU the test is skipped here;
        under ``--gpu-require`` it fails.

        Args:
            step: called without arguments; the same work each time.
            rounds: blocks of either kind, from 12 on.
            warmup: steps before anything is timed.
            steps: steps in a block; by default as many as take 60 ms, and 4 to 60.

        Raises:
            NotMeasured: there is no real GPU, and ``--gpu-require`` asks for one.
            ValueError: an argument cannot be meant, or the stalls of such steps cannot be told: they make no sync, work
                on several streams, wait for events or on several threads.
        """
        __tracebackhide__ = True
        self._need("stalls", rounds=(rounds, LEAST_ROUNDS), warmup=(warmup, 0), steps=(steps, 1))
        from pytest_gpusync.stalls import CannotTell, measure_stalls

        try:
            found = measure_stalls(step, rounds=rounds, warmup=warmup, steps=steps)
        except CannotTell as error:
            complaint = str(error)
        else:
            self._run.keep_elapsed("stalls", found)
            return found
        raise ValueError(f"gpu_elapsed.stalls: {complaint}")

    def _need(self, method: str, tolerance: float = TOLERANCE, **numbers: tuple[int | None, int]) -> None:
        """Refuse arguments that cannot be meant; skip the test, or fail it, where no time can be measured."""
        __tracebackhide__ = True
        _check_numbers(f"gpu_elapsed.{method}", **numbers)
        if not isinstance(tolerance, (int, float)) or not 0 < tolerance < 1:
            raise ValueError(
                f"gpu_elapsed.{method}: tolerance is a part between 0 and 1, as in 0.02, not {tolerance!r}"
            )
        self._run.need_time()


def _check_numbers(source: str, **numbers: tuple[int | None, int]) -> None:
    """Refuse what is no whole number from its least on."""
    __tracebackhide__ = True
    for name, (value, least) in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"{source}: {name} is a whole number from {least} on, not {value!r}")


def _growth_budget(max: int | str, of: Of, source: str) -> GrowthBudget:
    """Return a budget of memory growth; the traceback of a wrong one ends at the line that asked for it."""
    __tracebackhide__ = True
    try:
        return GrowthBudget.parse(max, of, source)
    except ValueError as error:
        complaint = str(error)
    raise ValueError(f"{source}: {complaint}")


def _made(kind: Callable[[Any, str], Made], max: float, source: str) -> Made:
    """Return a budget of this kind; the traceback of a wrong one ends at the line that asked for it."""
    __tracebackhide__ = True
    try:
        return kind(max, source)
    except ValueError as error:
        complaint = str(error)
    raise ValueError(f"{source}: {complaint}")


def _budget(max: int | None, exact: int | None, source: str) -> Budget:
    """Return a budget; the traceback of a wrong one ends at the line that asked for it."""
    __tracebackhide__ = True
    try:
        return Budget(max=max, exact=exact, source=source)
    except ValueError as error:
        complaint = str(error)
    raise ValueError(f"{source}: {complaint}")


def _ring(limit: int | None) -> EventRing | None:
    __tracebackhide__ = True
    if limit is None:
        return None
    from pytest_gpusync.ring import EventRing

    try:
        return EventRing(limit)
    except ValueError as error:
        complaint = str(error)
    raise ValueError(f"gpu_train: in_flight: {complaint}")


def _number_of_steps(batches: Iterable[Any] | None, steps: int | None, warmup: int) -> int:
    __tracebackhide__ = True
    for name, value in (("steps", steps), ("warmup", warmup)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise ValueError(f"gpu_train: {name} is a whole number from 0 on, not {value!r}")
    if steps is None:
        try:
            steps = len(batches)  # type: ignore[arg-type]
        except TypeError:
            raise ValueError("gpu_train needs steps=... when the batches have no length") from None
    if steps <= warmup:
        raise ValueError(
            f"gpu_train: steps={steps} are all warm-up (warmup={warmup}): give more steps or a smaller warmup"
        )
    return steps


def _arguments(batches: Iterable[Any] | None, steps: int) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of each step, going over `batches` again where that gives anything."""
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


@pytest.fixture
def gpu_sync(request: pytest.FixtureRequest) -> GpuSync:
    """Count the syncs of a part of a test: gpu_sync.budget(max=0), gpu_sync.record(), gpu_sync.allow(reason)."""
    return GpuSync(_run_of(request))


@pytest.fixture
def gpu_train(request: pytest.FixtureRequest) -> GpuTrain:
    """Run real training steps and count their syncs: gpu_train(step, batches, steps=20).assert_syncs(max=1)."""
    return GpuTrain(_run_of(request))


@pytest.fixture
def gpu_memory(request: pytest.FixtureRequest) -> GpuMemory:
    """Hold the growth of GPU memory per step to a budget: gpu_memory.budget(max="1 MiB"), gpu_memory.record()."""
    return GpuMemory(_run_of(request))


@pytest.fixture
def gpu_elapsed(request: pytest.FixtureRequest) -> GpuElapsed:
    """Compare elapsed times on a real GPU: gpu_elapsed.ratio(with_item, without_item).low > 1.0."""
    return GpuElapsed(_run_of(request))


def _run_of(request: pytest.FixtureRequest) -> TestRun:
    from pytest_gpusync.plugin import RUN

    run: TestRun = request.node.stash[RUN]
    run.device.switch_on()
    return run
