"""What the callbacks share: the first steps of a training are measured, and then compared with a budget."""

from __future__ import annotations

import logging
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from pytest_gpusync.measure.recording import allow
from pytest_gpusync.measure.region import record
from pytest_gpusync.model.budgets import Budget, BudgetExceeded, NotMeasured, RaceBudget, judge, judge_races
from pytest_gpusync.model.measurement import MeasurementError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.measure.region import Region
    from pytest_gpusync.model.budgets import Verdict
    from pytest_gpusync.model.measurement import Measurement

STEPS: Final = 50
WARMUP: Final = 3

logger = logging.getLogger("pytest_gpusync")


class TrainingGuard:
    """Measures the steps of one training, and then checks the budget.

    The measurement ends after `steps` steps following warm-up, or with the training; from then on nothing is subscribed
    and nothing costs anything.
    """

    def __init__(
        self,
        max: int | None,
        exact: int | None,
        *,
        steps: int | None,
        warmup: int,
        action: Literal["raise", "warn"],
        require: bool,
        report: str | Path | Sequence[str | Path] | None,
        source: str,
    ) -> None:
        if action not in ("raise", "warn"):
            raise ValueError(f'action must be "raise" or "warn", not {action!r}')
        if steps is not None and steps < 1:
            raise ValueError(f"steps must be at least 1, or None for the whole training, not {steps}")
        if warmup < 0:
            raise ValueError(f"warmup must be at least 0, not {warmup}")
        self.budget = None if max is None and exact is None else Budget(max, exact, source=source)
        self._last = None if steps is None else warmup + steps
        self._warmup = warmup
        self._action = action
        self._require = require
        self._reports = [Path(path) for path in ([report] if isinstance(report, (str, Path)) else report or [])]
        self._source = source
        self._open = ExitStack()
        self._allowed = ExitStack()
        self._region: Region | None = None
        self._marked = 0
        self.measurement: Measurement | None = None
        """What was measured; None until the measurement has ended."""
        self.verdict: Verdict | None = None

    def begin(self, name: str) -> None:
        """Start to measure. If nothing can be measured, report that and let the training go on.

        Raises:
            NotMeasured: nothing can be measured, and `require` was set.
        """
        self.abandon()
        self.measurement = self.verdict = None
        self._marked = 0
        try:
            self._region = self._open.enter_context(record(name, warmup=self._warmup))
        except MeasurementError as error:
            self._report_unmeasured(str(error))

    def end_step(self) -> None:
        """End a step of the training, and the measurement with the last requested one.

        Raises:
            BudgetExceeded: a step broke the budget.
        """
        if self._region is None:
            return
        self._region.mark_step(self._source)
        self._marked += 1
        if self._marked == self._last:
            self.end()

    def allow(self, reason: str) -> None:
        """Report the syncs from here to :meth:`resume` with a reason, and do not count them."""
        self.resume()
        if self._region is not None:
            self._allowed.enter_context(allow(reason))

    def resume(self) -> None:
        """Count again. Does nothing if no syncs were allowed."""
        self._allowed.close()

    def abandon(self) -> None:
        """Stop measuring, without a verdict. Does nothing if nothing is measured."""
        self._allowed.close()
        self._open.close()
        self._region = None

    def end(self) -> None:
        """Stop measuring, write the reports, and check the budget. Does nothing if the measurement has ended.

        Raises:
            BudgetExceeded: a step broke the budget.
            NotMeasured: nothing was measured, and `require` was set.
        """
        region = self._region
        if region is None:
            return
        self.abandon()
        self.measurement = measurement = region.result()
        if self.budget is not None and measurement.device_used:
            self.verdict = judge(measurement, self.budget)
            races = judge_races(measurement, RaceBudget(self._source))
            if self.verdict.outcome == "passed" and races is not None and races.outcome == "failed":
                self.verdict = races
        self._write(measurement)
        if self.budget is None:
            return
        if self.verdict is None:
            self._report_unmeasured("nothing of the training ran on the GPU")
        elif self.verdict.outcome == "not_measured":
            self._report_unmeasured(self.verdict.sentence.removeprefix("Not measured: "))
        elif self.verdict.outcome == "failed":
            self._report_failure(measurement, self.verdict)
        else:
            logger.info(self.verdict.sentence)

    def _report_failure(self, measurement: Measurement, verdict: Verdict) -> None:
        from pytest_gpusync.reporting.terminal import render_verdict

        text = "\n".join(render_verdict(verdict, measurement))
        if self._action == "raise":
            raise BudgetExceeded(text, verdict)
        warnings.warn(text, RuntimeWarning, stacklevel=4)

    def _report_unmeasured(self, problem: str) -> None:
        text = f"Not measured: {problem}"
        if self._require:
            raise NotMeasured(text)
        warnings.warn(text, RuntimeWarning, stacklevel=4)

    def _write(self, measurement: Measurement) -> None:
        if not self._reports:
            return
        from pytest_gpusync.reporting.files import path_of_rank, write_report
        from pytest_gpusync.reporting.run_file import region_document, run_document

        verdicts = [self.verdict] if self.verdict is not None else []
        document = run_document(measurement.environment, [region_document(measurement, verdicts)])
        for path in self._reports:
            try:
                write_report(document, path_of_rank(path))
            except OSError as error:
                warnings.warn(f"{path} cannot be written ({error.strerror})", RuntimeWarning, stacklevel=4)


class BudgetedTraining:
    """Base of the callbacks: a training with a budget of syncs per step.

    Args:
        max: most syncs of a step after warm-up. Without `max` and `exact` the training is only measured.
        exact: exact number of syncs of a step.
        steps: number of steps measured after warm-up; None for the whole training, which keeps every sync in memory.
        warmup: first steps, which are left out.
        action: "raise" ends the training with :class:`~pytest_gpusync.BudgetExceeded`; "warn" warns.
        require: raise :class:`~pytest_gpusync.NotMeasured` instead of warning if nothing can be measured.
        report: file or files to write, in the format of their endings as for ``--gpu-sync-report``; with several ranks,
            each writes its own.
    """

    step: ClassVar[str]
    """What ends a step, as reports call it."""

    def __init__(
        self,
        max: int | None = None,
        exact: int | None = None,
        *,
        steps: int | None = STEPS,
        warmup: int = WARMUP,
        action: Literal["raise", "warn"] = "raise",
        require: bool = False,
        report: str | Path | Sequence[str | Path] | None = None,
    ) -> None:
        super().__init__()  # the framework's class
        self._guard = TrainingGuard(
            max,
            exact,
            steps=steps,
            warmup=warmup,
            action=action,
            require=require,
            report=report,
            source=self.step,
        )

    @property
    def measurement(self) -> Measurement | None:
        """What was measured; None before the last measured step."""
        return self._guard.measurement

    @property
    def verdict(self) -> Verdict | None:
        """Whether the budget was kept; None before the last measured step, and without a budget."""
        return self._guard.verdict
