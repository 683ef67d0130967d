"""Which streams take part in a capture, and which of their work has been joined again.

A capture begins on one stream. Another stream takes part once it waits for an event that was recorded in the capture.
At the end, the stream of the beginning must have waited, directly or through others, for all work of the others.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from pytest_gpusync.simulated.base import capture_rules
from pytest_gpusync.source import attribution

if TYPE_CHECKING:
    from types import FrameType

    from pytest_gpusync.model.measurement import Site

Stream = tuple[int, int]
"""The device and the id of a stream."""
_LEGACY: Final = 0
"""The id of the default stream of a device."""


class Recorded:
    """The state of a capture when an event was recorded in it."""

    def __init__(self, capture: CaptureStreams, seen: dict[Stream, int]) -> None:
        self.capture = capture
        self.seen = seen


class CaptureStreams:
    """The streams of the capture under way."""

    def __init__(self, origin: Stream) -> None:
        self.origin = origin
        self._seen: dict[Stream, dict[Stream, int]] = {origin: {}}
        """By stream of the capture, how much work of each stream it comes after, its own included."""
        self._last: dict[Stream, Site] = {}
        """By stream, the line that issued its last work, if somebody collects what is not permitted."""

    def takes_part(self, stream: Stream) -> bool:
        """Return whether work of a stream is captured."""
        return stream in self._seen

    def work(self, stream: Stream, frame: FrameType, *, allocates: bool) -> bool:
        """Note work on a stream; return whether it is captured.

        Memory for a stream outside of the capture is new, since a capture begins with an empty cache, and CUDA permits
        no allocation meanwhile. Work on memory that is there runs at once.
        """
        seen = self._seen.get(stream)
        if seen is None:
            error = capture_rules.NOT_PERMITTED if allocates else capture_rules.NOT_CAPTURED
            capture_rules.refuse("stream", error, frame)
            return False
        seen[stream] = seen.get(stream, 0) + 1
        if stream != self.origin and capture_rules.collection.collector is not None:
            self._last[stream] = attribution.charge(frame, threading.get_ident()).site
        return True

    def record(self, stream: Stream) -> Recorded | None:
        """Return what an event that is recorded on a stream stands for; None if the stream is not captured."""
        seen = self._seen.get(stream)
        return None if seen is None else Recorded(self, dict(seen))

    def wait(self, stream: Stream, event: Recorded | None, frame: FrameType | None) -> None:
        """A stream waits for an event; None for one that was recorded outside of the capture."""
        seen = self._seen.get(stream)
        if event is None or event.capture is not self:
            if seen is not None:
                capture_rules.refuse("stream", capture_rules.ISOLATION, frame)
            return
        if seen is None:
            if stream[1] == _LEGACY:
                capture_rules.refuse("stream", capture_rules.IMPLICIT, frame)
                return
            seen = self._seen[stream] = {}
        for other, count in event.seen.items():
            seen[other] = max(seen.get(other, 0), count)

    def end(self, stream: Stream) -> None:
        """End the capture on a stream.

        Raises:
            RuntimeError: nobody collects what is not permitted, and the capture began on another stream, or there is
                work that was not joined.
        """
        if stream != self.origin:
            capture_rules.refuse("stream", capture_rules.OTHER_STREAM)
            return
        joined = self._seen[self.origin]
        for other, seen in self._seen.items():
            if seen.get(other, 0) > joined.get(other, 0):
                capture_rules.refuse("stream", capture_rules.UNJOINED, self._last.get(other))
