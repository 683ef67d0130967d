"""Pinned memory with copies under way: what they read and fill, and what the host does there meanwhile."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.model.measurement import HOST
from pytest_gpusync.simulated.base.sync_events import conditions
from pytest_gpusync.simulated.races import captured, clocks, reports
from pytest_gpusync.simulated.races.accesses import COPY, access
from pytest_gpusync.simulated.races.extents import Extent, base_of, of_tensor, overlap
from pytest_gpusync.simulated.races.history import History
from pytest_gpusync.simulated.races.lines import Line
from pytest_gpusync.simulated.races.sentences import LaterAccess

if TYPE_CHECKING:
    from types import FrameType

    from torch import Tensor

    from pytest_gpusync.model.measurement import RaceKind
    from pytest_gpusync.simulated.races.clocks import Timeline

_MAX_PENDING: Final = 4096
"""Pinned memory with copies under way that is remembered; the oldest is dropped beyond."""


class _Sweeps:
    """When pinned memory that no copy uses any more is forgotten: each time that its number has doubled."""

    least = next = 64


_sweeps: Final = _Sweeps()
pending: dict[int, History] = {}
"""Pinned memory that copies may still read or fill, by its first address."""


def copy_uses(tensor: Tensor, is_write: bool, stream: Timeline, line: Line, what: str = COPY) -> None:
    """Work on `stream` reads or fills pinned memory."""
    base = base_of(tensor)
    if conditions.capturing:
        captured.keep(base, of_tensor(tensor), is_write, stream.device, pinned=True)
        return
    history = pending.get(base)
    if history is None:
        if len(pending) >= _sweeps.next:
            _forget_done()
            _sweeps.next = max(_sweeps.least, 2 * len(pending))
        history = pending[base] = History(base, None)
    access(history, of_tensor(tensor), is_write, stream, line, what, tensor)


def made(base: int) -> None:
    """Forget what was known of this address: torch's allocator gives out no memory that a copy still uses."""
    pending.pop(base, None)


def _forget_done() -> None:
    """Drop pinned memory that no copy uses any more, and the oldest of the rest if it is still too much."""
    seen = clocks.host.seen
    for base, history in list(pending.items()):
        if all(seen.get(old.stream, 0) >= old.clock or old.stream.forgotten for old, _ in history.all()):
            del pending[base]
    for base in list(pending)[: max(0, len(pending) - _MAX_PENDING // 2)]:
        del pending[base]


def host_uses(tensor: Tensor, is_write: bool, frame: FrameType | None = None) -> None:
    """The host reads or writes a tensor of its own; reports copies that nothing has waited for."""
    if not pending or not tensor.numel() or conditions.capturing:
        return
    base = base_of(tensor)
    if base in pending:
        host_uses_memory(base, of_tensor(tensor), is_write, frame or sys._getframe(1), tensor)


def base_around(address: int) -> int | None:
    """Return the first address of the pinned memory with copies under way that `address` lies in, or None."""
    base = max((base for base in pending if base <= address), default=None)
    if base is None or all(address >= access.extent[1] for access, _ in pending[base].all()):
        return None
    return base


def host_uses_memory(base: int, extent: Extent, is_write: bool, frame: FrameType, value: Any) -> None:
    """The host reads or writes part of the pinned memory at `base`, through `value`."""
    history = pending.get(base)
    if history is None:
        return
    seen = clocks.host.seen
    left = False
    for other, was_write in list(history.all()):
        if seen.get(other.stream, 0) >= other.clock or other.stream.forgotten:
            continue
        left = True
        if (is_write or was_write) and overlap(other.extent, extent):
            kind: RaceKind = "host-write" if is_write else "host-read"
            reports.report(kind, LaterAccess(Line.of(frame), HOST, is_write, extent, value), other, was_write)
    if not left:
        del pending[base]
