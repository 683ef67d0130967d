"""The syncs of an open region, kept in few bytes."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpusync.measure.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpusync.measure.scopes import Scope
    from pytest_gpusync.model.measurement import Direction, Kind, Site


class SyncOrigin(NamedTuple):
    """What the syncs of one line usually share."""

    kind: Kind
    site: Site
    direction: Direction | None
    nbytes: int | None
    phase: str | None
    owner: int
    thread: str
    """Name of the owner. It is looked up now, because a thread may be gone when the region closes."""
    device: int | None
    allowed: str | None
    stream: int | None
    held: tuple[Scope, ...]
    """The blocks whose context the sync was made in."""


class SyncMoment(NamedTuple):
    """What tells a sync from the others of the same origin."""

    origin: int
    """The number of the origin."""
    blocked_ns: int | None
    began_ns: int | None
    sequence: int | None
    """As :attr:`RawSync.sequence`: for a sync delivered late, its number decides its step."""


class SyncLog:
    """Syncs in the order in which they were delivered. Each takes 32 bytes, and each new origin one object."""

    def __init__(self) -> None:
        self._origins: dict[SyncOrigin, int] = {}
        self._unused = count()
        self._moments = Rows(SyncMoment)

    def append(self, origin: SyncOrigin, *, blocked_ns: int | None, began_ns: int | None, sequence: int | None) -> None:
        """Add a sync, on the thread that made it; see :class:`SyncMoment`."""
        number = self._origins.get(origin)
        if number is None:
            number = self._origins.setdefault(origin, next(self._unused))
        self._moments.append(SyncMoment(number, blocked_ns, began_ns, sequence))

    def __len__(self) -> int:
        return len(self._moments)

    def __iter__(self) -> Iterator[tuple[SyncOrigin, SyncMoment]]:
        """Return the syncs so far."""
        moments = list(self._moments)
        origins = {number: origin for origin, number in list(self._origins.items())}
        for moment in moments:
            yield origins[moment.origin], moment
