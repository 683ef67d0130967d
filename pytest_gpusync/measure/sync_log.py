"""The syncs of an open region, kept in few bytes: a training of millions of steps may run in one region."""

from __future__ import annotations

from array import array
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

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

    blocked_ns: int | None
    began_ns: int | None
    sequence: int | None
    """As :attr:`RawSync.sequence`: for a sync delivered late, its number decides its step."""


class SyncLog:
    """Syncs in the order in which they were delivered. Each takes 32 bytes, and each new origin one object."""

    def __init__(self) -> None:
        self._origins: dict[SyncOrigin, int] = {}
        self._unused = count()
        self._numbers = array("q")
        """For each sync the number of its origin, and its moment; -1 for None."""

    def append(self, origin: SyncOrigin, moment: SyncMoment) -> None:
        """Add a sync, on the thread that made it."""
        number = self._origins.get(origin)
        if number is None:
            number = self._origins.setdefault(origin, next(self._unused))
        # One call, during which no other thread runs, as in the lines above.
        self._numbers.extend((number, *(-1 if value is None else value for value in moment)))

    def __len__(self) -> int:
        return len(self._numbers) // 4

    def __iter__(self) -> Iterator[tuple[SyncOrigin, SyncMoment]]:
        """Return the syncs so far."""
        numbers, origins = self._numbers[:], {number: origin for origin, number in list(self._origins.items())}
        for index in range(0, len(numbers), 4):
            number, *values = numbers[index : index + 4]
            yield origins[number], SyncMoment(*(None if value < 0 else value for value in values))
