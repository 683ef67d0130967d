"""A callback for Lightning, as ``lightning`` or ``pytorch_lightning``, that holds a training to a budget of syncs."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpusync.callbacks.guard import STEPS, WARMUP, TrainingGuard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_gpusync.budgets import Verdict
    from pytest_gpusync.events import Measurement


def _base() -> Any:
    """Return the Callback class of the Lightning that is loaded, or else installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    loaded = [name for name in names if name in sys.modules]
    for name in loaded or [name for name in names if find_spec(name.partition(".")[0]) is not None]:
        return import_module(f"{name}.callbacks").Callback
    raise ImportError("pytest_gpusync.callbacks.lightning needs lightning; install lightning or pytorch-lightning")


_Callback: Any = _base()


class SyncBudget(_Callback):  # type: ignore[misc]
    """Holds the training batches of ``Trainer.fit()`` to a budget of syncs.

    A step is a batch. What validation and checks before training wait for is reported and not counted.

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
        super().__init__()
        self._guard = TrainingGuard(
            max,
            exact,
            steps=steps,
            warmup=warmup,
            action=action,
            require=require,
            report=report,
            source="Lightning batch",
        )

    @property
    def measurement(self) -> Measurement | None:
        """What was measured; None before the last measured step."""
        return self._guard.measurement

    @property
    def verdict(self) -> Verdict | None:
        """Whether the budget was kept; None before the last measured step, and without a budget."""
        return self._guard.verdict

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
