"""Decides when accesses are followed.

Copies between the host and the device are always followed, as long as somebody listens: there are few. What operators
on the device touch is followed only while ``process.tracking`` is set: once there is a side stream, or while there is a
collective that nobody has waited for. With default streams alone all work of a device is ordered.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from pytest_gpusync.simulated.base.state import process
from pytest_gpusync.simulated.races import clocks, device_memory, freed_memory, pinned_memory, reports
from pytest_gpusync.simulated.races.clocks import timeline
from pytest_gpusync.simulated.races.hooks import hooks

if TYPE_CHECKING:
    from pytest_gpusync.simulated.races.reports import RaceSink

_side_streams_seen = False
_collectives = 0
"""Collectives that the stream that started them has not waited for."""


def listen(sink: RaceSink) -> None:
    """Call `sink` with each race from now on, on the thread of its later access."""
    if not reports.is_listening():
        _forget_accesses()
    reports.add(sink)
    _reconsider()


def stop_listening(sink: RaceSink) -> None:
    """Stop calling `sink`. Does nothing if it does not listen."""
    global _collectives
    reports.remove(sink)
    if not reports.is_listening():
        _forget_accesses()
        _collectives = 0
    _reconsider()


def reset() -> None:
    """Forget everything; the device was switched off."""
    global _collectives, _side_streams_seen
    reports.remove_all()
    _collectives, _side_streams_seen = 0, False
    _forget_accesses()
    clocks.reset()
    process.tracking = False


def stream_made(stream: Any, index: int, number: int) -> None:
    """Follow operators from now on: the program has made a side stream."""
    timeline(index, number).add_handle(weakref.ref(stream))
    if not process.tracking:
        _reconsider()


def collective_started() -> None:
    """Follow operators from now on: a collective is under way."""
    global _collectives
    _collectives += 1
    _reconsider()


def collective_awaited() -> None:
    """The stream that started a collective waits for it now."""
    global _collectives
    _collectives = max(_collectives - 1, 0)
    _reconsider()


def _reconsider() -> None:
    """Follow operators as long as somebody listens, if there was a side stream since, or a collective is under way."""
    global _side_streams_seen
    _side_streams_seen = reports.is_listening() and (_side_streams_seen or clocks.any_side_stream())
    wanted = reports.is_listening() and (_collectives > 0 or _side_streams_seen)
    if wanted != process.tracking:
        process.tracking = wanted
        if wanted:
            # Memory that was freed before must not be taken for what lies at its address now.
            hooks.catch_up()
        else:
            _forget_device()
        process.changed()


def _forget_accesses() -> None:
    device_memory.recorded.clear()
    pinned_memory.pending.clear()
    reports.forget()
    _forget_device()


def _forget_device() -> None:
    device_memory.forget()
    freed_memory.forget()
