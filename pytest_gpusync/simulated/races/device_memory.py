"""Memory of the device that was used while operators were followed, and which of it several streams may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch.multiprocessing.reductions import StorageWeakRef

from pytest_gpusync.simulated.base.native import cells
from pytest_gpusync.simulated.races.accesses import access
from pytest_gpusync.simulated.races.clocks import Timeline, timeline
from pytest_gpusync.simulated.races.extents import of_tensor
from pytest_gpusync.simulated.races.history import Access, History
from pytest_gpusync.simulated.races.hooks import hooks

if TYPE_CHECKING:
    from torch import Tensor

    from pytest_gpusync.simulated.races.lines import Line

_SHARED_SLOTS: Final = 1 << 12
"""``SHARED`` of native_path.cpp."""

histories: dict[int, History] = {}
"""What is known of memory, by its first address."""
bases: dict[int, int] = {}
"""The first addresses of memory, by what the allocator knows it by."""
suspects: dict[int, History] = {}
"""Live memory that was used on another stream than that of its allocation, by first address."""
recorded: dict[int, set[Timeline]] = {}
"""Streams given to ``record_stream``, by the first address of memory that is not followed yet."""


def forget() -> None:
    """Forget all memory."""
    for history in histories.values():
        set_shared(history, False)
    histories.clear()
    bases.clear()
    suspects.clear()


def touch(tensor: Tensor, is_write: bool, stream: Timeline, line: Line, what: str) -> None:
    """Work on `stream` reads or writes a tensor of the device."""
    count = tensor.numel()
    if count:
        # This runs for each tensor of each operator on a side stream.
        start, item = tensor.data_ptr(), tensor.element_size()
        base = start - int(tensor.storage_offset()) * item
        extent = (start, start + count * item, None) if tensor.is_contiguous() else of_tensor(tensor)
        history = histories.get(base) or history_of(base)
        default = stream.default if tensor.get_device() == stream.device else timeline(tensor.get_device(), 0)
        if history.only is stream:
            new = tuple.__new__(Access, (extent, stream, stream.clock, line.place, what, False))
            history.add(new, is_write)  # in a third of the time
        else:
            access(history, extent, is_write, stream, line, what, tensor)
        if history.storage is None and stream is not (history.owner or stream.default):
            history.storage = StorageWeakRef(tensor.untyped_storage())
            if history.key is None:
                history.key = hooks.key_of(base)
            if history.key is not None:
                bases[history.key] = base
                suspects[base] = history
        if stream is default or not history.shared:
            update_shared(history, stream, default)


def history_of(base: int) -> History:
    """Return what is known of the memory of the device at `base`."""
    history = histories.get(base)
    if history is None:
        history = histories[base] = History(base, None)
        history.recorded |= recorded.pop(base, set())
    return history


def update_shared(history: History, stream: Timeline, default: Timeline) -> None:
    """Set whether memory is shared, after work on `stream` has used it."""
    if stream is not default:
        set_shared(history, True)
    elif history.shared:
        set_shared(history, _is_shared(history, default))


def _is_shared(history: History, default: Timeline) -> bool:
    """Return whether another stream than the default one may still use memory, or was not seen to be its owner's."""
    if history.storage is None and history.owner not in (None, default):
        return True
    return any(
        old.stream is not default and not default.has_seen(old.stream, old.clock)
        for kept in (history.writes, history.reads)
        for old in kept
    )


def set_shared(history: History, shared: bool) -> None:
    """Set whether operators that use memory are left to Python."""
    if shared is not history.shared:
        history.shared = shared
        if hooks.shared_counters is not None:
            cells[hooks.shared_counters + (history.base >> 6) % _SHARED_SLOTS] += 1 if shared else -1
