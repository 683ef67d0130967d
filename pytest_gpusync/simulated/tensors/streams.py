"""Streams and events of the simulated device.

Work is done when it is issued. So a stream is always idle, an event is reached when it is recorded, and waiting for
either takes no time. The calls count as syncs anyway, as on a GPU, and :mod:`..races.clocks` keeps what they order.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import time
import warnings
from collections import defaultdict
from typing import Any, Final

import torch

from pytest_gpusync.simulated.base import capture_rules, capture_streams, sync_events
from pytest_gpusync.simulated.base.state import device_index, process
from pytest_gpusync.simulated.base.sync_events import conditions
from pytest_gpusync.simulated.races import clocks, tracking
from pytest_gpusync.simulated.races.hooks import hooks

_POOL: Final = 32
"""Streams of one device and priority: torch hands out the same ones again and again."""
_PRIORITIES: Final = 4
_made: defaultdict[tuple[int, int], itertools.count[int]] = defaultdict(itertools.count)
"""Streams made so far, by device and priority."""
MODELLED_TIME = (
    "Event.elapsed_time on the simulated CUDA device is modelled: it is the time the host took between the two "
    "records, not time on a GPU"
)


class Stream:
    """Replaces ``torch.cuda.Stream``."""

    device_type = 1

    def __init__(
        self,
        device: torch.device | int | str | None = None,
        priority: int = 0,
        stream_id: int | None = None,
        device_index: int | None = None,
        **_: Any,
    ) -> None:
        self.device_index = _ordinal(device) if device_index is None else device_index
        self.stream_id = _from_pool(self.device_index, priority) if stream_id is None else stream_id
        if stream_id is None:
            tracking.stream_made(self, self.device_index, self.stream_id)
        self.priority = priority
        self._outer: list[Stream] = []

    @property
    def device(self) -> torch.device:
        """The device of the stream."""
        return torch.device("cuda", self.device_index)

    @property
    def cuda_stream(self) -> int:
        """A number that identifies the stream; not the address of a CUDA stream."""
        return self.stream_id

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.stream_id)

    @property
    def native_handle(self) -> int:
        """The same as :attr:`cuda_stream`."""
        return self.stream_id

    def synchronize(self) -> None:
        """Wait for the stream: one sync."""
        sync_events.announce("stream", device=self.device_index, stream=self.stream_id)

    def query(self) -> bool:
        """Return True: the stream is idle. The host now knows that its work is done."""
        if conditions.capturing:
            capture_rules.refuse("call", capture_rules.NOT_PERMITTED)
        clocks.host.wait(timeline_of(self).snapshot())
        return True

    def is_capturing(self) -> bool:
        """Return whether a CUDA graph is being captured from this stream."""
        streams = conditions.captured_streams
        return streams is not None and streams.takes_part((self.device_index, self.stream_id))

    def wait_stream(self, stream: Any) -> None:
        """Let later work of this stream come after what `stream` has been given so far."""
        if conditions.captured_streams is not None:
            recorded = conditions.captured_streams.record((stream.device_index, stream.stream_id))
            _wait_in_capture(self, recorded)
        timeline_of(self).wait(timeline_of(stream).snapshot())

    def wait_event(self, event: Any) -> None:
        """Let later work of this stream come after what `event` has recorded."""
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        """Record `event`, or a new one, and return it."""
        event = event or Event()
        event.record(self)
        return event

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the lowest and highest priority, as on a GPU."""
        return (0, -5)

    def __enter__(self) -> Stream:
        self._outer.append(current_stream(self.device_index))
        set_stream(self)
        return self

    def __exit__(self, *_: object) -> None:
        set_stream(self._outer.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (other.stream_id, other.device_index) == (
            self.stream_id,
            self.device_index,
        )

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.stream_id:#x}>"


class ExternalStream(Stream):
    """Replaces ``torch.cuda.ExternalStream``."""

    def __init__(self, stream_ptr: int, device: torch.device | int | str | None = None, **_: Any) -> None:
        super().__init__(device=device, stream_id=stream_ptr)


class Event:
    """Replaces ``torch.cuda.Event``."""

    _has_warned = False

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        device: Any = None,
    ) -> None:
        self._timing = enable_timing
        self._recorded_ns: int | None = None
        self._reached: clocks.Snapshot = {}
        """What comes before the event, since it was last recorded."""
        self.cuda_event = id(self)
        self.device = device
        self._recorded_on: int | None = None
        self._captured: capture_streams.Recorded | None = None
        """What it stands for in the capture of a CUDA graph in which it was recorded last."""

    def record(self, stream: Any = None) -> None:
        """Record the event; it is reached at once."""
        self._recorded_on = device_index(None) if stream is None else stream.device_index
        self._recorded_ns = time.perf_counter_ns()
        on = stream or current_stream(self.device)
        self._reached = timeline_of(on).snapshot()
        capture = conditions.captured_streams
        self._captured = None if capture is None else capture.record((on.device_index, on.stream_id))

    def wait(self, stream: Any = None) -> None:
        """Let later work of `stream`, by default the current one, come after what the event has recorded."""
        waiting = stream or current_stream(self.device)
        if conditions.captured_streams is not None and self._recorded_ns is not None:
            _wait_in_capture(waiting, self._captured)
        timeline_of(waiting).wait(self._reached)

    def _refuse_in_capture(self) -> None:
        if conditions.capturing:
            error = capture_rules.NOT_PERMITTED if self._captured is None else capture_rules.CAPTURED_EVENT
            capture_rules.refuse("call", error, sys._getframe(1))

    def query(self) -> bool:
        """Return True: the event has been reached, and the host now knows."""
        self._refuse_in_capture()
        clocks.host.wait(self._reached)
        return True

    def synchronize(self) -> None:
        """Wait for the event: one sync, of the device that it was recorded on."""
        clocks.host.wait(self._reached)
        if conditions.capturing:
            self._refuse_in_capture()
            return
        sync_events.announce("event", device=device_index(None) if self._recorded_on is None else self._recorded_on)

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds of host time between the two records; warns once that this time is modelled."""
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded_ns is None or end_event._recorded_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        # On a GPU it is an error unless both have been reached.
        self.query()
        end_event.query()
        if not Event._has_warned:
            Event._has_warned = True
            warnings.warn(MODELLED_TIME, stacklevel=2)
        return (end_event._recorded_ns - self._recorded_ns) / 1e6

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {self.cuda_event:#x}>"


class _Generic(type):
    """Metaclass of the replacements of ``torch.Stream`` and ``torch.Event``, which serve every kind of device."""

    original: type
    simulated: type

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (cls.original, cls.simulated))

    def __call__(cls, device: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if device is None or isinstance(device, int) or torch.device(device).type == "cuda":
            return cls.simulated(*arguments, device=device, **keywords)
        return cls.original(device, *arguments, **keywords)


class AnyStream(metaclass=_Generic):
    """Replaces ``torch.Stream``."""

    original = torch.Stream
    simulated = Stream


class AnyEvent(metaclass=_Generic):
    """Replaces ``torch.Event``."""

    original = torch.Event
    simulated = Event


class StreamContext:
    """Replaces ``torch.cuda.StreamContext``: makes a stream the current one of its device."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._outer: Stream | None = None

    def __enter__(self) -> None:
        if self.stream is not None:
            self._outer = current_stream(self.stream.device_index)
            set_stream(self.stream)

    def __exit__(self, *_: object) -> None:
        if self._outer is not None:
            set_stream(self._outer)


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}


