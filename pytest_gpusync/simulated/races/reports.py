"""Reports races to those who listen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.model.measurement import Race
from pytest_gpusync.simulated.races import sentences

if TYPE_CHECKING:
    from pytest_gpusync.model.measurement import RaceKind
    from pytest_gpusync.simulated.races.history import Access
    from pytest_gpusync.simulated.races.sentences import LaterAccess

RaceSink = Callable[[Race], None]

_MAX_REPORTED: Final = 1024
"""Different races that are described; programs with more have one cause for many."""

_sinks: tuple[RaceSink, ...] = ()
_reported: dict[tuple[Any, ...], Race] = {}


def is_listening() -> bool:
    """Return whether races are reported to anybody."""
    return bool(_sinks)


def add(sink: RaceSink) -> None:
    """Call `sink` with each race from now on, on the thread of its later access."""
    global _sinks
    _sinks = (*_sinks, sink)


def remove(sink: RaceSink) -> None:
    """Stop calling `sink`. Does nothing if it does not listen."""
    global _sinks
    _sinks = tuple(other for other in _sinks if other != sink)


def remove_all() -> None:
    """Stop calling all sinks."""
    global _sinks
    _sinks = ()


def forget() -> None:
    """Forget which races were reported."""
    _reported.clear()


def report(kind: RaceKind, later: LaterAccess, other: Access, was_write: bool) -> None:
    """Report an access that races with the kept access `other`, which was a write or a read."""
    key = (kind, later.line.place, other.place, later.is_write, was_write)
    race = _reported.get(key)
    if race is None:
        if len(_reported) >= _MAX_REPORTED:
            return
        race = _reported[key] = sentences.describe(kind, later, other, was_write)
    for sink in _sinks:
        sink(race)
