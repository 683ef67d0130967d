"""Memory of the simulated device, as ``torch.cuda``'s statistics tell it.

Every new tensor of the device is noted, and so is its death; :mod:`.allocator` is told of both, in their order, when
somebody asks or the device might be full. So figures and peaks are those that torch's caching allocator would have
after the same operators. What a GPU's libraries take besides (cuBLAS and cuDNN workspaces, NCCL's buffers) and
temporary memory within one kernel are not simulated.
"""

from __future__ import annotations

import os
import re
import threading
from typing import TYPE_CHECKING, Any, Final

import torch

from . import ledger, streams
from .allocator import SHARED, Block, CachingAllocator, OutOfMemory, PoolId, most_taken
from .ledger import conditions
from .lifetimes import CAPACITY, DEVICES, READ_AT, Lifetimes, best
from .native import cells
from .state import current_device, device_index, process
from .uninterrupted import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable

_SETTLE_AT: Final = 1 << 16
"""Events after which the books are brought up to date unasked."""
_MOST: Final = CAPACITY - 4 * _SETTLE_AT
"""Tensors that may live at once, so that the ring holds all their deaths."""
_FREED: Final = -1
_NBYTES: Final = (1 << 48) - 1
"""The bits of a word that tell how many bytes were born."""

_Event = tuple[int, int, int, int, int, PoolId]
"""Words of the ring before it, key, bytes (or :data:`_FREED`), device, stream, pool. The key of a tensor's memory is
what :meth:`Lifetimes.key` says; of one that was made past Python, the memory's address.
"""

_lock = threading.RLock()
_events: list[_Event] = []
_allocators: dict[int, CachingAllocator] = {}
_blocks: dict[int, tuple[int, Block]] = {}
"""Living memory by key, with its device."""
_shrunk: dict[int, int] = {}
"""Keys of storages that were resized to nothing and live on, by the address of their memory."""
_settling = False
on_birth: Callable[[int], None] | None = None
"""See :func:`watch`."""
_lifetimes: Lifetimes | None = None


def watch(born: Callable[[int], None] | None) -> None:
    """Tell `born` the key of each new tensor's memory from now on, on the thread that makes it; None ends it."""
    global on_birth
    on_birth = born
    process.changed()


def lifetimes() -> Lifetimes:
    """What learns of deaths, made at the first use."""
    global _lifetimes
    if _lifetimes is None:
        _lifetimes = best()
    return _lifetimes


def total() -> int:
    """Bytes of memory that each simulated device has: what was asked for, otherwise the host's."""
    return process.memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def note(key: int, nbytes: int, index: int, died: int) -> None:
    """Count new memory of ``cuda:index``; `died` is how many words the ring had when its
    key was made.

    Raises:
        torch.OutOfMemoryError: the device has no room for it.
    """
    if on_birth is not None:
        on_birth(key)
    stream = streams.current_id(index)
    _events.append((died, key, nbytes, index, stream, conditions.pool))
    learner = lifetimes()
    taken = cells[learner.taken_by_python + index] + most_taken(nbytes)
    cells[learner.taken_by_python + index] = taken
    left = cells[learner.room + index] - cells[learner.taken + index] - taken
    if left < 0 or len(_events) >= _SETTLE_AT or learner.unread() >= READ_AT:
        _settle()


def living() -> dict[int, int]:
    """Return the bytes of living memory by key."""
    _settle()
    return {key: block.size for key, (_, block) in _blocks.items()}


def _allocator(index: int) -> CachingAllocator:
    found = _allocators.get(index)
    if found is None:
        found = _allocators[index] = CachingAllocator(total())
    return found


def _settle() -> None:
    """Bring the books up to date.

    Raises:
        torch.OutOfMemoryError: an allocation did not fit.
    """
    if not _events and not lifetimes().unread():
        return
    with _lock:
        # A finaliser that runs in here may ask, too: it is told what is known so far.
        if _settling:
            return
        freed_by_force, refused = uninterrupted(_bring_up_to_date)
    if freed_by_force:
        ledger.sync("free", freed_by_force, device=current_device())
    if refused is not None:
        raise out_of_memory(*refused)


def _bring_up_to_date() -> tuple[int, tuple[int, int] | None]:
    """Tell the allocators what has happened; returns how many segments they had to give back, and of an allocation
    that did not fit the device and the bytes.
    """
    global _settling
    _settling = True
    try:
        refused = None
        learner = lifetimes()
        # First how far to read, then the events: what another thread makes meanwhile, and gives back, is for next time.
        written = learner.written()
        events = _events[:]
        del _events[: len(events)]
        for died, key, nbytes, index, stream, pool in events:
            refused = _replay(died) or refused
            if nbytes == _FREED:
                _free(key)
            else:
                refused = _take(key, nbytes, index, stream, pool) or refused
        refused = _replay(written) or refused
        freed_by_force = 0
        for index, allocator in _allocators.items():
            limit = allocator.capacity if allocator.limit is None else min(allocator.limit, allocator.capacity)
            cells[learner.room + index] = limit - allocator.reserved
            cells[learner.taken + index] = cells[learner.taken_by_python + index] = 0
            freed_by_force += allocator.freed_on_retry
            allocator.freed_on_retry = 0
        if len(_blocks) > _MOST:
            raise NotImplementedError(f"the simulated device holds at most {_MOST:,} tensors")
        return freed_by_force, refused
    finally:
        _settling = False