_current = _PerThread()
_defaults: dict[int, Stream] = {}
_side_streams = 0
"""Number of current streams, over all threads, that are not default streams."""


def _from_pool(index: int, priority: int) -> int:
    """Return the id of a device's next stream of a priority: after 32 of them the first one follows again."""
    level = min(max(-priority, 0), _PRIORITIES - 1)
    return 1 + level * _POOL + next(_made[index, level]) % _POOL


def _ordinal(device: torch.device | int | str | None) -> int:
    return device_index(device)


def default_stream(device: torch.device | int | str | None = None) -> Stream:
    """Return the default stream of `device`."""
    index = device_index(device)
    if index not in _defaults:
        _defaults[index] = Stream(stream_id=0, device_index=index)
    return _defaults[index]


def current_stream(device: torch.device | int | str | None = None) -> Stream:
    """Return the calling thread's current stream of `device`."""
    index = device_index(device)
    return _current.streams.get(index) or default_stream(index)


def current_id(index: int) -> int:
    """Return the id of the calling thread's current stream of ``cuda:index``."""
    streams = _current.streams
    return streams[index].stream_id if index in streams else 0


def key_of(index: int) -> tuple[int, int]:
    """Return the device and the id of the calling thread's current stream of ``cuda:index``."""
    return index, current_id(index)


def _wait_in_capture(stream: Any, recorded: capture_streams.Recorded | None) -> None:
    capture = conditions.captured_streams
    assert capture is not None
    capture.wait((stream.device_index, stream.stream_id), recorded, sys._getframe(1))


def timeline_of(stream: Any) -> clocks.Timeline:
    """Return what `stream` has waited for."""
    return clocks.timeline(stream.device_index, stream.stream_id)


hooks.current_stream = current_id


def set_stream(stream: Stream | None) -> None:
    """Make `stream` the calling thread's current one of its device; None changes nothing."""
    global _side_streams
    if stream is not None:
        before = current_id(stream.device_index)
        _current.streams[stream.device_index] = stream
        _side_streams += bool(stream.stream_id) - bool(before)
        process.changed()


def any_side_stream() -> bool:
    """Return whether any thread uses a stream other than the default one of its device."""
    return _side_streams > 0


def reset() -> None:
    """Forget the calling thread's current streams, and that the warning was given."""
    global _side_streams
    _current.streams.clear()
    _side_streams = 0
    tracking.reset()
    Event._has_warned = False
