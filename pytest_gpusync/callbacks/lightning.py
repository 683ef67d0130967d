"""A callback for Lightning (``lightning`` or ``pytorch_lightning``) that checks a training against a budget
of syncs.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pytest_gpusync.callbacks.guard import BudgetedTraining


def _base() -> Any:
    """Return the Callback class of the loaded Lightning, or else of the installed one."""
    names = ("lightning.pytorch", "pytorch_lightning")
    loaded = [name for name in names if name in sys.modules]
    for name in loaded or [name for name in names if find_spec(name.partition(".")[0]) is not None]:
        return import_module(f"{name}.callbacks").Callback
    raise ImportError("pytest_gpusync.callbacks.lightning needs lightning; install lightning or pytorch-lightning")


_Callback: Any = _base()


class SyncBudget(BudgetedTraining, _Callback):  # type: ignore[misc]
    """Checks the training batches of ``Trainer.fit()`` against a budget of syncs.

    A step is a batch. Syncs of validation, and of checks before training, are reported and not counted.

    The arguments are those of :class:`~pytest_gpusync.callbacks.guard.BudgetedTraining`.
    """

    step = "Lightning batch"

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start to measure."""
        self._guard.begin(f"{type(pl_module).__name__}.fit")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *arguments: Any) -> None:
        """End a step."""
        self._guard.end_step()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Allow the syncs of validation."""
        self._guard.allow("validation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Count again."""
        self._guard.resume()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the measurement, if the training was shorter than it."""
        self._guard.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop measuring: a failed training has no verdict."""
        self._guard.abandon()
