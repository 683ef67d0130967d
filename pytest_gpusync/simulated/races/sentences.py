"""Describes a race for a person: both lines, what each does to which tensor, and what would order them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpusync.model.measurement import Race, Site
from pytest_gpusync.model.sizes import format_size
from pytest_gpusync.source import attribution

if TYPE_CHECKING:
    from types import FrameType

    from pytest_gpusync.model.measurement import RaceKind
    from pytest_gpusync.simulated.races.extents import Extent
    from pytest_gpusync.simulated.races.history import Access
    from pytest_gpusync.simulated.races.lines import Line

_UNKNOWN: Final = Site("<unknown>", 0, "")
_GRAPH, _COLLECTIVE = "graph", "collective"


class LaterAccess(NamedTuple):
    """The access at which a race is noticed."""

    line: Line
    stream: str
    """The name of its stream, or of the host."""
    is_write: bool
    extent: Extent
    value: Any
    """The tensor or array that it goes through; None if unknown."""


def describe(kind: RaceKind, later: LaterAccess, other: Access, was_write: bool) -> Race:
    """Return the race between an access now and the earlier `other`, which was a write or a read."""
    line, stream, is_write, extent, value = later
    frame, place = line.frame, line.place
    site = attribution.site_of(*place) if place else _UNKNOWN
    other_site = attribution.site_of(*other.place) if other.place else _UNKNOWN
    name = _name(frame, value)
    shape = tuple(value.shape) if value is not None else ()
    nbytes = int(value.nbytes) if value is not None else extent[1] - extent[0]
    what = name or "memory"
    size = f"{list(shape)}, {format_size(nbytes)}" if value is not None else format_size(nbytes)
    here, there = f"{site.path}:{site.line}", f"{other_site.path}:{other_site.line}"
    streams = (stream, other.stream.name)
    if kind in ("host-read", "host-write"):
        message = _of_host(kind, what, size, here, there, other.stream.name, was_write, other.what)
    elif kind == "allocator":
        message = (
            f"{here} {'writes' if is_write else 'reads'} {what} ({size}) on the {stream}, in memory that was freed "
            f"while the {other.stream.name} still {'writes' if was_write else 'reads'} it ({there}). Call "
            f"record_stream() on the freed tensor with the {other.stream.name}, or let the {stream} wait for it before "
            "the tensor is freed."
        )
    elif kind == "distributed":
        message = _of_collective(what, size, here, there, is_write, was_write, other.what)
    else:
        message = _of_streams(what, size, here, there, streams, is_write, was_write, other.what)
    return Race(kind, site, stream, other_site, other.stream.name, name, shape, nbytes, message)


def _of_host(kind: str, what: str, size: str, here: str, there: str, stream: str, was_write: bool, issued: str) -> str:
    on = "" if stream == "default stream" else f" on the {stream}"
    issuer = "the graph replay" if issued == _GRAPH else "the collective" if issued == _COLLECTIVE else "the copy"
    how = f"{'fills' if was_write else 'reads'} it was queued at {there}{on}"
    how += " (non_blocking=True)" if issuer == "the copy" else ""
    if kind == "host-read":
        return (
            f"{here} reads {what} ({size}) on the host; {issuer} that {how} and nothing waits for it. "
            f"Wait for an event recorded after the copy, or read {what} in the next step."
        )
    return (
        f"{here} overwrites {what} ({size}) on the host; {issuer} that {how} and nothing waits for it. "
        f"Wait for an event recorded after the copy before {what} is refilled, or use several buffers in turn."
    )


def _of_collective(what: str, size: str, here: str, there: str, is_write: bool, was_write: bool, issued: str) -> str:
    if issued == _COLLECTIVE:
        return (
            f"{here} {'overwrites' if is_write else 'reads'} {what} ({size}); the collective that "
            f"{'writes' if was_write else 'reads'} it was started at {there} and was not waited for. "
            f"Call wait() on its work before {here} uses {what}."
        )
    return (
        f"{here} starts a collective that {'writes' if is_write else 'reads'} {what} ({size}), which another stream "
        f"{'writes' if was_write else 'reads'} at {there}; nothing orders them. Let the current stream wait for that "
        "stream before the collective."
    )


def _of_streams(
    what: str,
    size: str,
    here: str,
    there: str,
    streams: tuple[str, str],
    is_write: bool,
    was_write: bool,
    issued: str,
) -> str:
    stream, other = streams
    does = "overwrites" if is_write else "reads"
    did = "writes" if was_write else "reads"
    by = " in a graph replay" if issued == _GRAPH else ""
    return (
        f"{here} {does} {what} ({size}) on the {stream}; {there} {did} it on the {other}{by}, and the {stream} has not "
        f"waited for that. Call wait_stream() on the {stream} with the {other} after {there}, or wait for an event "
        "recorded there."
    )


def _name(frame: FrameType | None, value: Any) -> str | None:
    """Return the name of a variable of `frame` that holds `value`, or a tensor with the same memory."""
    if frame is None or value is None:
        return None
    shared = None
    for variables in (frame.f_locals, frame.f_globals):
        for name, held in list(variables.items()):
            if held is value:
                return name
            if shared is None and type(held) is type(value) and _memory(held) == _memory(value):
                shared = name
    return shared


def _memory(value: Any) -> int | None:
    try:
        return int(value.untyped_storage().data_ptr())
    except Exception:  # an array, or a tensor without memory
        return None
