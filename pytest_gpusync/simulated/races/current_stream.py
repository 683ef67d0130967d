"""The timeline of the calling thread's current stream, and what the host comes after when it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpusync.simulated.base import sync_events
from pytest_gpusync.simulated.base.state import current_device
from pytest_gpusync.simulated.races import clocks
from pytest_gpusync.simulated.races.clocks import Timeline, timeline
from pytest_gpusync.simulated.races.hooks import hooks

if TYPE_CHECKING:
    from pytest_gpusync.model.measurement import Kind


def current(index: int) -> Timeline:
    """Return the timeline of the calling thread's current stream of ``cuda:index``."""
    return timeline(index, hooks.current_stream(index))


def launch(index: int) -> Timeline:
    """Start work on the current stream of ``cuda:index``."""
    clocks.settle()
    stream = current(index)
    stream.launch()
    return stream


def _waited(kind: Kind, device: int | None, stream: int | None) -> None:
    """Let the host come after what it has just waited for; called for every sync, except those of an event."""
    if kind == "event":
        return
    index = current_device() if device is None else device
    if kind in ("device", "free"):
        clocks.synchronize_device(index)
    else:
        clocks.host.wait(timeline(index, hooks.current_stream(index) if stream is None else stream).snapshot())


sync_events.hooks.waited = _waited
