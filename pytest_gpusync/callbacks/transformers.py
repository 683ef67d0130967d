"""A callback for the Trainer of Hugging Face transformers that checks a training against a budget of syncs."""

from __future__ import annotations

from typing import Any

from pytest_gpusync.callbacks.guard import BudgetedTraining

try:
    from transformers import TrainerCallback as _TrainerCallback
except ImportError as error:
    raise ImportError("pytest_gpusync.callbacks.transformers needs transformers; install it") from error


class SyncBudget(BudgetedTraining, _TrainerCallback):  # type: ignore[misc]
    """Checks the optimizer steps of ``Trainer.train()`` against a budget of syncs.

    Syncs of evaluation and saving are reported and not counted; logging counts, in the step after it.

    The arguments are those of :class:`~pytest_gpusync.callbacks.guard.BudgetedTraining`.
    """

    step = "Trainer step"
    _allow_after_log = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **details: Any) -> None:
        """Start to measure."""
        self._guard.begin(f"{type(details.get('model')).__name__} training")

    def on_step_begin(self, args: Any, state: Any, control: Any, **details: Any) -> None:
        """Count again."""
        self._guard.resume()

    def on_step_end(self, args: Any, state: Any, control: Any, **details: Any) -> None:
        """End a step; the Trainer may log, evaluate and save next, in this order."""
        self._guard.end_step()
        self._allow_what_follows(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **details: Any) -> None:
        """Allow what follows an epoch: the Trainer may log, evaluate and save here too."""
        self._allow_what_follows(control)

    def on_log(self, args: Any, state: Any, control: Any, **details: Any) -> None:
        """Allow the syncs after logging."""
        if self._allow_after_log:
            self._allow_after_log = False
            self._guard.allow("evaluation or checkpoint")

    def on_train_end(self, args: Any, state: Any, control: Any, **details: Any) -> None:
        """End the measurement, if the training was shorter than it."""
        self._guard.end()

    def _allow_what_follows(self, control: Any) -> None:
        follows = control.should_evaluate or control.should_save
        self._allow_after_log = follows and control.should_log
        if follows and not control.should_log:
            self._guard.allow("evaluation or checkpoint")
