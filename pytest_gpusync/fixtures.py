"""The fixtures ``gpu_sync`` and ``gpu_train``: regions and real training steps inside a test."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpusync.budgets import Budget, NotMeasured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from pytest_gpusync.events import Measurement, SiteCount
    from pytest_gpusync.measure import Region
    from pytest_gpusync.testrun import Record, TestRun


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
    ) -> TrainingRun:
        """Run `steps` steps and measure each; the first `warmup` of them are left out of budgets.

        Args:
            step: called as ``step(batch)``, or as ``step()`` without batches. It need not call an optimizer.
            batches: a DataLoader, a list, a generator. What can be iterated again is, until `steps` have run; a
                generator that ends before ends the run, and ``note`` of the result says so.
            steps: steps to run, warm-up included; by default one pass over `batches`.
            warmup: steps that are run first and left out of budgets.

        Raises:
            ValueError: the arguments leave no step to measure.
            NotMeasured: nothing can be measured here, or the batches ran out before the end of warm-up.
        """
        __tracebackhide__ = True
        steps = _number_of_steps(batches, steps, warmup)
        region, ran = None, 0
        try:
            with self._run.region(None, "gpu_train", warmup) as region:
                for arguments in _arguments(batches, steps):
                    step(*arguments)
                    region.mark_step("gpu_train")
                    ran += 1
        finally:
            if region is not None:
                kept = self._run.keep(region)
                if ran > warmup:
                    self._run.runs.append(kept)
        note = None if ran == steps else f"{ran} of {steps} steps ran: the batches ran out"
        if ran <= warmup:
            raise NotMeasured(f"Not measured: {note}, and the first {warmup} are warm-up")
        return TrainingRun(self._run, kept, note)


def _budget(max: int | None, exact: int | None, source: str) -> Budget:
    """Return a budget; the traceback of a wrong one ends at the line that asked for it."""
    __tracebackhide__ = True
    try:
        return Budget(max=max, exact=exact, source=source)
    except ValueError as error:
        complaint = str(error)
    raise ValueError(f"{source}: {complaint}")


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


def _run_of(request: pytest.FixtureRequest) -> TestRun:
    from pytest_gpusync.plugin import RUN

    run: TestRun = request.node.stash[RUN]
    run.device.switch_on()
    return run
