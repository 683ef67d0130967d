"""Where the interpreter keeps the frames of a thread. The gate reads them without the GIL.

The layout is private to CPython and differs between versions. From 3.13 on the interpreter publishes the offsets, for
debuggers and profilers, at the start of ``_PyRuntime``; for older versions they are listed here. Either way they are
checked, by reads that cannot crash, against frames whose code and instructions Python reports. If they do not match, or
the version is unknown, there is no layout, and the gate passes every call to Python.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class Layout(NamedTuple):
    """Offsets in bytes within CPython's structures."""

    state_to_frame: int
    """In the thread state: of the pointer to the innermost frame, or to the structure that points to it."""
    cframe_to_frame: int | None
    """In that structure, which exists in 3.11 and 3.12: of the pointer to the frame."""
    code: int
    previous: int
    instruction: int


_FRAMES: Final = {
    (3, 10): (32, 24, 96),
    (3, 11): (32, 48, 56),
    (3, 12): (0, 8, 56),
}
"""In a frame: offsets of its code object, of the calling frame, and of its position, which is a pointer to an
instruction, in 3.10 its index. From pycore_frame.h and frameobject.h of each version."""

_PUBLISHED: Final = {
    (3, 13): (19, 28),
    (3, 14): (22, 31),
    (3, 15): (22, 39),
}
"""Words of ``_Py_DebugOffsets`` at which it describes a thread's state and a frame. From pycore_runtime.h of 3.13 and
pycore_debug_offsets.h of later versions."""

_COOKIE: Final = b"xdebugpy"
_FREE_THREADED: Final = 2
_CURRENT_FRAME: Final = 4
_PREVIOUS, _EXECUTABLE, _INSTRUCTION = 1, 2, 3
"""Words of ``_Py_DebugOffsets``; the last four after those of :data:`_PUBLISHED`."""

_STATE_BYTES: Final = 256
_MAX_FRAMES: Final = 4096


def find_layout(version: tuple[int, int] = sys.version_info[:2]) -> Layout | None:
    """Return the layout of this interpreter; None if it differs from the one known for `version`."""
    if sys.implementation.name != "cpython":
        return None
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY)
    except OSError:
        return None
    try:
        current_state = ctypes.pythonapi.PyThreadState_Get
        current_state.restype = ctypes.c_void_p
        state: int = current_state()
        return next((layout for layout in _candidates(version) if _matches(memory, state, layout)), None)
    finally:
        os.close(memory)


def _candidates(version: tuple[int, int]) -> Iterator[Layout]:
    if version in _PUBLISHED:
        layout = _published(*_PUBLISHED[version])
        if layout is not None:
            yield layout
    elif version in _FRAMES:
        for place in range(0, _STATE_BYTES, 8):
            for within in (None, 0, 8):
                yield Layout(place, within, *_FRAMES[version])


def _published(state: int, frame: int) -> Layout | None:
    """The layout that the interpreter publishes; None if it does not, or has no GIL."""
    try:
        offsets = (ctypes.c_uint64 * (frame + _INSTRUCTION + 1)).in_dll(ctypes.pythonapi, "_PyRuntime")
    except ValueError:
        return None
    words = list(offsets)
    if words[0].to_bytes(8, sys.byteorder) != _COOKIE or words[1] != sys.hexversion or words[_FREE_THREADED]:
        return None
    return Layout(
        words[state + _CURRENT_FRAME],
        None,
        words[frame + _EXECUTABLE],
        words[frame + _PREVIOUS],
        words[frame + _INSTRUCTION],
    )


def _matches(memory: int, state: int, layout: Layout) -> bool:
    """Return whether the frames found with a layout are those of this thread, the first being this function's own."""
    expected: list[FrameType] = []
    known: FrameType | None = sys._getframe()
    while known is not None:
        expected.append(known)
        known = known.f_back
    codes = {id(frame.f_code) for frame in expected}
    found: list[tuple[int, int]] = []
    try:
        (address,) = struct.unpack("Q", os.pread(memory, 8, state + layout.state_to_frame))
        if layout.cframe_to_frame is not None:
            (address,) = struct.unpack("Q", os.pread(memory, 8, address + layout.cframe_to_frame))
        while address and len(found) < _MAX_FRAMES:
            code, previous, instruction = (
                struct.unpack("Q", os.pread(memory, 8, address + offset))[0]
                for offset in (layout.code, layout.previous, layout.instruction)
            )
            # The interpreter's own frames lie between them; the low bits may be tags on the pointer.
            if code & ~3 in codes:
                found.append((code & ~3, instruction))
            elif not found:
                return False
            address = previous
    except (OSError, struct.error, OverflowError):
        return False  # not a pointer
    if [code for code, _ in found] != [id(frame.f_code) for frame in expected]:
        return False
    return all(_is_at(frame, instruction) for frame, (_, instruction) in zip(expected[1:], found[1:], strict=True))


def _is_at(frame: FrameType, instruction: int) -> bool:
    """Return whether a calling frame may be at an instruction."""
    if sys.version_info < (3, 11):
        return 2 * (instruction & 0xFFFFFFFF) == frame.f_lasti
    begin = id(frame.f_code)
    return begin < instruction < begin + sys.getsizeof(frame.f_code)
