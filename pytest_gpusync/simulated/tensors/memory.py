"""Memory of the simulated device, as reported by ``torch.cuda``'s statistics.

The allocation of every tensor of the device is recorded, and so is its release. Both are passed in order to
:mod:`.caching_allocator` when somebody reads the statistics or the device might be full. So current values and peaks
are those that torch's caching allocator would have after the same operators. Memory of a GPU's libraries (cuBLAS and
cuDNN workspaces, NCCL's buffers) and temporary memory inside a kernel are not simulated.
"""

from __future__ import annotations

import os
import re
import threading
from typing import TYPE_CHECKING, Any, Final

import torch

from pytest_gpusync.machine.deferred_signals import with_signals_deferred
from pytest_gpusync.simulated.abi.lifetimes import CAPACITY, DEVICES, READ_AT, USED, Lifetimes, best
from pytest_gpusync.simulated.base import sync_events
from pytest_gpusync.simulated.base.native import cells
from pytest_gpusync.simulated.base.state import current_device, device_index, process
from pytest_gpusync.simulated.base.sync_events import conditions
from pytest_gpusync.simulated.races import clocks, device_work, freed_memory
from pytest_gpusync.simulated.races.clocks import timeline
from pytest_gpusync.simulated.races.hooks import hooks
from pytest_gpusync.simulated.tensors import streams
from pytest_gpusync.simulated.tensors.caching_allocator import (
    SHARED,
    Block,
    CachingAllocator,
    OutOfMemory,
    PoolId,
    max_segment_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_CATCH_UP_AT: Final = 1 << 16
"""Number of events after which they are applied even if nobody reads the statistics."""
_MAX_TENSORS: Final = CAPACITY - 4 * _CATCH_UP_AT
"""Most tensors that may be live at the same time, so that the ring can hold all their releases."""
_FREED: Final = -1
_NBYTES: Final = (1 << 48) - 1
"""The bits of a word with the number of allocated bytes."""

_Event = tuple[int, int, int, int, int, PoolId]
"""Ring words before it, key, bytes (or :data:`_FREED`), device, stream, pool. The key of a tensor's memory is what
:meth:`Lifetimes.key` returns; for a tensor made by native code, the address of the memory."""

_lock = threading.RLock()
_events: list[_Event] = []
_allocators: dict[int, CachingAllocator] = {}
_blocks: dict[int, tuple[int, Block]] = {}
"""Live memory by key, with its device."""
_shrunk: dict[int, int] = {}
"""Keys of storages that were resized to 0 and are still live, by the address of their memory."""
_catching_up = False
_settled_calls = 0
"""Calls of native code when :func:`_settle` last looked."""
on_birth: Callable[[int], None] | None = None
"""See :func:`watch_births`."""
_lifetimes: Lifetimes | None = None


def watch_births(born: Callable[[int], None] | None) -> None:
    """Call `born` with the key of each new tensor's memory from now on, on the thread that makes it; None to stop."""
    global on_birth
    on_birth = born
    process.changed()


def lifetimes() -> Lifetimes:
    """Return the object that notices releases, created on first use."""
    global _lifetimes
    if _lifetimes is None:
        _lifetimes = best()
    return _lifetimes


def total() -> int:
    """Return the memory of each simulated device in bytes: what was requested, otherwise the host's."""
    return process.memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def record_birth(key: int, nbytes: int, index: int, died: int) -> None:
    """Record new memory of ``cuda:index``; `died` is the number of ring words when its key was made.

    Raises:
        torch.OutOfMemoryError: the device has no room for it.
    """
    if on_birth is not None:
        on_birth(key)
    stream = streams.current_id(index)
    _events.append((died, key, nbytes, index, stream, conditions.pool))
    learner = lifetimes()
    taken = cells[learner.taken_by_python + index] + max_segment_bytes(nbytes)
    cells[learner.taken_by_python + index] = taken
    left = cells[learner.room + index] - cells[learner.taken + index] - taken
    if left < 0 or len(_events) >= _CATCH_UP_AT or learner.unread() >= READ_AT:
        _catch_up()


def tell_tracker(key: int, index: int, died: int) -> None:
    """Tell who looks for races that memory of ``cuda:index`` was born, and whose memory it was if that matters; `died`
    is that of :func:`record_birth`.
    """
    block = None
    _settle()
    if freed_memory.must_know_blocks():
        _catch_up()
        found = _blocks.get(key)
        block = None if found is None else (found[1].address, found[1].size)
    freed_memory.born(lifetimes().memory_of(key), key, died, index, block)


def _key_of(address: int) -> int | None:
    """Return the key of the live memory that begins at `address`."""
    _catch_up()
    if address in _blocks:
        return address
    memory_of = lifetimes().memory_of
    return next((key for key in _blocks if memory_of(key) == address), None)


hooks.key_of = _key_of


def _settle() -> None:
    """Tell who looks for races what native code did since the last time."""
    global _settled_calls
    calls = lifetimes().context.calls
    if calls != _settled_calls:
        _settled_calls = calls
        _catch_up()


clocks.hooks.settle = _settle
hooks.catch_up = lambda: _catch_up()


def live_bytes() -> dict[int, int]:
    """Return the bytes of live memory by key."""
    _catch_up()
    return {key: block.size for key, (_, block) in _blocks.items()}


def _allocator(index: int) -> CachingAllocator:
    found = _allocators.get(index)
    if found is None:
        found = _allocators[index] = CachingAllocator(total())
    return found


def _catch_up() -> None:
    """Apply the recorded events.

    Raises:
        torch.OutOfMemoryError: an allocation did not fit.
    """
    if not _events and not lifetimes().unread():
        return
    with _lock:
        # A finalizer that runs in here may call this too: it sees what has been applied so far.
        if _catching_up:
            return
        freed_by_force, refused = with_signals_deferred(_apply_events)
    if freed_by_force:
        sync_events.announce("free", freed_by_force, device=current_device())
    if refused is not None:
        raise out_of_memory(*refused)


def _apply_events() -> tuple[int, tuple[int, int] | None]:
    """Apply the events to the allocators. Return how many segments they had to free, and the device and bytes of an
    allocation that did not fit.
    """
    global _catching_up
    _catching_up = True
    try:
        refused = None
        learner = lifetimes()
        # Read the position in the ring first, then the events: what another thread makes and releases meanwhile is left
        # for next time.
        written = learner.written()
        events = _events[:]
        del _events[: len(events)]
        for died, key, nbytes, index, stream, pool in events:
            refused = _apply_ring(died) or refused
            if nbytes == _FREED:
                _free(key)
            else:
                refused = _allocate(key, nbytes, index, stream, pool) or refused
        refused = _apply_ring(written) or refused
        freed_by_force = 0
        for index, allocator in _allocators.items():
            limit = allocator.capacity if allocator.limit is None else min(allocator.limit, allocator.capacity)
            cells[learner.room + index] = limit - allocator.reserved
            cells[learner.taken + index] = cells[learner.taken_by_python + index] = 0
            freed_by_force += allocator.freed_on_retry
            allocator.freed_on_retry = 0
        if len(_blocks) > _MAX_TENSORS:
            raise NotImplementedError(f"the simulated device holds at most {_MAX_TENSORS:,} tensors")
        return freed_by_force, refused
    finally:
        _catching_up = False


def _apply_ring(before: int) -> tuple[int, int] | None:
    """Apply the words of the ring before the ticket `before`; return the device and the bytes of an allocation that did
    not fit.
    """
    refused = None
    words = lifetimes().words(before)
    first = before - len(words)
    place, end = 0, len(words)
    while place < end:
        word = words[place]
        if word >= 0:
            block = _blocks.pop(word, None)
            if block is not None:
                if process.tracking:
                    freed_memory.died(word, first + place, block[1].address, block[1].size)
                _allocators[block[0]].free(block[1])
            elif _shrunk:
                _free(word)
            place += 1
        elif word & USED:
            after = place + 3 + (word & _NBYTES)
            if process.tracking:
                device_work.operator_ran((word >> 48) & 0x7F, words, place + 1, after)
            place = after
        else:
            key, index = words[place + 1], (word >> 48) & 0x7F
            refused = _allocate(key, word & _NBYTES, index, 0, SHARED) or refused
            if process.tracking and key in _blocks:
                made = _blocks[key][1]
                freed_memory.born(key, key, first + place, index, (made.address, made.size), timeline(index, 0))
            place += 2
    return refused


def _allocate(key: int, nbytes: int, index: int, stream: int, pool: PoolId) -> tuple[int, int] | None:
    try:
        _blocks[key] = (index, _allocator(index).allocate(nbytes, stream, pool))
    except OutOfMemory as error:
        return index, error.nbytes
    return None


def _free(key: int) -> None:
    block = _blocks.pop(key, None)
    if block is not None:
        if process.tracking:
            freed_memory.died(key, lifetimes().written(), block[1].address, block[1].size)
        _allocators[block[0]].free(block[1])
    elif _shrunk:
        for address, shrunk in list(_shrunk.items()):
            if shrunk == key:
                del _shrunk[address]


def out_of_memory(index: int, nbytes: int) -> torch.OutOfMemoryError:
    """Return the error of torch's allocator for `nbytes` bytes on ``cuda:index``."""
    allocator = _allocator(index)
    allowed = "" if allocator.limit is None else f"{_size(allocator.limit)} allowed; "
    private = allocator.in_private_pools()
    in_graphs = f"with {_size(private)} allocated in private pools (e.g., CUDA Graphs), " if private else ""
    return torch.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {_size(nbytes)}. GPU {index} has a total capacity of "
        f"{_size(allocator.capacity)} of which {_size(allocator.capacity - allocator.reserved)} is free. "
        f"Including non-PyTorch memory, this process has {_size(allocator.reserved)} memory in use. {allowed}"
        f"Of the allocated memory {_size(allocator.allocated)} is allocated by PyTorch, {in_graphs}and "
        f"{_size(allocator.reserved - allocator.allocated)} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
        "avoid fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
        "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )


_HOST_IS_FULL: Final = re.compile(r"DefaultCPUAllocator: can't allocate memory: you tried to allocate (\d+) bytes")


def as_out_of_memory(error: RuntimeError, index: int) -> RuntimeError:
    """Return `error`, or torch's out-of-memory error for a GPU if `error` says that the host has no memory left."""
    found = _HOST_IS_FULL.search(str(error))
    if found is None:
        return error
    try:
        _catch_up()
    except torch.OutOfMemoryError as earlier:
        return earlier
    _allocator(index).ooms += 1
    return out_of_memory(index, int(found[1]))


def _size(nbytes: int) -> str:
    """Return a size as the allocator's messages format it."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes > factor:
            return f"{nbytes / factor:.2f} {unit}"
    return f"{nbytes} bytes"


def take(key: int, nbytes: int, index: int) -> None:
    """Record memory of ``cuda:index`` that :func:`release` frees, or memory that it freed before."""
    record_birth(key, nbytes, index, lifetimes().written())


def release(key: int) -> None:
    """Free the memory `key`, although no tensor was released."""
    _events.append((lifetimes().written(), key, _FREED, 0, 0, SHARED))


def shrink(address: int) -> None:
    """Free the memory at `address`, whose storage is resized to 0 and stays alive."""
    key = _key_of(address)
    if key is not None:
        _shrunk[address] = key
        release(key)


def is_shrunk(address: int) -> bool:
    """Return whether the storage at `address` was resized to 0."""
    if not _shrunk:
        return False
    _catch_up()
    return address in _shrunk


def grow(address: int, nbytes: int, index: int) -> None:
    """Allocate memory again for a storage that was resized to 0.

    Raises:
        torch.OutOfMemoryError: the device has no room for it.
    """
    take(_shrunk.pop(address), nbytes, index)


def info(device: Any = None) -> tuple[int, int]:
    """Return (free, total) bytes of a device."""
    allocator = _up_to_date(device)
    return allocator.capacity - allocator.reserved, allocator.capacity


def _up_to_date(device: Any) -> CachingAllocator:
    _catch_up()
    return _allocator(device_index(device))


def empty_cache() -> None:
    """Free cached memory: one sync per segment, as ``cudaFree`` waits."""
    _catch_up()
    with _lock:
        freed = with_signals_deferred(lambda: sum(_allocator(index).empty_cache() for index in range(process.devices)))
    sync_events.announce("free", freed, device=current_device())


def set_fraction(fraction: float, device: Any = None) -> None:
    """Limit the process to `fraction` of a device's memory."""
    allocator = _up_to_date(device)
    allocator.limit = int(fraction * allocator.capacity)
    cells[lifetimes().room + device_index(device)] = 0


def allowed_fraction(device: Any = None) -> float:
    """Return the fraction of a device's memory that the process may use."""
    allocator = _allocator(device_index(device))
    return 1.0 if allocator.limit is None else allocator.limit / allocator.capacity


def use_pool(pool: PoolId, by: int) -> None:
    """Count a graph that starts (1) or stops (-1) using a private pool."""
    for index in range(process.devices):
        _allocator(index).use_pool(pool, by)


def reset_peak(device: Any = None) -> None:
    """Reset the peaks to the current values."""
    _up_to_date(device).reset_peaks()


def reset_accumulated(device: Any = None) -> None:
    """Reset the totals of allocations and frees."""
    _up_to_date(device).reset_sums()


def statistics(device: Any = None) -> dict[str, Any]:
    """Return the statistics as ``torch._C._cuda_memoryStats`` does."""
    return _up_to_date(device).statistics()


def trace(on: bool) -> None:
    """Keep every event of the allocators from now on, or discard them and keep none."""
    _catch_up()
    for index in range(process.devices):
        _allocator(index).trace = [] if on else None


def record_history(enabled: Any = "all", *_: Any, **__: Any) -> None:
    """See ``torch._C._cuda_record_memory_history``; the events have no stacks and no times."""
    trace(bool(enabled))


def snapshot(*_: Any) -> dict[str, Any]:
    """Return a snapshot as ``torch._C._cuda_memorySnapshot`` does."""
    _catch_up()
    devices = range(process.devices)
    return {
        "segments": [segment for index in devices for segment in _allocator(index).snapshot(index)],
        "device_traces": [
            [
                {"action": event.action, "addr": event.address, "size": event.nbytes, "stream": event.stream}
                for event in _allocator(index).trace or ()
            ]
            for index in devices
        ],
        "allocator_settings": {},
        "external_annotations": [],
    }


def reset() -> None:
    """Forget everything; live tensors are no longer counted."""
    with _lock:
        with_signals_deferred(_forget)


def _forget() -> None:
    learner = lifetimes()
    del _events[:]
    learner.words(learner.written())
    _blocks.clear()
    _shrunk.clear()
    _allocators.clear()
    for index in range(DEVICES):
        cells[learner.room + index] = cells[learner.taken + index] = cells[learner.taken_by_python + index] = 0


def host_statistics() -> dict[str, Any]:
    """Return no statistics, unlike ``torch._C._cuda_hostMemoryStats``: pinned memory is ordinary memory here."""
    return {}
