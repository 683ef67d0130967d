"""Which bytes of one piece of memory were last read and written, on which streams, at which lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpusync.simulated.races.extents import overlap

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    from torch.multiprocessing.reductions import StorageWeakRef

    from pytest_gpusync.simulated.races.clocks import Timeline
    from pytest_gpusync.simulated.races.extents import Extent

    Place = tuple[CodeType, int] | None
    """An instruction of the user's program; None if it is unknown."""

_MAX_KEPT: Final = 64
"""Accesses of each kind that are kept of one piece of memory; the older half is dropped beyond."""


class Access(NamedTuple):
    """One access by work on a stream."""

    extent: Extent
    stream: Timeline
    clock: int
    place: Place
    what: str
    """The operator, or "copy", "graph", "collective"."""
    freed: bool = False
    """The memory was then freed, and given to somebody else."""


class History:
    """One piece of memory: a storage of the device, or of pinned memory."""

    __slots__ = ("base", "born", "key", "owner", "reads", "recorded", "shared", "storage", "writes")

    def __init__(self, base: int, owner: Timeline | None) -> None:
        self.base = base
        self.owner = owner
        """The stream that allocated it; None for pinned memory, and for what was made before anybody looked."""
        self.writes: list[Access] = []
        self.reads: list[Access] = []
        self.recorded: set[Timeline] = set()
        """Streams given to ``record_stream``: the allocator waits for their work before it reuses the memory."""
        self.key: int | None = None
        """What the allocator knows it by, if that is known here. Keys are used again."""
        self.born = 0
        """When it was allocated, as the allocator counts: what happened to its key before is not its own."""
        self.storage: StorageWeakRef | None = None
        """Set once it was used on another stream than its owner."""
        self.shared = False
        """Another stream than the default one may still use it: operators that use it are left to Python."""

    def unordered(self, extent: Extent, write: bool, stream: Timeline) -> Iterator[tuple[Access, bool]]:
        """Yield the kept accesses that race with one by `stream` now, each with whether it is a write."""
        for access in self.writes:
            if access[1] is not stream and not stream.has_seen(access[1], access[2]) and overlap(access[0], extent):
                yield access, True
        if write:
            for access in self.reads:
                if access[1] is not stream and not stream.has_seen(access[1], access[2]) and overlap(access[0], extent):
                    yield access, False

    def add(self, access: Access, write: bool) -> None:
        """Keep an access, and drop those that it stands for: whoever races with them races with it."""
        start, end, layout = access[0]
        if write:
            if layout is None:
                if self.writes:
                    self.writes = [old for old in self.writes if old[0][0] < start or old[0][1] > end]
                if self.reads:
                    self.reads = [old for old in self.reads if old[0][0] < start or old[0][1] > end]
            kept = self.writes
        else:
            kept = self.reads
            extent, stream = access[0], access[1]
            for index, old in enumerate(kept):
                if old[1] is stream and old[0] == extent:
                    del kept[index]
                    break
        kept.append(access)
        if len(kept) > _MAX_KEPT:
            del kept[: _MAX_KEPT // 2]

    def all(self) -> Iterator[tuple[Access, bool]]:
        """Yield the kept accesses, each with whether it is a write."""
        for access in self.writes:
            yield access, True
        for access in self.reads:
            yield access, False
