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
