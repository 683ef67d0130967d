"""Memory of the simulated device, as ``torch.cuda``'s statistics tell it.

What is allocated is the host memory that living simulated tensors hold, each rounded up to 512 bytes as the caching
allocator does. It is found through weak references to their storages: nothing runs when a tensor dies. So the peak is
looked for when memory may have grown by more than 1/64 beyond it, and is up to that much too low. There is no cache:
what is reserved equals what is allocated.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from . import ledger
from .state import current_device, device_index, process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_BLOCK = 512
_SEGMENT_OF_ITS_OWN = 10 << 20
"""Bytes from which the caching allocator takes a segment for one block, which ``empty_cache`` then frees."""
_SMALL = 1 << 20
"""Bytes up to which the caching allocator takes a block from its pool of small ones."""
_POOLS: Mapping[str, Callable[[int], bool]] = {
    "all": lambda nbytes: True,
    "small_pool": lambda nbytes: nbytes <= _SMALL,
    "large_pool": lambda nbytes: nbytes > _SMALL,
}
_SWEEP_AT = 1024
_lock = threading.Lock()


class _Device:
    """The storages of one device."""

    def __init__(self) -> None:
        self.storages: list[tuple[int, int]] = []
        """Weak reference and rounded bytes of each storage that was alive when last looked at."""
        self.upper = 0
        """Their bytes: an upper bound of what is allocated now."""
        self.peak = 0
        self.sweep_above = 0
        self.sweep_at = _SWEEP_AT
        self.freed_segments = 0
        """Segments freed since the cache was last emptied."""
        self.totals: Counter[tuple[str, str]] = Counter()
        """Bytes and blocks ever allocated, by pool."""
        self._peaks: Counter[tuple[str, str]] = Counter()

    def add(self, storage: torch.UntypedStorage) -> None:
        nbytes = -(-storage.nbytes() // _BLOCK) * _BLOCK
        if not nbytes:
            return
        reference: Any = storage._weak_ref()
        pool = "small_pool" if nbytes <= _SMALL else "large_pool"
        with _lock:
            self.storages.append((reference, nbytes))
            self.upper += nbytes
            self.totals["bytes", pool] += nbytes
            self.totals["blocks", pool] += 1
            if self.upper > self.sweep_above or len(self.storages) >= self.sweep_at:
                self._sweep()

    def figures(self, unit: str, pool: str, current: int) -> dict[str, int]:
        """Current, peak, ever allocated and ever freed."""
        allocated = sum(self.totals[unit, part] for part in _POOLS if pool in ("all", part))
        self._peaks[unit, pool] = max(self._peaks[unit, pool], current)
        return {
            "current": current,
            "peak": self._peaks[unit, pool],
            "allocated": allocated,
            "freed": allocated - current,
        }

    def sweep(self) -> int:
        """Drop the storages that died; returns the bytes allocated now."""
        with _lock:
            return self._sweep()

    def _sweep(self) -> int:
        expired = torch.UntypedStorage._expired
        alive = []
        total = 0
        for entry in self.storages:
            if expired(entry[0]):
                torch.UntypedStorage._free_weak_ref(entry[0])
                if entry[1] >= _SEGMENT_OF_ITS_OWN:
                    self.freed_segments += 1
            else:
                alive.append(entry)
                total += entry[1]
        self.storages = alive
        self.sweep_at = max(_SWEEP_AT, 2 * len(alive))
        self.upper = total
        self.set_peak(max(self.peak, total))
        return total

    def set_peak(self, peak: int) -> None:
        """Take `peak` bytes for the most that was ever allocated."""
        self.peak = peak
        self.sweep_above = peak + peak // 64


_devices: dict[int, _Device] = {}


def note(tensor: torch.Tensor, index: int) -> None:
    """Count the storage of `tensor`, new on ``cuda:index``."""
    device = _devices.get(index)
    if device is None:
        device = _devices[index] = _Device()
    device.add(tensor.untyped_storage())


def _device(device: Any) -> _Device:
    index = device_index(device)
    if index not in _devices:
        _devices[index] = _Device()
    return _devices[index]


def total() -> int:
    """Bytes of memory that each simulated device says it has: the host's."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of a device."""
    everything = total()
    return max(0, everything - _device(device).sweep()), everything


def empty_cache() -> None:
    """Give cached memory back: one sync where something large was freed since the last time, as ``cudaFree`` waits."""
    freed = False
    for index in range(process.devices):
        device = _device(index)
        device.sweep()
        freed = freed or device.freed_segments > 0
        device.freed_segments = 0
    if freed:
        ledger.sync("free", device=current_device())


def reset_peak(device: Any = None) -> None:
    """Start the peak again from what is allocated now."""
    entry = _device(device)
    entry.set_peak(entry.sweep())


def statistics(device: Any = None) -> dict[str, Any]:
    """As ``torch._C._cuda_memoryStats``. Peaks of the small and the large pool are those of the moments of asking."""
    entry = _device(device)
    entry.sweep()
    sizes, counts = {}, {}
    for pool, holds in _POOLS.items():
        blocks = [nbytes for _, nbytes in entry.storages if holds(nbytes)]
        sizes[pool] = entry.figures("bytes", pool, sum(blocks))
        counts[pool] = entry.figures("blocks", pool, len(blocks))
    sizes["all"]["peak"] = entry.peak
    nothing = {pool: dict.fromkeys(("current", "peak", "allocated", "freed"), 0) for pool in _POOLS}
    return {
        **dict.fromkeys(("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"), sizes),
        **dict.fromkeys(("allocation", "segment", "active"), counts),
        **dict.fromkeys(("inactive_split", "inactive_split_bytes"), nothing),
        "oversize_allocations": nothing["all"],
        "oversize_segments": nothing["all"],
        "max_split_size": -1,
        "num_alloc_retries": 0,
        "num_ooms": 0,
        "num_sync_all_streams": 0,
        "num_device_alloc": counts["all"]["allocated"],
        "num_device_free": counts["all"]["freed"],
    }


def reset() -> None:
    """Forget everything; tensors that still live are no longer counted."""
    for device in _devices.values():
        for reference, _ in device.storages:
            torch.UntypedStorage._free_weak_ref(reference)
    _devices.clear()


def host_statistics() -> dict[str, Any]:
    """As ``torch._C._cuda_hostMemoryStats``: pinned memory is ordinary memory here, so there is nothing to tell."""
    return {}
