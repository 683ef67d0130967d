"""Learns when a simulated tensor's memory is given back, and born past Python, without running Python there.

Memory dies anywhere: on a thread without the GIL, while an exception passes, inside the garbage collector. So what
torch calls to give memory back, the ``deleter`` of the DLPack structure that a tensor was made from, is replaced by a
few instructions of machine code, which write the structure's address into a ring and then jump to torch's own
deleter::

    ticket = atomic increment of context.head
    context.ring[ticket & context.mask] = rdi (the structure)
    jump to context.deleter

x86-64, System V calling convention. Tensors that are made past Python (shortcut.cpp) are written there, too: two words,
the first with the highest bit set. The ring is read whenever somebody asks what is allocated. An address can be used
again only after its death was written: deaths with a ticket below the head that a birth saw came before it.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import time
from typing import Final

import torch
from torch._C import _to_dlpack

from pytest_gpusync.machine.machine_code import executable, never_release
from pytest_gpusync.simulated.base.native import cells
from pytest_gpusync.simulated.base.versions import SimulationUnavailable

_MACHINE_CODE: Final = (
    # movabs r10, context; mov eax, 1; lock xadd [r10], rax; and rax, [r10+8]; mov r11, [r10+16]
    "49ba{context}b801000000f0490fc102492342084d8b5a10"
    # mov [r11+rax*8], rdi; jmp [r10+24]
    "49893cc341ff6218"
)
CAPACITY: Final = 1 << 20
"""Words of the ring: more memory than this is never alive at once."""
DEVICES: Final = 128
"""More than torch can tell apart."""
_WORD, _POINTER = ctypes.c_uint64, ctypes.c_void_p


class Context(ctypes.Structure):
    """What the native code knows: ``struct context`` of shortcut.cpp, which describes it."""

    _fields_ = [
        *((name, _WORD) for name in ("head", "mask", "ring", "dlpack_deleter", "open", "read", "at_most")),
        ("room", ctypes.c_int64 * DEVICES),
        ("taken", _WORD * DEVICES),
        ("taken_by_python", _WORD * DEVICES),
        *(
            (name, _WORD)
            for name in ("devices", "calls", "retried", "key_set", "device", "type", "storage", "dimension")
        ),
        *((name, _WORD) for name in ("memory", "deleter", "memory_device", "nbytes")),
        *((name, _WORD) for name in ("cuda", "cuda_inference", "host", "host_inference", "keys")),
        *((name, _WORD) for name in ("host_device", "host_memory_device")),
        *((name, _WORD) for name in ("none", "tensor", "real", "integer", "boolean", "generic", "text", "place")),
        *(
            (name, _POINTER)
            for name in ("host_deleter", "undefined", "shallow_copy", "allocate", "deallocate", "version", "make")
        ),
        ("storage_words", _WORD),
        ("empty_storage", _WORD * 16),
        ("seen", _WORD * 2 * 32),
        ("listed", _WORD * 2 * 2 * 2),
    ]


READ_AT: Final = CAPACITY // 16
"""Unread words at which the ring is to be read unasked."""
BORN: Final = -1 << 63
"""The bit of a word that announces a birth; words are signed."""
_ZEROS: Final = memoryview(bytes(8 << 12)).cast("q")
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
        size = ctypes.sizeof(Context)
        self._memory = mmap.mmap(-1, CAPACITY * 8 + size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        never_release(self._memory)
        self.context = Context.from_buffer(self._memory)
        address = ctypes.addressof(self.context)
        self.head = address >> 3
        """The cell that holds how many words were written."""
        self.room = (address + Context.room.offset) >> 3
        """Cells, by device: bytes that it had left when the books were last brought up to date."""
        self.taken = (address + Context.taken.offset) >> 3
        """Cells, by device: bytes that may have been taken since then past Python."""
        self.taken_by_python = (address + Context.taken_by_python.offset) >> 3
        """Cells, by device: bytes that may have been taken since then otherwise."""
        self._ring = (address + size) >> 3
        capsule = _to_dlpack(torch.empty(1))
        structure = cells[(id(capsule) >> 3) + POINTER_IN_CAPSULE]
        if structure != _pointer_of(capsule, b"dltensor"):
            raise SimulationUnavailable(
                f"Python {sys.version.split()[0]} lays out its objects in an unknown way (a debug or free-threaded "
                "build): use an ordinary build of Python 3.10 to 3.13"
            )
        self.context.mask, self.context.ring = CAPACITY - 1, self._ring << 3
        self.context.dlpack_deleter = cells[(structure >> 3) + DELETER]
        self.context.at_most = READ_AT
        code = bytes.fromhex(_MACHINE_CODE.format(context=address.to_bytes(8, "little").hex()))
        try:
            self.deleter = executable(code)
        except OSError as error:
            raise SimulationUnavailable(
                f"{error.strerror}, which the simulated device needs to see tensors die: allow it, or run on a GPU"
            ) from None
        self._read = 0

    def unread(self) -> int:
        """How many words have been written and not yet read."""
        return cells[self.head] - self._read

    def words(self, before: int) -> list[int]:
        """What was written up to the ticket `before`, as far as it was not read yet: the key of memory that died, or
        for memory that was born :data:`BORN` | device << 48 | bytes, followed by its key.
        """
        words: list[int] = []
        while self._read < before:
            start = self._read % CAPACITY
            count = min(before - self._read, CAPACITY - start, len(_ZEROS))
            places = cells[self._ring + start : self._ring + start + count]
            part = places.tolist()
            while 0 in part:
                # Another thread is between the two instructions that take a place and fill it.
                time.sleep(0)
                part = places.tolist()
            places[:] = _ZEROS[:count]
            words += part
            self._read = self.context.read = self._read + count
        return words
