"""A callback for Lightning, as ``lightning`` or ``pytorch_lightning``, that holds a training to a budget of syncs."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pytest_gpusync.callbacks.guard import HeldTraining


def _base() -> Any:
    """Return the Callback class of the Lightning that is loaded, or else installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    loaded = [name for name in names if name in sys.modules]
    for name in loaded or [name for name in names if find_spec(name.partition(".")[0]) is not None]:
        return import_module(f"{name}.callbacks").Callback
    raise ImportError("pytest_gpusync.callbacks.lightning needs lightning; install lightning or pytorch-lightning")


_Callback: Any = _base()


class SyncBudget(HeldTraining, _Callback):  # type: ignore[misc]
    """Holds the training batches of ``Trainer.fit()`` to a budget of syncs.

    A step is a batch. What validation and checks before training wait for is reported and not counted.

    It takes the arguments of :class:`~pytest_gpusync.callbacks.guard.HeldTraining`.
    """

    step = "Lightning batch"

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to measure."""
        self._guard.begin(f"{type(pl_module).__name__}.fit")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *arguments: Any) -> None:
        """End a step."""
        self._guard.end_step()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Excuse what validation waits for."""
        self._guard.excuse("validation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Count again."""
        self._guard.resume()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Hold a training that was shorter than what was to be measured to the budget."""
        self._guard.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop measuring: a training that failed keeps no budget and breaks none."""
        self._guard.abandon()
