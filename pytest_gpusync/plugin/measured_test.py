"""What is measured of one test: its call, and the regions opened by its fixtures."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pytest

from pytest_gpusync.measure.region import record as open_region
from pytest_gpusync.model.budgets import (
    WHOLE_REGION,
    BudgetExceeded,
    NotMeasured,
    RaceBudget,
    judge,
    judge_growth,
    judge_races,
)
from pytest_gpusync.model.estimates import MIN_SAMPLES
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
    from pytest_gpusync.plugin.options import RaceMode
    from pytest_gpusync.plugin.session_device import SessionDevice
    from pytest_gpusync.reporting.quantities import Elapsed


@dataclass
class RegionRecord:
    """A closed region of a test, and its verdicts."""

    measurement: Measurement
    verdicts: list[Verdict] = field(default_factory=list)


class MeasuredTest:
    """One run of one test. It is created before the test's setup and read when its call is reported."""

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
        must_measure: bool = False,
        must_decide: bool = False,
        call_is_region: bool = False,
        defers_failure: bool = False,
        all_threads: bool = False,
        races: RaceMode = "fail",
        has_baseline: bool = False,
        limit: int | None = LINES_SHOWN,
    ) -> None:
        self.nodeid = nodeid
        self.device = device
        self.budget = budget
        self.growth = growth
        self.warmup = warmup
        self.marked = marked
        """True if the test itself has a budget: then it fails if it was not measured."""
        self.growth_marked = growth_marked
        """True if the test itself has a budget of memory growth: then it fails if it runs too few steps."""
        self.must_decide = must_decide
        """True if an undecided budget fails the test (--gpu-require)."""
        self.must_measure = must_measure
        """True if the test fails if there is no device to measure on."""
        self.call_is_region = call_is_region
        """False for a test that is measured only inside its fixtures' regions."""
        self.defers_failure = defers_failure
        """True if a broken budget fails the test only at its end: in a distributed run, the other ranks would wait for
        this one at the next collective."""
        self._all_threads = all_threads
        self._races = races
        self._has_baseline = has_baseline
        self.limit = limit
        self._deferred_failure: AssertionError | None = None
        self.records: list[RegionRecord] = []
        self.runs: list[RegionRecord] = []
        """The records of gpu_train. If there are any, the test's budget applies to them and not to the whole call."""
        self.elapsed: list[tuple[str, Elapsed]] = []
        """Results of gpu_elapsed, by name."""
        self._unmeasured_reason: str | None = None
        """Why the call was not measured although every test should be."""
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
        """Open a region for a fixture, sampling memory if requested.

        Raises:
            NotMeasured: nothing can be measured here.
        """
        self.device.switch_on()
        options = _RegionOptions(memory, process_memory, self._all_threads, self._races != "ignore")
        with _open(self._name(name or kind), warmup, self.device, options) as region:
            yield region

    def keep(self, region: Region) -> RegionRecord:
        """Keep the measurement of a closed region for the reports."""
        record = RegionRecord(region.result())
        self.records.append(record)
        return record

    def check_budget(self, record: RegionRecord, budget: Budget, subject: str) -> None:
        """Check a record against a budget.

        Raises:
            BudgetExceeded: a step broke it.
            NotMeasured: nothing was counted.
        """
        __tracebackhide__ = True
        self.apply_verdict(record, judge(record.measurement, budget, subject=subject))

    def apply_verdict(self, record: RegionRecord, verdict: Verdict) -> None:
        """Keep a verdict, and fail the test if it requires that, or if there was a race.

        Raises:
            BudgetExceeded: the budget was broken, or a race was found.
            NotMeasured: nothing was measured, or with --gpu-require the budget could not be decided.
        """
        __tracebackhide__ = True
        record.verdicts.append(verdict)
        failure = self._failure(verdict, record)
        races = self._race_verdict(record)
        if races is not None:
            record.verdicts.append(races)
            failure = failure or self._failure(races, record)
        if failure is None:
            return
        if not self.defers_failure:
            raise failure
        self._deferred_failure = self._deferred_failure or failure

    def _failure(self, verdict: Verdict, record: RegionRecord) -> AssertionError | None:
        """Return the exception with which a verdict fails the test; None if it does not."""
        if verdict.outcome == "failed":
            return BudgetExceeded(self.text(verdict, record), verdict)
        if verdict.outcome == "not_measured" or (self.must_decide and verdict.outcome == "undecided"):
            return NotMeasured(self.text(verdict, record))
        return None

    def _race_verdict(self, record: RegionRecord) -> Verdict | None:
        """Return the verdict about the races of a record under a budget; None if they do not fail it."""
        if self._races != "fail" or any(verdict.budget.quantity == "races" for verdict in record.verdicts):
            return None
        verdict = judge_races(record.measurement, RaceBudget())
        return verdict if verdict is not None and verdict.outcome == "failed" else None

    def raise_deferred_failure(self) -> None:
        """Fail the test, which has ended, for the first of its regions that broke a budget.

        Raises:
            BudgetExceeded, NotMeasured: see :meth:`apply_verdict`.
        """
        __tracebackhide__ = True
        if self._deferred_failure is not None:
            raise self._deferred_failure

    def keep_elapsed(self, method: str, found: Elapsed) -> None:
        """Keep the result of a method of gpu_elapsed for the reports."""
        self.elapsed.append((self._name(f"gpu_elapsed.{method}"), found))

    def require_time(self) -> None:
        """Skip the test if no time can be measured; with --gpu-require fail it.

        Raises:
            NotMeasured: with --gpu-require.
        """
        __tracebackhide__ = True
        if self.device.is_simulated or self.device.no_gpu_reason is not None:
            self.skip_untimed()

    def skip_untimed(self) -> NoReturn:
        """Skip the test, which needs times that cannot be measured; with --gpu-require fail it.

        Raises:
            NotMeasured: with --gpu-require.
        """
        __tracebackhide__ = True
        reason = SIMULATED if self.device.is_simulated else f"times need a real GPU: {self.device.no_gpu_reason}"
        if self.must_decide:
            raise NotMeasured(f"Not measured: {reason}")
        pytest.skip(reason)

    def text(self, verdict: Verdict, record: RegionRecord) -> str:
        """Return a verdict as the text of a failed test."""
        return "\n".join(render_verdict(verdict, record.measurement, limit=self.limit))

    @contextmanager
    def call(self) -> Iterator[None]:
        """Measure the call of the test and check the test's budgets.

        If the test fails by itself, that failure is kept; the verdict is then recorded, not raised.

        Raises:
            BudgetExceeded: a step broke a budget.
            NotMeasured: syncs could not be counted, or memory not be measured.
        """
        __tracebackhide__ = True
        if not self.marked and "torch" not in sys.modules:
            # Nothing of this test can run on a GPU yet, and measuring would import torch for it.
            yield
            if "torch" in sys.modules:
                self._unmeasured_reason = "torch was first imported inside the test; import it at the top of the file"
            return
        self.device.switch_on()
        if self.device.unavailable is not None and not self.must_measure:
            self._unmeasured_reason = self.device.unavailable
            yield
            return
        region = None
        try:
            samples_memory = self.growth is not None
            options = _RegionOptions(samples_memory, False, self._all_threads, self._races != "ignore")
            with _open(self.nodeid, self.warmup, self.device, options) as region:
                yield
        except BaseException as error:
            if region is None:
                raise
            if isinstance(error, (Exception, pytest.fail.Exception)) and not isinstance(error, pytest.exit.Exception):
                self._judge_call(region)
            else:
                # The session ends here: what was seen so far is shown, but is no measurement of the test.
                seen = replace(region.result(), complete=False, problem="the test was interrupted")
                self.records.insert(0, RegionRecord(seen))
            raise
        verdicts = self._judge_call(region)
        for verdict, record in verdicts:
            if verdict.outcome == "failed":
                raise BudgetExceeded(self.text(verdict, record), verdict)
        for verdict, record in verdicts:
            if verdict.outcome == "not_measured" or (self.must_decide and verdict.outcome == "undecided"):
                raise NotMeasured(self.text(verdict, record))

    def _judge_call(self, region: Region) -> list[tuple[Verdict, RegionRecord]]:
        measurement = region.result()
        if not self.marked and not measurement.device_used and not measurement.all_syncs:
            return []  # the test used no GPU
        call = RegionRecord(measurement)
        if not self.runs:
            self.records.insert(0, call)
        verdicts = []
        for record in self.runs or [call]:
            found = list(self._judge(record.measurement))
            if self.budget is not None or self.growth is not None or self._has_baseline:
                races = self._race_verdict(record)
                found += [races] if races is not None else []
            record.verdicts += found
            verdicts += [(verdict, record) for verdict in found]
        return verdicts

    def _judge(self, measurement: Measurement) -> Iterator[Verdict]:
        """Compare a measurement with the test's budgets.

        A limit for every test does not require each one to run more steps than its warm-up, or enough steps for an
        estimate.
        """
        steps = len(measured_steps(measurement))
        if self.budget is not None and (self.marked or steps):
            yield judge(measurement, self.budget, subject="Test")
        has_enough = measurement.step_source != WHOLE_REGION and steps >= MIN_SAMPLES
        if self.growth is not None and (self.growth_marked or has_enough):
            yield judge_growth(measurement, self.growth)

    def document(self) -> dict[str, Any] | None:
        """Return what was measured as plain data, which is sent with the test's report; None if there is nothing."""
        regions = [region_document(record.measurement, record.verdicts) for record in self.records]
        regions += [elapsed_region_document(name, found) for name, found in self.elapsed]
        if self._unmeasured_reason is not None:
            regions.append(unmeasured_document(self.nodeid, self._unmeasured_reason))
        if not regions:
            return None
        environment = self.records[0].measurement.environment if self.records else None
        return {"environment": environment and environment_document(environment), "regions": regions}

    def failed_verdicts(self) -> list[str]:
        """Return the text of every failed verdict of this run."""
        return [
            self.text(verdict, record)
            for record in self.records
            for verdict in record.verdicts
            if verdict.outcome == "failed"
        ]

    def _name(self, name: str) -> str:
        """Return the name of the next region of this kind: ``a.py::test_b gpu_train``, then ``... gpu_train 2``."""
        number = self._names[name] = self._names.get(name, 0) + 1
        return f"{self.nodeid} {name}" if number == 1 else f"{self.nodeid} {name} {number}"


class _RegionOptions(NamedTuple):
    """Options of a region, as :func:`record` takes them."""

    memory: bool
    process_memory: bool
    all_threads: bool
    races: bool


@contextmanager
def _open(name: str, warmup: int | None, device: SessionDevice, options: _RegionOptions) -> Iterator[Region]:
    if device.unavailable is not None:
        raise NotMeasured(f"Not measured: {device.unavailable}")
    with ExitStack() as stack:
        try:
            region = stack.enter_context(open_region(name, warmup=warmup, device=device.choice, **options._asdict()))
        except MeasurementError as error:
            raise NotMeasured(f"Not measured: {error}") from None
        yield region
