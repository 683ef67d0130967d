"""The fixtures: regions, real training steps, elapsed times and memory inside a test."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import pytest

from pytest_gpusync.elapsed.overlap import TOLERANCE as OVERLAP_TOLERANCE
from pytest_gpusync.elapsed.paired import LEAST_ROUNDS, ROUNDS, TOLERANCE, Ratio, measure_ratio
from pytest_gpusync.elapsed.stalls import ROUNDS as STALL_ROUNDS
from pytest_gpusync.model.budgets import judge_growth
from pytest_gpusync.model.estimates import LEAST_SAMPLES
from pytest_gpusync.plugin.arguments import check_numbers, growth_budget, sync_budget
from pytest_gpusync.plugin.progress import Progress
from pytest_gpusync.plugin.training import GpuTrain, TrainingRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pytest_gpusync.elapsed.decomposition import Decomposition
    from pytest_gpusync.elapsed.overlap import Overlap
    from pytest_gpusync.elapsed.stalls import Stalls
    from pytest_gpusync.measure.region import Region
    from pytest_gpusync.model.budgets import Budget
    from pytest_gpusync.model.estimates import Estimate
    from pytest_gpusync.model.memory_growth import Of
    from pytest_gpusync.plugin.measured_test import Record, TestRun

__all__ = ["GpuElapsed", "GpuMemory", "GpuSync", "GpuTrain", "TrainingRun"]


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
        return self._hold(sync_budget(max, exact, "gpu_sync.budget"), warmup, name)

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
        from pytest_gpusync.measure.recording import allow

        return allow(reason)


class GpuMemory:
    """What the fixture ``gpu_memory`` gives: regions of a test in which memory is sampled at the end of each step."""

    def __init__(self, run: TestRun) -> None:
        self._run = run

    @contextmanager
    def record(self, name: str | None = None, warmup: int | None = None, process: bool = False) -> Iterator[Region]:
        """Sample memory in the ``with`` block and only look: ``result().memory`` of what it yields.

        A step ends at ``optimizer.step()``, or where ``mark_step()`` of what it yields is called. With `process` the
        driver is asked as well what the process holds, which takes some tenths of a millisecond per step.

        Raises:
            NotMeasured: nothing can be measured here.
        """
        __tracebackhide__ = True
        with self._open(name, "gpu_memory.record", warmup, process) as (region, _):
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
        budget = growth_budget(max, of, "gpu_memory.budget")
        with self._open(name, "gpu_memory.budget", warmup, of == "process") as (region, kept):
            yield region
        self._run.settle(kept[0], judge_growth(kept[0].measurement, budget))

    @contextmanager
    def _open(
        self, name: str | None, kind: str, warmup: int | None, process: bool
    ) -> Iterator[tuple[Region, list[Record]]]:
        """Open a region; its record is in the list once it is closed."""
        __tracebackhide__ = True
        region: Region | None = None
        kept: list[Record] = []
        try:
            with self._run.region(name, kind, warmup, memory=True, process_memory=process) as region:
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
        from pytest_gpusync.elapsed.overlap import measure_overlap

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
        from pytest_gpusync.elapsed.decomposition import StepWaits, decompose

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
        from pytest_gpusync.elapsed.stalls import CannotTell, measure_stalls

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
        check_numbers(f"gpu_elapsed.{method}", **numbers)
        if not isinstance(tolerance, (int, float)) or not 0 < tolerance < 1:
            raise ValueError(
                f"gpu_elapsed.{method}: tolerance is a part between 0 and 1, as in 0.02, not {tolerance!r}"
            )
        self._run.need_time()


@pytest.fixture
def gpu_sync(request: pytest.FixtureRequest) -> GpuSync:
    """Count the syncs of a part of a test: gpu_sync.budget(max=0), gpu_sync.record(), gpu_sync.allow(reason)."""
    return GpuSync(_run_of(request))


@pytest.fixture
def gpu_train(request: pytest.FixtureRequest) -> GpuTrain:
    """Run real training steps and count their syncs: gpu_train(step, batches, steps=20).assert_syncs(max=1)."""
    # A worker of pytest-xdist has no reporter; --color=yes gives a log file the markup of a terminal.
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    writer = request.config.get_terminal_writer() if getattr(reporter, "isatty", False) else None
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    uncaptured = nullcontext if capture is None else capture.global_and_fixture_disabled
    return GpuTrain(_run_of(request), lambda steps: Progress(writer, steps, uncaptured))


@pytest.fixture
def gpu_memory(request: pytest.FixtureRequest) -> GpuMemory:
    """Hold the growth of GPU memory per step to a budget: gpu_memory.budget(max="1 MiB"), gpu_memory.record()."""
    return GpuMemory(_run_of(request))


@pytest.fixture
def gpu_elapsed(request: pytest.FixtureRequest) -> GpuElapsed:
    """Compare elapsed times on a real GPU: gpu_elapsed.ratio(with_item, without_item).low > 1.0."""
    return GpuElapsed(_run_of(request))


def _run_of(request: pytest.FixtureRequest) -> TestRun:
    from pytest_gpusync.plugin.stash_keys import RUN

    run: TestRun = request.node.stash[RUN]
    run.device.switch_on()
    return run
