"""Where the interpreter keeps the frames of a thread. The gate reads them without the GIL.

The layout is private to CPython and differs between versions. The known layouts are only a starting point: they are
compared, by reads that cannot crash, with frames whose code and instructions Python reports. If they do not match, or
the version is unknown, there is no layout, and the gate passes every call to Python.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
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
    (3, 13): (0, 8, 56),
    (3, 14): (0, 8, 56),
}
"""In a frame: offsets of its code object, of the calling frame, and of its position, which is a pointer to an
instruction, in 3.10 its index. From pycore_frame.h and frameobject.h of each version."""

_STATE_BYTES: Final = 256
_MAX_FRAMES: Final = 4096


def find_layout(version: tuple[int, int] = sys.version_info[:2]) -> Layout | None:
    """Return the layout of this interpreter; None if it differs from the one known for `version`."""
    offsets = _FRAMES.get(version)
    if offsets is None or sys.implementation.name != "cpython":
        return None
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY)
    except OSError:
        return None
    try:
        current_state = ctypes.pythonapi.PyThreadState_Get
        current_state.restype = ctypes.c_void_p
        state: int = current_state()
        for place in range(0, _STATE_BYTES, 8):
            for within in (None, 0, 8):
                layout = Layout(place, within, *offsets)
                if _matches(memory, state, layout):
                    return layout
    finally:
        os.close(memory)
    return None


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
