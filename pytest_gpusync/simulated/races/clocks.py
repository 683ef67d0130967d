"""What each stream and the host have waited for: vector clocks, with one component per stream.

Work on a stream belongs to its current clock. The clock advances whenever somebody may start to wait for the work so
far: an event is recorded, the host synchronizes. Work `a` is ordered before later work on stream `s` if `s` has seen
the clock of `a`. Launching orders everything that the host did or waited for before the launched work, so the host
needs no component of its own. All threads of the host count as one: what one of them has waited for, the others may
use.

torch's side streams do not synchronize with the default stream; the default streams of two devices are two streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.simulated.base.state import process

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable

_MAX_TIMELINES: Final = 512
"""Streams that are remembered; the oldest of those that no longer exist are then dropped."""


class _Hooks:
    """What this package is told about other parts of the device, on which it may not depend."""

    settle: Callable[[], None] = staticmethod(lambda: None)
    """Follow what native code has done since the last time."""


hooks: Final = _Hooks()


def settle() -> None:
    """Follow what native code has done so far, before what orders it changes."""
    if process.tracking:
        hooks.settle()


class Timeline:
    """The clock of one stream, and what it has waited for."""

    __slots__ = ("_host_version", "clock", "device", "forgotten", "handles", "name", "seen")

    def __init__(self, device: int, name: str) -> None:
        self.device = device
        self.name = name
        self.clock = 1
        self.seen: dict[Timeline, int] = {}
        """The clock of each other stream up to which it has waited."""
        self.handles: list[weakref.ref[Any]] = []
        """The program's stream objects, of which several are one stream of torch's pool; empty for a default stream and
        for those of a library."""
        self.forgotten = False
        """It was dropped: its work is taken to be ordered."""
        self._host_version = 0

    def add_handle(self, handle: weakref.ref[Any]) -> None:
        """Keep a stream object that the program has made of this stream."""
        self.handles = [*(other for other in self.handles if other() is not None), handle]

    @property
    def has_handle(self) -> bool:
        """Whether a stream object of this stream exists."""
        return any(handle() is not None for handle in self.handles)

    def launch(self) -> None:
        """Start work: it comes after everything that the host has waited for."""
        if self._host_version != host.version:
            self._host_version = host.version
            _merge(self.seen, host.seen)

    def snapshot(self) -> Snapshot:
        """Return what has been issued so far, for somebody who will wait for it."""
        settle()
        self.launch()
        reached = dict(self.seen)
        reached[self] = self.clock
        self.clock += 1
        return reached

    def wait(self, reached: Snapshot) -> None:
        """Let later work come after `reached`."""
        settle()
        self.launch()
        _merge(self.seen, reached)

    def has_seen(self, other: Timeline, clock: int) -> bool:
        """Return whether work of `other` at `clock` comes before what this stream does now."""
        return other is self or self.seen.get(other, 0) >= clock or other.forgotten


Snapshot = dict[Timeline, int]
"""A point in the work of all streams, as an event records it."""


class _Host:
    """What the host has waited for."""

    def __init__(self) -> None:
        self.seen: Snapshot = {}
        self.version = 0

    def wait(self, reached: Snapshot) -> None:
        """Let what the host does from now on come after `reached`."""
        if any(self.seen.get(stream, 0) < clock for stream, clock in reached.items()):
            settle()
            self.version += 1
            _merge(self.seen, reached)


host: Final = _Host()
_timelines: dict[tuple[int, object], Timeline] = {}


def timeline(device: int, stream: object) -> Timeline:
    """Return the timeline of a stream of ``cuda:device`` by its id, 0 for the default one.

    Streams of libraries have a name instead of a number.
    """
    found = _timelines.get((device, stream))
    if found is None:
        if len(_timelines) >= _MAX_TIMELINES:
            _forget_ended()
        name = stream if isinstance(stream, str) else f"stream {stream}" if stream else "default stream"
        found = _timelines[device, stream] = Timeline(device, name)
    return found


def any_side_stream() -> bool:
    """Return whether the program has a stream object of a stream that is not a default stream."""
    return any(found.has_handle for found in _timelines.values())


def synchronize_device(device: int) -> None:
    """The host waits for all streams of ``cuda:device``."""
    for (index, _), found in list(_timelines.items()):
        if index == device:
            host.wait(found.snapshot())


def _merge(into: Snapshot, reached: Snapshot) -> None:
    for stream, clock in list(reached.items()):
        if into.get(stream, 0) < clock:
            into[stream] = clock


def _forget_ended() -> None:
    """Drop timelines whose stream object no longer exists, the oldest first, so that memory stays bounded."""
    ended = [key for key, found in _timelines.items() if found.handles and not found.has_handle]
    gone = {_timelines.pop(key) for key in ended[: max(1, len(ended) // 2)]}
    for stream in gone:
        stream.forgotten = True
    for seen in (host.seen, *(found.seen for found in _timelines.values())):
        for stream in gone & seen.keys():
            del seen[stream]


def reset() -> None:
    """Forget all streams."""
    _timelines.clear()
    host.seen.clear()
    host.version += 1
