"""The values of the fixtures: regions, elapsed times and memory inside a test."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_gpusync.elapsed.overlap import TOLERANCE as OVERLAP_TOLERANCE
from pytest_gpusync.elapsed.paired import MIN_ROUNDS, ROUNDS, TOLERANCE, Ratio, measure_ratio
from pytest_gpusync.elapsed.stalls import ROUNDS as STALL_ROUNDS
from pytest_gpusync.measure.step_at import chosen
from pytest_gpusync.model.budgets import NotMeasured, judge_growth
from pytest_gpusync.model.estimates import MIN_SAMPLES
from pytest_gpusync.plugin.arguments import check_numbers, growth_budget, sync_budget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pytest_gpusync.elapsed.decomposition import Decomposition
    from pytest_gpusync.elapsed.overlap import Overlap
    from pytest_gpusync.elapsed.stalls import Stalls
    from pytest_gpusync.measure.captures import Captures
    from pytest_gpusync.measure.region import Region
    from pytest_gpusync.measure.step_on import StepOn
    from pytest_gpusync.model.budgets import Budget, GrowthBudget
    from pytest_gpusync.model.captures import CaptureReport
    from pytest_gpusync.model.estimates import Estimate
    from pytest_gpusync.model.memory_growth import MemoryKind
    from pytest_gpusync.plugin.measured_test import MeasuredTest, RegionRecord


class GpuSync:
    """The value of the fixture ``gpu_sync``: regions of a test, with or without a budget of their own."""

    def __init__(self, run: MeasuredTest) -> None:
        self._run = run

    def budget(
        self,
        max: int | None = None,
        exact: int | None = None,
        warmup: int | None = None,
        name: str | None = None,
        step_on: StepOn = None,
        *,
        percentile: float | None = None,
        over: str | None = None,
        within: str | None = None,
        step_at: str | None = None,
    ) -> AbstractContextManager[Region]:
        """Fail the test if a step of the ``with`` block makes more than `max` syncs, or a number other than `exact`.

        A block without ``optimizer.step()`` is one step. If the block raises an exception, that is the failure.
        `step_on` says what ends a step, as in :meth:`step_on`, and `step_at` the same by the name of a function, as in
        :meth:`step_at`; `percentile`, `over` and `within` are those of :meth:`TrainingRun.assert_syncs`.

        Raises:
            BudgetExceeded: with the sentence and the lines that made the syncs.
            NotMeasured: the syncs could not be counted.
            ValueError: neither or both of `max` and `exact` were given, or another argument is invalid.
        """
        __tracebackhide__ = True
        budget = sync_budget(max, exact, "gpu_sync.budget", percentile, over, within)
        return self._check(budget, warmup, name, chosen(step_on, step_at))

    @contextmanager
    def _check(self, budget: Budget, warmup: int | None, name: str | None, step_on: StepOn) -> Iterator[Region]:
        __tracebackhide__ = True
        region = None
        try:
            with self._run.region(name, "gpu_sync.budget", warmup, step_on=step_on) as region:
                yield region
        except BaseException:
            if region is not None:
                self._run.keep(region)
            raise
        self._run.check_budget(self._run.keep(region), budget, subject=f"Region {name!r}" if name else "Region")

    @contextmanager
    def record(
        self,
        name: str | None = None,
        warmup: int | None = None,
        step_on: StepOn = None,
        *,
        step_at: str | None = None,
    ) -> Iterator[Region]:
        """Measure the ``with`` block without a budget: see ``syncs``, ``sites`` and ``result()`` of what it yields.

        `step_on` and `step_at` say what ends a step, as in the methods of these names.

        Raises:
            NotMeasured: nothing can be measured here.
        """
        __tracebackhide__ = True
        region = None
        try:
            with self._run.region(name, "gpu_sync.record", warmup, step_on=chosen(step_on, step_at)) as region:
                yield region
        finally:
            if region is not None:
                self._run.keep(region)

    def step_on(self, step_on: StepOn) -> None:
        """Say what ends the steps of the test, for a budget of its marker or of the command line. Call it before the
        first step.

        Args:
            step_on: an optimizer, if several are called in a step; a class of optimizers or its name; or a function
                that makes one step, or its name, such as ``"train.train_step"``.

        Raises:
            ValueError: it is none of these.
        """
        __tracebackhide__ = True
        self._run.step_on(step_on)

    def step_at(self, function: str) -> None:
        """End a step of the test whenever a function returns, for a budget of its marker or of the command line. Call
        it before the first step.

        Of a coroutine, each return ends a step; of a generator, each value that it yields, such as a token. The test
        fails if the function is not called.

        Args:
            function: its name, such as ``"Engine.step"`` or ``"generate"``, with or without its module.

        Raises:
            ValueError: it is no name, or calls cannot be seen.
        """
        self._run.step_on(chosen(None, function))

    def allow(self, reason: str) -> AbstractContextManager[None]:
        """Report the syncs that this thread makes in the ``with`` block with a reason, and do not count them."""
        from pytest_gpusync.measure.recording import allow

        return allow(reason)


class GpuMemory:
    """The value of the fixture ``gpu_memory``: regions of a test in which memory is sampled at the end of each step."""

    def __init__(self, run: MeasuredTest) -> None:
        self._run = run

    @contextmanager
    def record(self, name: str | None = None, warmup: int | None = None, process: bool = False) -> Iterator[Region]:
        """Sample memory in the ``with`` block without a budget: see ``result().memory`` of what it yields.

        A step ends at ``optimizer.step()``, or where ``mark_step()`` of what it yields is called. With `process`, the
        driver is also queried for the memory of the process, which takes some tenths of a millisecond per step.

        Raises:
            NotMeasured: nothing can be measured here.
        """
        __tracebackhide__ = True
        with self._open(name, "gpu_memory.record", warmup, process) as (region, _):
            yield region

    def budget(
        self, max: int | str, of: MemoryKind = "allocated", warmup: int | None = None, name: str | None = None
    ) -> AbstractContextManager[Region]:
        """Fail the test if memory certainly grew by more than `max` per step of the ``with`` block, after warm-up.

        Arguments and errors are those of :meth:`TrainingRun.assert_memory_growth`, steps those of :meth:`record`. If
        the block raises an exception, that is the failure.
        """
        __tracebackhide__ = True
        return self._check(growth_budget(max, of, "gpu_memory.budget"), warmup, name)

    @contextmanager
    def _check(self, budget: GrowthBudget, warmup: int | None, name: str | None) -> Iterator[Region]:
        __tracebackhide__ = True
        with self._open(name, "gpu_memory.budget", warmup, budget.of == "process") as (region, kept):
            yield region
        self._run.apply_verdict(kept[0], judge_growth(kept[0].measurement, budget))

    @contextmanager
    def _open(
        self, name: str | None, kind: str, warmup: int | None, process: bool
    ) -> Iterator[tuple[Region, list[RegionRecord]]]:
        """Open a region; its record is in the list once it is closed."""
        __tracebackhide__ = True
        region: Region | None = None
        kept: list[RegionRecord] = []
        try:
            with self._run.region(name, kind, warmup, memory=True, process_memory=process) as region:
                yield region, kept
        finally:
            if region is not None:
                kept.append(self._run.keep(region))


class GpuElapsed:
    """The value of the fixture ``gpu_elapsed``: comparisons of elapsed times on a real GPU."""

    def __init__(self, run: MeasuredTest) -> None:
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

        Both are timed alternately, in an order that changes from round to round. A sample is the time from an idle
        device to the end of the work of several calls, measured with CUDA events; the device is idle between samples,
        and the garbage collector is off. Measuring stops when the interval is narrow enough, or after `rounds` rounds;
        then the outcome is "too noisy to tell", and ``low`` and ``high`` still hold. If the GPU was throttled or
        another process kept it busy, they are 0 and infinity, and ``note`` says so.

        Without a real GPU the test is skipped here; with ``--gpu-require`` it fails.

        Args:
            a: called without arguments; its work must be issued to the current stream, or the stream must wait for it.
            b: likewise.
            rounds: most rounds, at least 12.
            warmup: calls of each side before anything is timed.
            calls: calls of a side in one sample; by default as many as take 10 ms, at least three.
            tolerance: width of the interval, as a share of the ratio, that is narrow enough.

        Raises:
            NotMeasured: there is no real GPU, and ``--gpu-require`` was given.
            ValueError: an argument is invalid.
        """
        __tracebackhide__ = True
        self._require_time("ratio", tolerance, rounds=(rounds, MIN_ROUNDS), warmup=(warmup, 0), calls=(calls, 1))
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
        """Return which share of the shorter of two pieces of work runs while the other does.

        `a` and `b` do one piece each; `both` does the two as the program does them, for example on two streams. 0 means
        one after the other, 1 that all of the shorter one overlaps the longer. Timing, arguments and errors are those
        of :meth:`ratio`; the `tolerance` is a share of the shorter piece.
        """
        __tracebackhide__ = True
        self._require_time("overlap", tolerance, rounds=(rounds, MIN_ROUNDS), warmup=(warmup, 0), calls=(calls, 1))
        from pytest_gpusync.elapsed.overlap import measure_overlap

        found = measure_overlap(a, b, both, rounds=rounds, warmup=warmup, calls=calls, tolerance=tolerance)
        self._run.keep_elapsed("overlap", found)
        return found

    def decompose(
        self, step: Callable[[], object], read: Callable[[], object], *, steps: int = 100, warmup: int = 3
    ) -> Decomposition:
        """Measure the parts of a step: host dispatch t1, device work t2, read-back t3.

        The result also has the time of `steps` steps with a read in each, n (t1 + t2 + t3), and with one read at the
        end, t1 + n t2 + t3: as predicted from the parts, and as measured.

        Without a real GPU the test is skipped here; with ``--gpu-require`` it fails.

        Args:
            step: called without arguments; issues the work and must not wait for it.
            read: called without arguments; copies the result to the host.
            steps: n, at least 1.
            warmup: steps, each with a read, before anything is timed.

        Raises:
            NotMeasured: there is no real GPU, and ``--gpu-require`` was given.
            ValueError: an argument is invalid, or `step` makes the host wait.
        """
        __tracebackhide__ = True
        self._require_time("decompose", steps=(steps, 1), warmup=(warmup, 0))
        from pytest_gpusync.elapsed.decomposition import StepSynchronizes, decompose

        try:
            found = decompose(step, read, steps=steps, warmup=warmup)
        except StepSynchronizes as error:
            complaint = str(error)
        else:
            self._run.keep_elapsed("decompose", found)
            return found
        raise ValueError(f"gpu_elapsed.decompose: {complaint}")

    def dispatch_ratio(self, step: Callable[[], object], *, steps: int = 20, warmup: int = 3) -> Estimate:
        """Return the median, over `steps` steps, of the time to issue a step divided by the time to complete it, with
        an interval.

        Near 1 the device waits for the host, or the host for the device; well below 1 the host runs ahead.
        :meth:`GpuTrain.__call__` measures the same with real batches, together with syncs and memory.

        Without a real GPU the test is skipped here; with ``--gpu-require`` it fails.

        Args:
            step: called without arguments.
            steps: steps that are timed, at least 8.
            warmup: steps before anything is timed, at least 1.

        Raises:
            NotMeasured: there is no real GPU, and ``--gpu-require`` was given.
            ValueError: an argument is invalid.
        """
        __tracebackhide__ = True
        self._require_time("dispatch_ratio", steps=(steps, MIN_SAMPLES), warmup=(warmup, 1))
        from pytest_gpusync.elapsed.step_clock import measure_dispatch

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
        """Return, for each line at which a step waits, how long the device is idle after it and what a step would gain
        without it.

        The step runs some hundred times: in blocks without instrumentation, in blocks with its waits recorded, and in
        one block under torch.profiler. A replay of these computes the time of a step without the waits of a line. What
        such a line reads from the device is then not read; what it copies to the device is copied without waiting. The
        difference between the replayed and the measured time of the step widens the interval of each gain. If it is
        wider than 4 % of the step, the outcome is "too noisy to tell". If the GPU was disturbed, the interval is
        unbounded, as in :meth:`ratio`.

        The syncs are reported as allowed and count against no budget. Without a real GPU the test is skipped here; with
        ``--gpu-require`` it fails.

        Args:
            step: called without arguments; the same work each time.
            rounds: blocks of either kind, at least 12.
            warmup: steps before anything is timed.
            steps: steps in a block; by default as many as take 60 ms, between 4 and 60.

        Raises:
            NotMeasured: there is no real GPU, and ``--gpu-require`` was given.
            ValueError: an argument is invalid, or the stalls of such steps cannot be determined: they make no sync, use
                several streams, wait for events, or wait on several threads.
        """
        __tracebackhide__ = True
        self._require_time("stalls", rounds=(rounds, MIN_ROUNDS), warmup=(warmup, 0), steps=(steps, 1))
        from pytest_gpusync.elapsed.stalls import StallsUnavailable, measure_stalls

        try:
            found = measure_stalls(step, rounds=rounds, warmup=warmup, steps=steps)
        except StallsUnavailable as error:
            complaint = str(error)
        else:
            self._run.keep_elapsed("stalls", found)
            return found
        raise ValueError(f"gpu_elapsed.stalls: {complaint}")

    def _require_time(self, method: str, tolerance: float = TOLERANCE, **numbers: tuple[int | None, int]) -> None:
        """Check the arguments; skip the test, or fail it, if times cannot be measured."""
        __tracebackhide__ = True
        check_numbers(f"gpu_elapsed.{method}", **numbers)
        if not isinstance(tolerance, (int, float)) or not 0 < tolerance < 1:
            raise ValueError(
                f"gpu_elapsed.{method}: tolerance must be between 0 and 1, such as 0.02, not {tolerance!r}"
            )
        self._run.require_time()


