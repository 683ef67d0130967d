"""Where a step ends.

A step ends when an optimizer's ``step()`` returns, or where the caller says so. With several optimizers (a GAN's two,
one per parameter group) one iteration makes several calls: a step then lasts until an optimizer that has stepped in it
steps again, and ends at the last call before that.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class OptimizerSteps:
    """Follows every ``optimizer.step()`` of the process while attached, through torch's own global hook."""

    def __init__(self, on_step: Callable[[object, object, object], None]) -> None:
        """Take what is called with an optimizer, and the arguments of its ``step()``, after each."""
        self._on_step = on_step
        self.handle: Any = None
        """What removes the hook; None while it is not registered."""

    def attach(self) -> bool:
        """Register the hook; False while torch's optimizers are not loaded. Harmless when attached."""
        if self.handle is None:
            module = sys.modules.get("torch.optim.optimizer")
            register = getattr(module, "register_optimizer_step_post_hook", None)
            if register is None:
                return False
            self.handle = register(self._on_step)
        return True

    def detach(self) -> None:
        """Remove the hook. Harmless when not attached."""
        if self.handle is not None:
            self.handle.remove()
            self.handle = None


def boundaries(marks: list[tuple[int, int]]) -> list[int]:
    """Return the positions at which steps end.

    Args:
        marks: (position, optimizer) for every ``optimizer.step()``, in order.

    Returns:
        One position per step: that of the last call before an optimizer of the step steps again.
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
