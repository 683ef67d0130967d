"""The calls of a trace, and which of them are waits: the same rules as where the driver is followed at run time."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpusync.model.measurement import PAGEABLE_H2D_WAITS_ABOVE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpusync.model.measurement import Direction, Kind

CALL_LIMIT: Final = 5_000_000
"""Most calls, and most Python frames, of a trace that are kept."""

WAITS: Final[dict[str, Kind]] = {
    "cudaStreamSynchronize": "stream",
    "cudaDeviceSynchronize": "device",
    "cudaEventSynchronize": "event",
    "cudaFree": "free",
    "cudaMemcpy": "copy",
    "cudaMemcpy2D": "copy",
    "cudaMemcpyToSymbol": "copy",
    "cudaMemcpyFromSymbol": "copy",
    "cuStreamSynchronize": "stream",
    "cuCtxSynchronize": "device",
    "cuEventSynchronize": "event",
    "cuMemFree": "free",
    "cuMemcpy": "copy",
    "cuMemcpyDtoH": "copy",
    "cuMemcpyHtoD": "copy",
}
"""Functions of the CUDA runtime and driver that make the host wait."""

ASYNC_COPIES: Final = frozenset({"cudaMemcpyAsync", "cuMemcpyAsync", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"})

_TRANSPARENT: Final = re.compile(r"Get|Query|IsCapturing|Capture|SetDevice|EventRecord|PushCurrent|PopCurrent")
"""Calls that may come between the two halves of a blocking copy."""
_SUFFIX: Final = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")


def function_name(name: str) -> str:
    """Return the name of a runtime or driver function without the version that Nsight Systems appends."""
    return _SUFFIX.sub("", name)


class Copy(NamedTuple):
    """A copy that the device made."""

    direction: Direction
    nbytes: int | None
    pageable: bool
    device: int | None
    stream: int | None


class Call(NamedTuple):
    """A call of the host into the runtime or driver."""

    name: str
    start: int
    """Nanoseconds of the trace's clock, as all times."""
    end: int
    thread: int
    correlation: int | None
    key: int = -1
    """What the reader of the trace knows the code by that made the call."""


class Frame(NamedTuple):
    """A Python function that was running."""

    path: str
    line: int
    """The first line of the function, unless the trace has the current one."""
    function: str


class Called(NamedTuple):
    """A call of a function by another one."""

    name: str
    """Such as "item"; empty if nothing is known to have been called."""
    ordinal: int = 0
    """How many calls of that name the frame had made before."""
    total: int = 0
    """How many it made in all."""


class Stack(NamedTuple):
    """What is known of the code that made a call."""

    frames: tuple[Frame, ...] = ()
    """From the outermost to the innermost."""
    called: tuple[Called, ...] = ()
    """For each frame, the function that it called."""
    operator: str | None = None
    """The operator of torch, such as "aten::item"."""
    of_backward: bool = False
    """Whether it is the stack of the thread inside ``backward()``, for a call of one of autograd's threads."""
    exact: bool = False
    """Whether the lines are those that ran, not the first ones of the functions."""


@dataclass
class Trace:
    """What a trace says about waits."""

    tool: str
    """"torch.profiler" or "nsys"."""
    calls: list[Call] = field(default_factory=list)
    copies: dict[int, Copy] = field(default_factory=dict)
    """By correlation."""
    stacks: Mapping[int, Stack] = field(default_factory=dict)
    """By the keys of the waits among the calls."""
    steps: list[tuple[int, int]] = field(default_factory=list)
    """When the steps began and ended."""
    step_threads: set[int] = field(default_factory=set)
    """The threads that make the steps; empty if that is not known."""
    threads: dict[int, str] = field(default_factory=dict)
    gpu: str | None = None
    rank: int | None = None
    version: str | None = None
    """Of the format."""
    began: int | None = None
    notes: list[str] = field(default_factory=list)
    """What the trace cannot show."""


class Wait(NamedTuple):
    """A call that made the host wait."""

    kind: Kind
    call: Call
    copy: Copy | None
    began: int
    """When the host entered it: of a blocking copy, its first half."""


def waits(calls: Sequence[Call], copies: Mapping[int, Copy]) -> Iterator[Wait]:
    """Yield the waits among calls of one thread, which are in order.

    A blocking copy is an asynchronous copy and a stream synchronize right after it, and is one wait. A copy of pageable
    memory without one waited by itself. A driver call inside a runtime call is a part of it.
    """
    pending: Wait | None = None
    until = -1
    for call in calls:
        if call.start < until:
            continue
        until = call.end
        kind = WAITS.get(call.name)
        copy = copies.get(call.correlation) if call.correlation is not None else None
        if pending is not None:
            if kind == "stream":
                yield Wait("stream", call, pending.copy, pending.began)
                pending = None
                continue
            if _TRANSPARENT.search(call.name):
                continue
            if _waits_alone(pending.copy):
                yield pending
            pending = None
        if call.name in ASYNC_COPIES:
            if copy is not None and copy.direction != "D2D":
                pending = Wait("pageable", call, copy, call.start)
        elif kind is not None:
            yield Wait(kind, call, copy, call.start)
    if pending is not None and _waits_alone(pending.copy):
        yield pending


def _waits_alone(copy: Copy | None) -> bool:
    """Return whether an asynchronous copy makes the host wait."""
    if copy is None or not copy.pageable:
        return False
    return copy.direction == "D2H" or (copy.nbytes or 0) > PAGEABLE_H2D_WAITS_ABOVE
