"""Where a step ends.

A step ends when an optimizer's ``step()`` returns, or where the caller says so. With several optimizers (a GAN has two,
others have one per parameter group) one iteration makes several calls. A step then lasts until an optimizer that was
already called in it is called again, and ends at the last call before that.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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
            self.handle.remove()  # removing it twice does nothing
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


class OptimizerNumbers:
    """Numbers optimizers. Unlike the identity of an object, a number is never used again."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Callable[[], object], int]] = {}
        self._next = 0

    def number(self, optimizer: object) -> int:
        """Return the number of an optimizer."""
        known = self._known.get(id(optimizer))
        if known is not None and known[0]() is optimizer:
            return known[1]
        self._next += 1
        self._known[id(optimizer)] = weakref.ref(optimizer), self._next
        return self._next


def boundaries(marks: list[tuple[int, int]]) -> list[int]:
    """Return the positions at which steps end.

    Args:
        marks: (position, optimizer) of every ``optimizer.step()``, in order.

    Returns:
        One position per step: that of the last call before an optimizer of the step is called again.
    """
    return [position for position, _ in steps(marks)]


def steps(marks: list[tuple[int, int]]) -> list[tuple[int, bool]]:
    """Return the position at which each step ends, and whether the step begins another training.

    Arguments are those of :func:`boundaries`. Another training begins where an optimizer is called for the first time,
    after steps of others that are not called again.
    """
    last_calls = {optimizer: index for index, (_, optimizer) in enumerate(marks)}
    found: list[tuple[int, bool]] = []
    seen: set[int] = set()
    stepped: set[int] = set()

    def end(position: int) -> None:
        found.append((position, bool(seen) and seen.isdisjoint(stepped)))
        seen.update(stepped)
        stepped.clear()

    for index, (position, optimizer) in enumerate(marks):
        is_over = not seen.isdisjoint(stepped) and all(last_calls[each] < index for each in stepped)
        if optimizer in stepped or (is_over and optimizer not in seen):
            end(marks[index - 1][0])
        stepped.add(optimizer)
        last = position
    if marks:
        end(last)
    return found


def within_trainings(starts: Sequence[bool], warmup: int) -> list[bool]:
    """Return for each step whether it counts as one: not the first `warmup` steps of another training than the first,
    which begin with its set-up.

    Where that leaves no step after warm-up, all steps count.

    Args:
        starts: for each step whether it begins another training.
        warmup: steps of warm-up.
    """
    counts: list[bool] = []
    left_out = 0
    for start in starts:
        left_out = warmup if start else left_out
        counts.append(left_out == 0)
        left_out = max(0, left_out - 1)
    return counts if sum(counts) > warmup else [True] * len(counts)
