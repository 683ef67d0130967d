"""What is measured of one test: its call, and the regions opened by its fixtures."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import pytest

from pytest_gpusync import record as open_region
from pytest_gpusync.model.budgets import (
    NOTHING_RAN,
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
from pytest_gpusync.reporting.not_counted import SET_UP
from pytest_gpusync.reporting.run_file import (
    elapsed_region_document,
    environment_document,
    region_document,
    unmeasured_document,
)
from pytest_gpusync.reporting.terminal import LINES_SHOWN, render_verdict

_UNUSED: Final = f"{NOTHING_RAN} in the test's call (gpu_sync_budget(max=None) exempts a test from budgets)"

_ONLY_IN_SET_UP: Final = (
    f"{NOTHING_RAN} in the test's call, only in its set-up, which is not measured: fixtures, setUp and setup_method"
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpusync.measure.region import Region
    from pytest_gpusync.measure.step_on import StepOn
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
    children: list[RegionRecord] = field(default_factory=list)
    """What the processes that the test started did on the device meanwhile."""

    @classmethod
    def of(cls, region: Region) -> RegionRecord:
        """Return the record of a closed region."""
        measurement, children = region.result(), [cls(child) for child in region.children()]
        if children and not measurement.device_used:
            measurement = replace(measurement, device_used=True)
        return cls(measurement, children=children)


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
        step_on: StepOn = None,
        marked: bool = False,
        growth_marked: bool = False,
        must_measure: bool = False,
        must_decide: bool = False,
        must_time: bool = False,
        call_is_region: bool = False,
        defers_failure: bool = False,
        all_threads: bool = False,
        races: RaceMode = "fail",
        has_baseline: bool = False,
        names_fixtures: bool = False,
        limit: int | None = LINES_SHOWN,
    ) -> None:
        self.nodeid = nodeid
        self.device = device
        self.budget = budget
        self.growth = growth
        self.warmup = warmup
        self._step_on = step_on
        self._call: Region | None = None
        """The region of the call, while it is open."""
        self.marked = marked
        """True if the test itself has a budget: then it fails if it was not measured."""
        self.growth_marked = growth_marked
        """True if the test itself has a budget of memory growth: then it fails if it runs too few steps."""
        self.must_decide = must_decide
        """True if an undecided budget fails the test (--gpu-require and --gpu-require-measured)."""
        self.must_time = must_time
        """True if a test that needs times fails where there are none (--gpu-require)."""
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
        self._names_fixtures = names_fixtures
        """True if the syncs of set-up and tear-down are reported, as not counted."""
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
        self._fixtures: tuple[ExitStack, Region] | None = None
        """The open region of set-up or tear-down."""
        self._outside_call: list[Measurement] = []
        """What set-up and tear-down did on the device."""
        self._before_tear_down = 0
        """How many of these were recorded before tear-down."""

    @contextmanager
    def region(
        self,
        name: str | None,
        kind: str,
        warmup: int | None = None,
        *,
        memory: bool = False,
        process_memory: bool = False,
        step_on: StepOn = None,
    ) -> Iterator[Region]:
        """Open a region for a fixture, sampling memory if requested.

        Raises:
            NotMeasured: nothing can be measured here.
        """
        self.device.switch_on()
        options = _RegionOptions(memory, process_memory, self._all_threads, self._races != "ignore", step_on)
        with _open(self._name(name or kind), warmup, self.device, options) as region:
            yield region

    def step_on(self, step_on: StepOn) -> None:
        """Say what ends the steps of the test's call; does nothing if the call is not measured.

        Raises:
            ValueError: `step_on` ends no step.
        """
        if self._call is not None:
            self._call.step_on(step_on)

    def keep(self, region: Region) -> RegionRecord:
        """Keep the measurement of a closed region for the reports."""
        record = RegionRecord.of(region)
        self.records.append(record)
        return record

    def check_budget(self, record: RegionRecord, budget: Budget, subject: str) -> None:
        """Check a record against a budget.

        Raises:
            BudgetExceeded: a step broke it.
            NotMeasured: nothing was counted.
        """
        __tracebackhide__ = True
        broken = [child for child in record.children if self._judge_child(child, budget).outcome != "passed"]
        self.apply_verdict(record, judge(record.measurement, budget, subject=subject))
        for child in broken:
            self.apply_verdict(child, child.verdicts.pop())

    def _judge_child(self, child: RegionRecord, budget: Budget) -> Verdict:
        """Compare what a process did with a budget, and keep the verdict."""
        verdict = judge(child.measurement, budget, subject="Process")
        if verdict.outcome != "not_measured":
            verdict = replace(verdict, sentence=f"{child.measurement.process}: {verdict.sentence}")
        child.verdicts.append(verdict)
        return verdict

    def apply_verdict(self, record: RegionRecord, verdict: Verdict) -> None:
        """Keep a verdict, and fail the test if it requires that, or if there was a race.

        Raises:
            BudgetExceeded: the budget was broken, or a race was found.
            NotMeasured: nothing was measured, or with --gpu-require the budget could not be decided.
        """
        __tracebackhide__ = True
        record.verdicts.append(verdict)
        failure = self._failure(verdict, record)
        for races, raced in self._race_verdicts(record):
            raced.verdicts.append(races)
            failure = failure or self._failure(races, raced)
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

    def _race_verdicts(self, record: RegionRecord) -> Iterator[tuple[Verdict, RegionRecord]]:
        """Yield the verdicts about the races of a record under a budget, and of the processes it started, that fail
        it.
        """
        for one in (record, *record.children):
            if self._races != "fail" or any(verdict.budget.quantity == "races" for verdict in one.verdicts):
                continue
            verdict = judge_races(one.measurement, RaceBudget())
            if verdict is not None and verdict.outcome == "failed":
                process = one.measurement.process
                yield verdict if process is None else replace(verdict, sentence=f"{process}: {verdict.sentence}"), one

    def raise_deferred_failure(self) -> None:
        """Fail the test, which has ended, for the first of its regions that broke a budget.

        Raises:
            BudgetExceeded, NotMeasured: see :meth:`apply_verdict`.
        """
        __tracebackhide__ = True
        if self._deferred_failure is not None:
            raise self._deferred_failure

    def open_fixtures(self) -> None:
        """Record what set-up or tear-down does from here to :meth:`close_fixtures`. No budget counts it; it is named.

        Nothing happens where nothing could be measured.
        """
        if not self._names_fixtures or "torch" not in sys.modules or self._fixtures is not None:
            return
        self.device.switch_on()
        options = _RegionOptions(False, False, self._all_threads, races=False)
        opened = ExitStack()
        try:
            region = opened.enter_context(_open(self.nodeid, None, self.device, options))
        except NotMeasured:
            return
        self._fixtures = opened, region

    def close_fixtures(self) -> None:
        """End what :meth:`open_fixtures` began, if anything."""
        if self._fixtures is None:
            return
        (opened, region), self._fixtures = self._fixtures, None
        opened.close()
        self._outside_call.append(region.result())
        self._outside_call += region.children()

    def begin_tear_down(self) -> None:
        """Record what fixtures do from here on as tear-down."""
        self._before_tear_down = len(self._outside_call)
        self.open_fixtures()

    def tear_down_document(self) -> dict[str, Any] | None:
        """Return what tear-down did on the device as a region object; None if it made no sync."""
        return self._fixtures_document("tear-down", self._outside_call[self._before_tear_down :])

    def _fixtures_document(self, name: str, found: Sequence[Measurement]) -> dict[str, Any] | None:
        """Return the syncs of set-up or tear-down as one region object; None if there are none."""
        syncs = tuple(replace(sync, step=0) for one in found for sync in one.all_syncs)
        if not syncs:
            return None
        return region_document(
            replace(
                found[0],
                name=f"{self.nodeid} {name}",
                all_syncs=syncs,
                steps=1,
                warmup=0,
                step_source=SET_UP,
                complete=True,
                problem=None,
                times=None,
            )
        )

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
        if self.must_time:
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
            options = _RegionOptions(samples_memory, False, self._all_threads, self._races != "ignore", self._step_on)
            with _open(self.nodeid, self.warmup, self.device, options) as region:
                self._call = region
                try:
                    yield
                finally:
                    self._call = None
        except BaseException as error:
            if region is None:
                raise
            if isinstance(error, (Exception, pytest.fail.Exception)) and not isinstance(error, pytest.exit.Exception):
                self._judge_call(region)
            else:
                # What was seen so far is shown, but is no measurement of the test.
                ended = "skipped itself" if isinstance(error, pytest.skip.Exception) else "was interrupted"
                seen = replace(region.result(), complete=False, problem=f"the test {ended}")
                self.records.insert(0, RegionRecord(seen))
            raise
        verdicts = self._judge_call(region)
        for verdict, record in verdicts:
            if verdict.outcome == "failed":
                raise BudgetExceeded(self.text(verdict, record), verdict)
        for verdict, record in verdicts:
            if verdict.outcome == "not_measured" or (self.must_decide and verdict.outcome == "undecided"):
                raise NotMeasured(self.text(verdict, record))

    def end_step(self, source: str) -> None:
        """End a step of the call, if it is measured; `source` is what such a step is."""
        if self._call is not None:
            self._call.mark_step(source)

    def _judge_call(self, region: Region) -> list[tuple[Verdict, RegionRecord]]:
        call = RegionRecord.of(region)
        measurement = call.measurement
        if not self.marked and not measurement.device_used:
            # The test did not use the device; what other threads did meanwhile is reported.
            if measurement.all_syncs:
                self.records.insert(0, call)
            return []
        if measurement.unused is None and not measurement.device_used:
            in_set_up = any(one.device_used for one in self._outside_call)
            call.measurement = replace(measurement, unused=_ONLY_IN_SET_UP if in_set_up else _UNUSED)
        if not self.runs:
            self.records.insert(0, call)
        verdicts = []
        for record in self.runs or [call]:
            found = list(self._judge(record.measurement))
            record.verdicts += found
            verdicts += [(verdict, record) for verdict in found]
            if self.budget is not None:
                verdicts += [(self._judge_child(child, self.budget), child) for child in record.children]
            if self.budget is not None or self.growth is not None or self._has_baseline:
                for races, raced in self._race_verdicts(record):
                    raced.verdicts.append(races)
                    verdicts.append((races, raced))
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
        kept = [*self.records, *(child for record in self.records for child in record.children)]
        regions = [region_document(record.measurement, record.verdicts) for record in kept]
        regions += [elapsed_region_document(name, found) for name, found in self.elapsed]
        if self._unmeasured_reason is not None:
            regions.append(unmeasured_document(self.nodeid, self._unmeasured_reason))
        environment = next(
            (one.environment for one in (*(kept.measurement for kept in self.records), *self._outside_call)), None
        )
        set_up = self._fixtures_document("set-up", self._outside_call)
        if set_up is not None:
            regions.append(set_up)
        if not regions:
            return None
        return {"environment": environment and environment_document(environment), "regions": regions}

    def failed_verdicts(self) -> list[str]:
        """Return the text of every failed verdict of this run."""
        return [
            self.text(verdict, record)
            for kept in self.records
            for record in (kept, *kept.children)
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
    step_on: StepOn = None


@contextmanager
def _open(name: str, warmup: int | None, device: SessionDevice, options: _RegionOptions) -> Iterator[Region]:
    if device.unavailable is not None:
        raise NotMeasured(f"Not measured: {device.unavailable}")
    with ExitStack() as stack:
        try:
            region = stack.enter_context(
                open_region(name, warmup=warmup, device=device.choice, children=True, **options._asdict())
            )
        except MeasurementError as error:
            raise NotMeasured(f"Not measured: {error}") from None
        yield region