class GpuCapture:
    """The value of the fixture ``gpu_capture``: captures of CUDA graphs on the device of the session.

    On the simulated device every offender is found, on a GPU the first one.
    """

    def __init__(self, run: MeasuredTest) -> None:
        self._run = run

    def assert_capturable(self, step: Callable[..., object], *args: object, **options: Any) -> CaptureReport:
        """Assert that a step can be captured; see :func:`assert_capturable`, whose arguments and errors these are.

        Raises:
            NotMeasured: there is no device.
        """
        __tracebackhide__ = True
        self._require_device()
        from pytest_gpusync.measure.captures import assert_capturable

        return assert_capturable(step, *args, **options)

    def check(self, step: Callable[..., object], *args: object, **options: Any) -> CaptureReport:
        """Capture a step and return what was found; see :func:`check_capture`.

        Raises:
            NotMeasured: there is no device.
        """
        __tracebackhide__ = True
        self._require_device()
        from pytest_gpusync.measure.captures import check_capture

        return check_capture(step, *args, **options)

    def record(self) -> AbstractContextManager[Captures]:
        """Collect what captures in the ``with`` block do that is not permitted; see :func:`record_captures`.

        Raises:
            NotMeasured: there is no device.
        """
        __tracebackhide__ = True
        self._require_device()
        from pytest_gpusync.measure.captures import record_captures

        return record_captures()

    def _require_device(self) -> None:
        __tracebackhide__ = True
        if self._run.device.unavailable is not None:
            raise NotMeasured(f"Not measured: {self._run.device.unavailable}")