def _replay(before: int) -> tuple[int, int] | None:
    """Take over what the ring tells up to the ticket `before`; returns the device and the bytes of an allocation that
    did not fit.
    """
    refused = None
    words = iter(lifetimes().words(before))
    for word in words:
        if word >= 0:
            block = _blocks.pop(word, None)
            if block is not None:
                _allocators[block[0]].free(block[1])
            elif _shrunk:
                _free(word)
        else:
            refused = _take(next(words), word & _NBYTES, (word >> 48) & 0x7F, 0, SHARED) or refused
    return refused


def _take(key: int, nbytes: int, index: int, stream: int, pool: PoolId) -> tuple[int, int] | None:
    try:
        _blocks[key] = (index, _allocator(index).allocate(nbytes, stream, pool))
    except OutOfMemory as error:
        return index, error.nbytes
    return None


def _free(key: int) -> None:
    block = _blocks.pop(key, None)
    if block is not None:
        _allocators[block[0]].free(block[1])
    elif _shrunk:
        for address, shrunk in list(_shrunk.items()):
            if shrunk == key:
                del _shrunk[address]


def out_of_memory(index: int, nbytes: int) -> torch.OutOfMemoryError:
    """The error of torch's allocator for `nbytes` bytes on ``cuda:index``."""
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


def translated(error: RuntimeError, index: int) -> RuntimeError:
    """`error`, or what torch raises on a GPU where it says that the host has no memory left."""
    found = _HOST_IS_FULL.search(str(error))
    if found is None:
        return error
    try:
        _settle()
    except torch.OutOfMemoryError as earlier:
        return earlier
    _allocator(index).ooms += 1
    return out_of_memory(index, int(found[1]))


def _size(nbytes: int) -> str:
    """As the allocator's messages write a size."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes > factor:
            return f"{nbytes / factor:.2f} {unit}"
    return f"{nbytes} bytes"


def take(key: int, nbytes: int, index: int) -> None:
    """Count memory of ``cuda:index`` that :func:`release` gives back, or again that which it gave back."""
    note(key, nbytes, index, lifetimes().written())


def release(key: int) -> None:
    """Give the memory `key` back although nothing died."""
    _events.append((lifetimes().written(), key, _FREED, 0, 0, SHARED))


def shrink(address: int) -> None:
    """Give back the memory at `address`, whose storage is resized to nothing and lives on."""
    _settle()
    key = address if address in _blocks else None
    if key is None:
        memory_of = lifetimes().memory_of
        key = next((key for key in _blocks if memory_of(key) == address), None)
    if key is not None:
        _shrunk[address] = key
        release(key)


def is_shrunk(address: int) -> bool:
    """Whether the storage at `address` was resized to nothing."""
    if not _shrunk:
        return False
    _settle()
    return address in _shrunk


def grow(address: int, nbytes: int, index: int) -> None:
    """Take memory again for a storage that was resized to nothing.

    Raises:
        torch.OutOfMemoryError: the device has no room for it.
    """
    take(_shrunk.pop(address), nbytes, index)


def info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of a device."""
    allocator = _up_to_date(device)
    return allocator.capacity - allocator.reserved, allocator.capacity


def _up_to_date(device: Any) -> CachingAllocator:
    _settle()
    return _allocator(device_index(device))


def empty_cache() -> None:
    """Give cached memory back: one sync for each segment, as ``cudaFree`` waits."""
    _settle()
    with _lock:
        freed = uninterrupted(lambda: sum(_allocator(index).empty_cache() for index in range(process.devices)))
    ledger.sync("free", freed, device=current_device())


def set_fraction(fraction: float, device: Any = None) -> None:
    """Allow the process `fraction` of a device's memory."""
    allocator = _up_to_date(device)
    allocator.limit = int(fraction * allocator.capacity)
    cells[lifetimes().room + device_index(device)] = 0


def allowed_fraction(device: Any = None) -> float:
    """The fraction of a device's memory that the process may have."""
    allocator = _allocator(device_index(device))
    return 1.0 if allocator.limit is None else allocator.limit / allocator.capacity


def use_pool(pool: PoolId, by: int) -> None:
    """Count a graph that uses a private pool (1) or no longer does (-1)."""
    for index in range(process.devices):
        _allocator(index).use_pool(pool, by)


def reset_peak(device: Any = None) -> None:
    """Start the peaks again from what there is now."""
    _up_to_date(device).reset_peaks()


def reset_accumulated(device: Any = None) -> None:
    """Start the sums of what was ever allocated and freed again."""
    _up_to_date(device).reset_sums()


def statistics(device: Any = None) -> dict[str, Any]:
    """As ``torch._C._cuda_memoryStats``."""
    return _up_to_date(device).statistics()


def trace(on: bool) -> None:
    """Keep every event of the allocators from now on, or forget them and keep none."""
    _settle()
    for index in range(process.devices):
        _allocator(index).trace = [] if on else None


def record_history(enabled: Any = "all", *_: Any, **__: Any) -> None:
    """As ``torch._C._cuda_record_memory_history``; the events carry no stacks and no times."""
    trace(bool(enabled))


def snapshot(*_: Any) -> dict[str, Any]:
    """As ``torch._C._cuda_memorySnapshot``."""
    _settle()
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
    """Forget everything; tensors that still live are no longer counted."""
    with _lock:
        uninterrupted(_forget)


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
    """As ``torch._C._cuda_hostMemoryStats``: pinned memory is ordinary memory here, so there is nothing to tell."""
    return {}
