"""Device work noticed by the counters of torch's allocator, for recorders that do not see every launch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class AllocationWatch:
    """Notices that tensors were made on a GPU. Reading the counters neither synchronizes nor initializes anything."""

    def __init__(self) -> None:
        self._watcher: Callable[[int], bool] | None = None
        self._before = 0

    def start(self, watcher: Callable[[int], bool]) -> None:
        """Tell `watcher` of work from now on; work on another thread than the one that looks is not told apart."""
        self._watcher, self._before = watcher, _allocations()

    def stop(self) -> None:
        """Stop."""
        self._watcher = None

    def look(self, thread: int) -> None:
        """Tell the watcher, with this thread, if tensors were made since :meth:`start`."""
        watcher = self._watcher
        if watcher is not None and _allocations() != self._before and watcher(thread):
            self._watcher = None


def _allocations() -> int:
    """Return how many tensors were allocated on all GPUs since the process began."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    total = 0
    for index in range(torch.cuda.device_count()):
        if torch._C._cuda_hasPrimaryContext(index):
            try:
                total += torch._C._cuda_memoryStats(index)["allocation"]["all"]["allocated"]
            except (RuntimeError, NotImplementedError, KeyError):  # a pluggable allocator may have no statistics
                return 0
    return total
