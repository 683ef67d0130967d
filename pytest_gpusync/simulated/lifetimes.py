"""Learns when a simulated tensor's memory is given back, without running Python there.

Memory dies anywhere: on a thread without the GIL, while an exception passes, inside the garbage collector. So what
torch calls to give memory back, the ``deleter`` of the DLPack structure that a tensor was made from, is replaced by a
few instructions of machine code, which write the structure's address into a ring and then jump to torch's own
deleter::

    ticket = atomic increment of context.head
    context.ring[ticket & context.mask] = rdi (the structure)
    jump to context.deleter

x86-64, System V calling convention. The deaths are read whenever somebody asks what is allocated. An address can be
used again only after its death was written: deaths with a ticket below the head that a birth saw came before it.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import time
from typing import TYPE_CHECKING, Final

import torch
from torch._C import _to_dlpack

from pytest_gpusync.machine_code import executable, never_release

from .native import cells
from .versions import SimulationUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

_MACHINE_CODE: Final = (
    # movabs r10, context; mov eax, 1; lock xadd [r10], rax; and rax, [r10+8]; mov r11, [r10+16]
    "49ba{context}b801000000f0490fc102492342084d8b5a10"
    # mov [r11+rax*8], rdi; jmp [r10+24]
    "49893cc341ff6218"
)
CAPACITY: Final = 1 << 20
"""Deaths that fit between two readings: more memory than this is never alive at once."""
POINTER_IN_CAPSULE: Final = 2
"""The cell of a ``PyCapsule`` that holds its pointer; it follows the two of every object."""
DELETER: Final = 7
"""The cell of ``DLManagedTensor`` that holds its deleter."""

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Lifetimes:
    """The ring, and how far it has been read."""

    def __init__(self) -> None:
        # Private: a forked child has deaths of its own.
        self._memory = mmap.mmap(-1, (CAPACITY + 4) * 8, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        never_release(self._memory)
        self._context = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.head = self._context >> 3
        """The cell that holds how many have died."""
        self._ring = self.head + 4
        capsule = _to_dlpack(torch.empty(1))
        structure = cells[(id(capsule) >> 3) + POINTER_IN_CAPSULE]
        if structure != _pointer_of(capsule, b"dltensor"):
            raise SimulationUnavailable(
                f"Python {sys.version.split()[0]} lays out its objects in an unknown way (a debug or free-threaded "
                "build): use an ordinary build of Python 3.10 to 3.13"
            )
        for offset, value in enumerate((0, CAPACITY - 1, self._ring << 3, cells[(structure >> 3) + DELETER])):
            cells[self.head + offset] = value
        code = bytes.fromhex(_MACHINE_CODE.format(context=self._context.to_bytes(8, "little").hex()))
        try:
            self.deleter = executable(code)
        except OSError as error:
            raise SimulationUnavailable(
                f"{error.strerror}, which the simulated device needs to see tensors die: allow it, or run on a GPU"
            ) from None
        self._read = 0

    def deaths(self, before: int) -> Iterator[int]:
        """The structures that died, in order, up to the ticket `before`, as far as they were not read yet."""
        ring, mask = self._ring, CAPACITY - 1
        while self._read < before:
            place = ring + (self._read & mask)
            structure = cells[place]
            while not structure:
                # Another thread is between the two instructions that take a place and fill it.
                time.sleep(0)
                structure = cells[place]
            cells[place] = 0
            self._read += 1
            yield structure
