"""Memory that is allocated and freed: accesses to freed memory that another stream may still be making."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpusync.simulated.races import clocks
from pytest_gpusync.simulated.races.clocks import Timeline, timeline
from pytest_gpusync.simulated.races.current_stream import launch
from pytest_gpusync.simulated.races.device_memory import bases, histories, recorded, set_shared, suspects
from pytest_gpusync.simulated.races.extents import base_of
from pytest_gpusync.simulated.races.history import History

if TYPE_CHECKING:
    from torch import Tensor

_MAX_FREED: Final = 4096
"""Pieces of freed memory that are remembered while another stream may use them; the oldest are dropped beyond."""


class _Freed(NamedTuple):
    """Memory that was freed while other streams than its owner may have used it."""

    history: History
    address: int
    """Where the caching allocator has it on the simulated device."""
    nbytes: int


_freed: list[_Freed] = []


def forget() -> None:
    """Forget all freed memory."""
    _freed.clear()


def must_know_blocks() -> bool:
    """Return whether new memory may be what another stream still uses: then :func:`born` needs to know where it is."""
    return bool(_freed) or any(
        history.storage is not None and history.storage.expired() for history in suspects.values()
    )


def born(
    base: int, key: int, when: int, device: int, block: tuple[int, int] | None, owner: Timeline | None = None
) -> None:
    """Memory was allocated.

    Args:
        base: its first address.
        key: what the allocator knows it by.
        when: its place in the order of allocations and frees.
        device: the index of its device.
        block: where the caching allocator has it, and its size.
        owner: the stream that allocated it; by default the current one.
    """
    owner = owner or launch(device)
    suspects.pop(base, None)
    recorded.pop(base, None)
    if base in histories:
        set_shared(histories[base], False)
    history = histories[base] = History(base, owner)
    history.key, history.born = key, when
    bases[key] = base
    default = timeline(device, 0)
    if owner is not default:
        set_shared(history, True)
    if block is None:
        return
    address, nbytes = block
    for freed in list(_freed):
        shift = base - freed.history.base + freed.address - address
        # The allocator gives memory back to the stream that allocated it: that one must come after all uses.
        holder = freed.history.owner or owner
        still_used = False
        for access, is_write in freed.history.all():
            if access.stream in freed.history.recorded:
                continue
            still_used |= not holder.has_seen(access.stream, access.clock)
            if owner.has_seen(access.stream, access.clock):
                continue
            start, end, layout = access.extent
            if start + shift < base + nbytes and end + shift > base:
                moved = access._replace(extent=(start + shift, end + shift, layout), freed=True)
                history.take_over(moved, is_write)
                set_shared(history, True)
        if not still_used:
            _freed.remove(freed)


def record_stream(tensor: Tensor, stream: Timeline) -> None:
    """When `tensor` is freed, its memory is not reused before `stream` has done its work so far."""
    clocks.settle()
    base = base_of(tensor)
    history = histories.get(base)
    if history is not None:
        history.recorded.add(stream)
    elif len(recorded) < _MAX_FREED:
        recorded.setdefault(base, set()).add(stream)


def died(key: int, when: int, address: int, nbytes: int) -> None:
    """Memory returned to the caching allocator, which has it at `address`, at place `when` of the order."""
    base = bases.get(key, key)
    history = histories.get(base)
    if history is None or history.key not in (None, key) or when < history.born:
        return
    bases.pop(key, None)
    del histories[base]
    set_shared(history, False)
    if suspects.pop(base, None) is not None:
        _freed.append(_Freed(history, address, nbytes))
        del _freed[:-_MAX_FREED]
