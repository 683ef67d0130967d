"""A callback for the Trainer of Hugging Face transformers that holds a training to a budget of syncs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pytest_gpusync.callbacks.guard import STEPS, WARMUP, TrainingGuard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_gpusync.budgets import Verdict
    from pytest_gpusync.events import Measurement

try:
    from transformers import TrainerCallback as _TrainerCallback
except ImportError as error:
    raise ImportError("pytest_gpusync.callbacks.transformers needs transformers; install it") from error


class SyncBudget(_TrainerCallback):  # type: ignore[misc]
    """Holds the optimizer steps of ``Trainer.train()`` to a budget of syncs.

    What evaluation and saving wait for is reported and not counted; logging counts, in the step after it.

    Args:
        max: most syncs of a step after warm-up. Without `max` and `exact` the training is measured only.
        exact: exactly so many.
        steps: how many steps after warm-up are measured; None for the whole training, which keeps every sync in memory.
        warmup: first steps, which are left out.
        action: "raise" ends the training with :class:`~pytest_gpusync.budgets.BudgetExceeded`; "warn" warns.
        require: raise :class:`~pytest_gpusync.budgets.NotMeasured` where nothing can be measured, instead of warning.
        report: file or files to write, by ending, as ``--gpu-sync-report`` does; of several ranks each writes its own.
    """

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
        self._guard = TrainingGuard(
            max,
            exact,
            steps=steps,
            warmup=warmup,
            action=action,
            require=require,
            report=report,
            source="Trainer step",
        )
        self._excuse_after_log = False

    @property
    def measurement(self) -> Measurement | None:
        """What was measured; None before the last measured step."""
        return self._guard.measurement

    @property
    def verdict(self) -> Verdict | None:
        """Whether the budget was kept; None before the last measured step, and without a budget."""
        return self._guard.verdict

    def on_train_begin(self, args: Any, state: Any, control: Any, **details: Any) -> None:
        """Begin to measure."""
        self._guard.begin(f"{type(details.get('model')).__name__} training")

    def on_step_begin(self, args: Any, state: Any, control: Any, **details: Any) -> None:
        """Count again."""
        self._guard.resume()

    def on_step_end(self, args: Any, state: Any, control: Any, **details: Any) -> None:
        """End a step; the Trainer may log, evaluate and save next, in this order."""
        self._guard.end_step()
        self._excuse_what_follows(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **details: Any) -> None:
        """After an epoch the Trainer may log, evaluate and save as well."""
        self._excuse_what_follows(control)

    def on_log(self, args: Any, state: Any, control: Any, **details: Any) -> None:
        """Excuse what comes after logging."""
        if self._excuse_after_log:
            self._excuse_after_log = False
            self._guard.excuse("evaluation or checkpoint")

    def on_train_end(self, args: Any, state: Any, control: Any, **details: Any) -> None:
        """Hold a training that was shorter than what was to be measured to the budget."""
        self._guard.end()

    def _excuse_what_follows(self, control: Any) -> None:
        follows = control.should_evaluate or control.should_save
        self._excuse_after_log = follows and control.should_log
        if follows and not control.should_log:
            self._guard.excuse("evaluation or checkpoint")
