"""Which lines allocated the memory that grows from step to step.

Nothing is recorded until memory grows. Then, from the end of a step on, the stack of each allocation is kept: by
torch's memory history, or on the simulated device when a tensor is created. Live allocations are summed by line at the
end of the next step, and at the ends of later ones, at growing distances, because a sum takes time. What a line has
more of at the last of these has grown there. A tensor that every step replaces does not count, however new it is, nor
does what is allocated after the last step.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

from pytest_gpusync.machine.devices import simulation_is_on
from pytest_gpusync.model.measurement import GrownLine
from pytest_gpusync.source import attribution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.model.measurement import MemorySample

_Line = tuple[str, int, str]

_STEPS_OBSERVED: Final = 6
"""Steps after warm-up that must have ended before anything is recorded."""


class _History(Protocol):
    """Keeps the stacks of allocations while it is on."""

    def start(self) -> bool:
        """Start; False if it cannot."""

    def live_bytes(self) -> Counter[_Line]:
        """Return, by line, the bytes that were allocated since the start and are still live."""

    def stop(self) -> None:
        """Stop, and restore everything as it was."""


class AllocationTracker:
    """Follows the memory of a region at the ends of its steps, and records allocations once it grows."""

    def __init__(self, warmup: int, not_before: int = 0) -> None:
        """Observe the steps after `warmup`, and record from the end of step `not_before` at the earliest."""
        self._first = warmup
        self.not_before = not_before
        """The step from whose end allocations may be recorded."""
        self._history: _History | None = None
        self._before: Counter[_Line] | None = None
        self._since = 0
        """The number of steps that had ended when `_before` was summed."""
        self._after: Counter[_Line] | None = None
        self._until = 0
        """The same for `_after`."""
        self._has_tried = False

    def step_ended(self, samples: Sequence[MemorySample]) -> None:
        """Handle the end of a step; its sample is the last of `samples`."""
        if self._history is not None:
            passed = len(samples) - self._since
            if self._before is None:
                self._before, self._since = self._history.live_bytes(), len(samples)
            elif passed & (passed - 1) == 0:  # after 1, 2, 4, 8 ... steps
                self._after, self._until = self._history.live_bytes(), len(samples)
            return
        if self._has_tried or len(samples) < max(self._first + _STEPS_OBSERVED, self.not_before):
            return
        if not _grows([sample.allocated for sample in samples[-_STEPS_OBSERVED:]]):
            return
        self._has_tried = True
        history: _History = _SimulatedHistory() if simulation_is_on() else _TorchHistory()
        if history.start():
            self._history = history

    def close(self) -> tuple[GrownLine, ...] | None:
        """Stop, and return the lines that grew, most bytes per step first; None if nothing was recorded."""
        history, self._history = self._history, None
        if history is None:
            return None
        history.stop()
        if self._before is None or self._after is None:
            return None
        steps, grown = self._until - self._since, Counter(self._after)
        grown.subtract(self._before)
        found = [
            GrownLine(path, line, function, nbytes / steps)
            for (path, line, function), nbytes in grown.items()
            if nbytes > 0
        ]
        return tuple(sorted(found, key=lambda line: -line.bytes_per_step))


def _grows(allocated: Sequence[int | None]) -> bool:
    """Return whether memory grew over these steps, and in most of them."""
    known = [nbytes for nbytes in allocated if nbytes is not None]
    if len(known) < len(allocated):
        return False
    rises = sum(after > before for before, after in pairwise(known))
    return known[-1] > known[0] and 2 * rises > len(known) - 1


class _TorchHistory:
    """torch's memory history: the stacks of live allocations, without those already freed."""

    def start(self) -> bool:
        torch: Any = sys.modules["torch"]
        try:
            if torch._C._cuda_isHistoryEnabled():
                return False  # recorded by someone else, with other settings
            torch.cuda.memory._record_memory_history(enabled="state", context="state", stacks="python")
        except (AttributeError, RuntimeError, TypeError):
            return False
        return True

    def live_bytes(self) -> Counter[_Line]:
        torch: Any = sys.modules["torch"]
        found: Counter[_Line] = Counter()
        for segment in torch.cuda.memory._snapshot()["segments"]:
            for block in segment["blocks"]:
                if block["state"] == "active_allocated" and block.get("frames"):
                    found[_line_of(block["frames"])] += block["size"]
        return found

    def stop(self) -> None:
        torch: Any = sys.modules["torch"]
        torch.cuda.memory._record_memory_history(enabled=None)


def _line_of(frames: Sequence[dict[str, Any]]) -> _Line:
    """Return the innermost line of user code of a stack, innermost frame first; without user code, the
    innermost line.
    """
    for frame in frames:
        if attribution.is_user_code(frame["filename"]):
            return attribution.display_path(frame["filename"]), frame["line"], frame["name"]
    return attribution.display_path(frames[0]["filename"]), frames[0]["line"], frames[0]["name"]


class _SimulatedHistory:
    """The allocations of the simulated device's tensors, each with its line."""

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}

    def start(self) -> bool:
        from pytest_gpusync.simulated.tensors import memory

        memory.watch_births(self._born)
        return True

    def _born(self, key: int) -> None:
        import threading

        site = attribution.charge(sys._getframe(2), threading.get_ident()).site
        self._lines[key] = (site.path, site.line, site.function)

    def live_bytes(self) -> Counter[_Line]:
        from pytest_gpusync.simulated.tensors import memory

        found: Counter[_Line] = Counter()
        for key, nbytes in memory.live_bytes().items():
            line = self._lines.get(key)
            if line is not None:
                found[line] += nbytes
        return found

    def stop(self) -> None:
        from pytest_gpusync.simulated.tensors import memory

        memory.watch_births(None)
