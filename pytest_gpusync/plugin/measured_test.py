"""What is measured of one test: its call, and the regions that its fixtures open."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pytest

from pytest_gpusync.measure.region import record
from pytest_gpusync.model.budgets import WHOLE_REGION, BudgetExceeded, NotMeasured, judge, judge_growth
from pytest_gpusync.model.estimates import LEAST_SAMPLES
from pytest_gpusync.model.line_counts import measured_steps
from pytest_gpusync.model.measurement import MeasurementError
from pytest_gpusync.model.step_times import SIMULATED
from pytest_gpusync.reporting.run_file import (
    elapsed_region_document,
    environment_document,
    region_document,
    unmeasured_document,
)
from pytest_gpusync.reporting.terminal import LINES_SHOWN, render_verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpusync.measure.region import Region
    from pytest_gpusync.model.budgets import Budget, GrowthBudget, Verdict
    from pytest_gpusync.model.measurement import Measurement
    from pytest_gpusync.plugin.session_device import SessionDevice
    from pytest_gpusync.reporting.quantities import Elapsed


@dataclass
class Record:
    """A closed region of a test, and the verdicts on it."""

    measurement: Measurement
    verdicts: list[Verdict] = field(default_factory=list)


class TestRun:
    """One run of one test. Made before its set-up, read when its call is reported."""

    __test__ = False

    def __init__(
        self,
        nodeid: str,
        device: SessionDevice,
        *,
        budget: Budget | None = None,
        growth: GrowthBudget | None = None,
        warmup: int | None = None,
        marked: bool = False,
        growth_marked: bool = False,
        insistent: bool = False,
        strict: bool = False,
        call_is_region: bool = False,
        holds_back: bool = False,
        all_threads: bool = False,
        limit: int | None = LINES_SHOWN,
    ) -> None:
        self.nodeid = nodeid
        self.device = device
        self.budget = budget
        self.growth = growth
        self.warmup = warmup
        self.marked = marked
        """True if a budget is the test's own: then not to be measured is to fail."""
        self.growth_marked = growth_marked
        """True if the budget of memory growth is the test's own: then to run too few steps for it is to fail."""
        self.strict = strict
        """True if a budget that cannot be decided is broken (--gpu-require)."""
        self.insistent = insistent
        """True if the test fails where there is no device to measure on."""
        self.call_is_region = call_is_region
        """False for a test that is measured only inside its fixtures' regions."""
        self.holds_back = holds_back
        """True if a broken budget fails the test only at its end: the test of a distributed run, where the other ranks
        would wait for this one at the next collective."""
        self._all_threads = all_threads
        self.limit = limit
        self._held_back: AssertionError | None = None
        self.records: list[Record] = []
        self.runs: list[Record] = []
        """The records of gpu_train: where there are any, they and not the whole call are held to the test's budget."""
        self.elapsed: list[tuple[str, Elapsed]] = []
        """What gpu_elapsed measured, by name."""
        self._missed: str | None = None
        """Why the call was not measured although every test was to be."""
        self._names: dict[str, int] = {}

    @contextmanager
    def region(
        self,
        name: str | None,
        kind: str,
        warmup: int | None = None,
        *,
        memory: bool = False,
        process_memory: bool = False,
    ) -> Iterator[Region]:
        """Open a region for a fixture, sampling memory if asked.

        Raises:
            NotMeasured: nothing can be measured here.
        """
        self.device.switch_on()
        asked = _Asked(memory, process_memory, self._all_threads)
        with _open(self._name(name or kind), warmup, self.device, asked) as region:
            yield region

    def keep(self, region: Region) -> Record:
        """Keep what a closed region measured for the reports."""
        kept = Record(region.result())
        self.records.append(kept)
        return kept

    def hold(self, kept: Record, budget: Budget, subject: str) -> None:
        """Hold a record to a budget.

        Raises:
            BudgetExceeded: a step broke it.
            NotMeasured: nothing was counted.
        """
        __tracebackhide__ = True
        self.settle(kept, judge(kept.measurement, budget, subject=subject))

    def settle(self, kept: Record, verdict: Verdict) -> None:
        """Keep a verdict, and fail the test if it says so.

        Raises:
            BudgetExceeded: the budget was broken.
            NotMeasured: nothing was measured, or under --gpu-require it could not be decided.
        """
        __tracebackhide__ = True
        kept.verdicts.append(verdict)
        text = self.text(verdict, kept)
        failure: AssertionError | None = None
        if verdict.outcome == "failed":
            failure = BudgetExceeded(text, verdict)
        elif verdict.outcome == "not_measured" or (self.strict and verdict.outcome == "undecided"):
            failure = NotMeasured(text)
        if failure is None:
            return
        if not self.holds_back:
            raise failure
        self._held_back = self._held_back or failure

    def raise_held_back(self) -> None:
        """Fail the test, which has ended, for the first of its regions that broke a budget.

        Raises:
            BudgetExceeded, NotMeasured: as :meth:`settle`.
        """
        __tracebackhide__ = True
        if self._held_back is not None:
            raise self._held_back

    def keep_elapsed(self, method: str, found: Elapsed) -> None:
        """Keep what a method of gpu_elapsed measured for the reports."""
        self.elapsed.append((self._name(f"gpu_elapsed.{method}"), found))

    def need_time(self) -> None:
        """Skip the test where no time can be measured; under --gpu-require fail it.

        Raises:
            NotMeasured: under --gpu-require.
        """
        __tracebackhide__ = True
        if self.device.is_simulated or self.device.missing is not None:
            self.skip_untimed()

    def skip_untimed(self) -> NoReturn:
        """Skip the test, which asks for time where none can be measured; under --gpu-require fail it.

        Raises:
            NotMeasured: under --gpu-require.
        """
        __tracebackhide__ = True
        reason = SIMULATED if self.device.is_simulated else f"time takes a real GPU: {self.device.missing}"
        if self.strict:
            raise NotMeasured(f"Not measured: {reason}")
        pytest.skip(reason)

    def text(self, verdict: Verdict, kept: Record) -> str:
        """Return a verdict as a failed test shows it."""
        return "\n".join(render_verdict(verdict, kept.measurement, limit=self.limit))

    @contextmanager
    def call(self) -> Iterator[None]:
        """Measure the call of the test and hold it to the test's budget.

        A failure of the test's own stays its failure; the verdict is then kept, not raised.

        Raises:
            BudgetExceeded: a step broke a budget.
            NotMeasured: the syncs could not be counted, or memory not be measured.
        """
        __tracebackhide__ = True
        if not self.marked and "torch" not in sys.modules:
            # Nothing of this test can run on a GPU yet, and to measure would be to import torch for it.
            yield
            if "torch" in sys.modules:
                self._missed = "torch was first imported inside the test; import it at the top of the file"
            return
        self.device.switch_on()
        if self.device.refusal is not None and not self.insistent:
            self._missed = self.device.refusal
            yield
            return
        region = None
        try:
            samples_memory = self.growth is not None
            asked = _Asked(samples_memory, False, self._all_threads)
            with _open(self.nodeid, self.warmup, self.device, asked) as region:
                yield
        except BaseException as error:
            if region is None:
                raise
            if isinstance(error, (Exception, pytest.fail.Exception)) and not isinstance(error, pytest.exit.Exception):
                self._judge_call(region)
            else:
                # The session ends here: what was seen so far is shown, and is no measurement of the test.
                seen = replace(region.result(), complete=False, problem="the test was interrupted")
                self.records.insert(0, Record(seen))
            raise
        verdicts = self._judge_call(region)
        for verdict, kept in verdicts:
            if verdict.outcome == "failed":
                raise BudgetExceeded(self.text(verdict, kept), verdict)
        for verdict, kept in verdicts:
            if verdict.outcome == "not_measured" or (self.strict and verdict.outcome == "undecided"):
                raise NotMeasured(self.text(verdict, kept))

    def _judge_call(self, region: Region) -> list[tuple[Verdict, Record]]:
        measurement = region.result()
        if not self.marked and not measurement.device_used and not measurement.all_syncs:
            return []  # the test touched no GPU
        call = Record(measurement)
        if not self.runs:
            self.records.insert(0, call)
        verdicts = []
        for kept in self.runs or [call]:
            for verdict in self._judge(kept.measurement):
                kept.verdicts.append(verdict)
                verdicts.append((verdict, kept))
        return verdicts

    def _judge(self, measurement: Measurement) -> Iterator[Verdict]:
        """Hold a measurement to the test's budgets.

        A limit for every test does not ask each to run more steps than its warm-up, nor as many as growth takes.
        """
        steps = len(measured_steps(measurement))
        if self.budget is not None and (self.marked or steps):
            yield judge(measurement, self.budget, subject="Test")
        has_enough = measurement.step_source != WHOLE_REGION and steps >= LEAST_SAMPLES
        if self.growth is not None and (self.growth_marked or has_enough):
            yield judge_growth(measurement, self.growth)

    def document(self) -> dict[str, Any] | None:
        """Return what was measured as plain data that travels with the test's report; None if there is nothing."""
        regions = [region_document(kept.measurement, kept.verdicts) for kept in self.records]
        regions += [elapsed_region_document(name, found) for name, found in self.elapsed]
        if self._missed is not None:
            regions.append(unmeasured_document(self.nodeid, self._missed))
        if not regions:
            return None
        environment = self.records[0].measurement.environment if self.records else None
        return {"environment": environment and environment_document(environment), "regions": regions}

    def failed_verdicts(self) -> list[str]:
        """Return the text of every failed verdict on this run."""
        return [
            self.text(verdict, kept)
            for kept in self.records
            for verdict in kept.verdicts
            if verdict.outcome == "failed"
        ]

    def _name(self, name: str) -> str:
        """Return the name of the next region of this kind: ``a.py::test_b gpu_train``, then ``... gpu_train 2``."""
        number = self._names[name] = self._names.get(name, 0) + 1
        return f"{self.nodeid} {name}" if number == 1 else f"{self.nodeid} {name} {number}"


class _Asked(NamedTuple):
    """What a region is to measure besides, as :func:`record` takes it."""

    memory: bool
    process_memory: bool
    all_threads: bool


@contextmanager
def _open(name: str, warmup: int | None, device: SessionDevice, asked: _Asked) -> Iterator[Region]:
    if device.refusal is not None:
        raise NotMeasured(f"Not measured: {device.refusal}")
    with ExitStack() as stack:
        try:
            region = stack.enter_context(record(name, warmup=warmup, device=device.choice, **asked._asdict()))
        except MeasurementError as error:
            raise NotMeasured(f"Not measured: {error}") from None
        yield region
