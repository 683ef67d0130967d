"""Where a step ends.

A step ends when an optimizer's ``step()`` returns, or where the caller says so. With several optimizers (a GAN has two,
others have one per parameter group) one iteration makes several calls. A step then lasts until an optimizer that was
already called in it is called again, and ends at the last call before that.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class OptimizerSteps:
    """Follows every ``optimizer.step()`` of the process while attached, through torch's global hook."""

    def __init__(self, on_step: Callable[[object, object, object], None]) -> None:
        """Call `on_step` after each ``optimizer.step()``, with the optimizer and the arguments of the call."""
        self._on_step = on_step
        self.handle: Any = None
        """Removes the hook; None while it is not registered."""

    def attach(self) -> bool:
        """Register the hook; False if torch's optimizers are not loaded. Does nothing if attached."""
        if self.handle is None:
            module = sys.modules.get("torch.optim.optimizer")
            register = getattr(module, "register_optimizer_step_post_hook", None)
            if register is None:
                return False
            self.handle = register(self._on_step)
        return True

    def detach(self) -> None:
        """Remove the hook. Does nothing if not attached."""
        if self.handle is not None:
            self.handle.remove()
            self.handle = None


class StepCounter:
    """Counts steps while they run, by the rule of :func:`boundaries`."""

    def __init__(self) -> None:
        self.ended = 0
        """Steps that have ended."""
        self._complete = 0
        """Steps after which an optimizer was called again."""
        self._stepped: set[int] = set()
        self._last: int | None = None
        self._ends_step: int | None = None
        """The optimizer whose call ended the step before."""

    def called(self, optimizer: int | None) -> int:
        """Return how many steps have ended with the call of an optimizer, or with a ``mark_step()`` (None).

        Whether a call is the last one of its step is known when the next step begins. So the optimizer that ended the
        step before is taken for the last one of this step too.
        """
        if optimizer is None:
            self.ended += 1
            return self.ended
        if optimizer in self._stepped:
            self._complete += 1
            self._ends_step = self._last
            self._stepped.clear()
        self._stepped.add(optimizer)
        self._last = optimizer
        self.ended = self._complete + (optimizer == self._ends_step)
        return self.ended


def boundaries(marks: list[tuple[int, int]]) -> list[int]:
    """Return the positions at which steps end.

    Args:
        marks: (position, optimizer) of every ``optimizer.step()``, in order.

    Returns:
        One position per step: that of the last call before an optimizer of the step is called again.
    """
    ends: list[int] = []
    stepped: set[int] = set()
    for index, (position, optimizer) in enumerate(marks):
        if optimizer in stepped:
            ends.append(marks[index - 1][0])
            stepped.clear()
        stepped.add(optimizer)
        last = position
    if marks:
        ends.append(last)
    return ends
