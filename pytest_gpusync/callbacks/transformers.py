"""A callback for the Trainer of Hugging Face transformers that holds a training to a budget of syncs."""

from __future__ import annotations

from typing import Any

from pytest_gpusync.callbacks.guard import HeldTraining

try:
    from transformers import TrainerCallback as _TrainerCallback
except ImportError as error:
    raise ImportError("pytest_gpusync.callbacks.transformers needs transformers; install it") from error


class SyncBudget(HeldTraining, _TrainerCallback):  # type: ignore[misc]
    """Holds the optimizer steps of ``Trainer.train()`` to a budget of syncs.

    What evaluation and saving wait for is reported and not counted; logging counts, in the step after it.

    It takes the arguments of :class:`~pytest_gpusync.callbacks.guard.HeldTraining`.
    """

    step = "Trainer step"
    _excuse_after_log = False

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
