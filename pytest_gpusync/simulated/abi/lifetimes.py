"""Learns when the memory of a simulated tensor is given back, without running Python code there.

Memory dies anywhere: on a thread without the GIL, while an exception passes, inside the garbage collector. So what
torch calls to give memory back, the ``deleter`` of the DLPack structure that a tensor was made from, is replaced by a
function of the native library (``native_path_give_back`` of shortcut.cpp), which writes the structure's address into a
ring and then calls torch's own deleter. Tensors that the native path makes are written there, too: two words, the first
with the highest bit set. The ring is read whenever somebody asks what is allocated. An address can be used again only
after its death was written: deaths with a ticket below the number of words that a birth saw came before it.

Without the native library a weak reference to the storage of each tensor tells of its death. Its callback is
``list.append``: torch holds the GIL where it drops a storage that Python knows, and no Python code runs.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import sys
import time
import weakref
from typing import Any, Final

import torch
from torch._C import _to_dlpack

from pytest_gpusync.machine import native_libraries
from pytest_gpusync.machine.native_libraries import NativeUnavailable
from pytest_gpusync.simulated.base.native import cells
from pytest_gpusync.simulated.base.versions import PYTHONS, SimulationUnavailable

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
        *((name, _WORD) for name in ("devices", "calls", "retried", "python")),
        *((name, _WORD) for name in ("key_set", "device", "type", "storage", "dimension")),
        *((name, _WORD) for name in ("memory", "deleter", "memory_device", "nbytes")),
        *((name, _WORD) for name in ("cuda", "cuda_inference", "host", "host_inference", "keys")),
        *((name, _WORD) for name in ("host_device", "host_memory_device")),
        *((name, _WORD) for name in ("none", "tensor", "real", "integer", "boolean", "generic", "text", "place")),
        *((name, _POINTER) for name in ("host_deleter", "undefined", "shallow_copy", "version")),
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
_DELETER: Final = 7
"""The cell of ``DLManagedTensor`` that holds its deleter."""

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Lifetimes:
    """The figures of each device that kernels read, and, in its subclasses, what has died and was born."""

    def __init__(self, words: int = 0) -> None:
        """Make the context, followed by `words` words."""
        capsule = _to_dlpack(torch.empty(1))
        structure = cells[(id(capsule) >> 3) + POINTER_IN_CAPSULE]
        if structure != _pointer_of(capsule, b"dltensor"):
            raise SimulationUnavailable(
                f"Python {sys.version.split()[0]} lays out its objects in an unknown way (a debug or free-threaded "
                f"build): use an ordinary build of Python {PYTHONS}"
            )
        # Private: a forked child has deaths of its own.
        size = ctypes.sizeof(Context)
        memory = mmap.mmap(-1, size + words * 8, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Native code may use it after the interpreter has cleared every module: it is never released.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
        self.context = Context.from_buffer(memory)
        self.context.dlpack_deleter = cells[(structure >> 3) + _DELETER]
        address = ctypes.addressof(self.context)
        self.room = (address + Context.room.offset) >> 3
        """Cells, by device: bytes that it had left when the books were last brought up to date."""
        self.taken = (address + Context.taken.offset) >> 3
        """Cells, by device: bytes that may have been taken since then past Python."""
        self.taken_by_python = (address + Context.taken_by_python.offset) >> 3
        """Cells, by device: bytes that may have been taken since then otherwise."""

    def written(self) -> int:
        """How many words were written so far."""
        raise NotImplementedError

    def unread(self) -> int:
        """How many words have been written and not yet read."""
        raise NotImplementedError

    def words(self, before: int) -> list[int]:
        """What was written up to the ticket `before`, as far as it was not read yet: the key of memory that died, or
        for memory that was born :data:`BORN` | device << 48 | bytes, followed by its key.
        """
        raise NotImplementedError

    def mark(self, structure: int) -> None:
        """Prepare the DLPack structure at this address, which torch is about to make a tensor of."""

    def key(self, structure: int, tensor: torch.Tensor) -> int:
        """What the death of the memory of `tensor`, which was made of the structure, will be told as."""
        raise NotImplementedError

    def memory_of(self, key: int) -> int:
        """Address of the memory that lives as `key`."""
        raise NotImplementedError


class Ring(Lifetimes):
    """Deaths and births as the native library writes them."""

    def __init__(self, library: ctypes.PyDLL) -> None:
        super().__init__(CAPACITY)
        self.library = library
        address = ctypes.addressof(self.context)
        size = ctypes.sizeof(Context)
        self._head = address >> 3
        self._ring = (address + size) >> 3
        self._read = 0
        self._deleter = ctypes.cast(library.native_path_give_back, ctypes.c_void_p).value or 0
        self.context.mask, self.context.ring = CAPACITY - 1, self._ring << 3
        self.context.at_most = READ_AT
        library.native_path_attach.argtypes = [ctypes.c_void_p, _WORD]
        library.native_path_attach.restype = ctypes.c_bool
        if not library.native_path_attach(address, size):
            raise SimulationUnavailable("the native library was built from another version: install this one again")

    def written(self) -> int:
        """See :meth:`Lifetimes.written`."""
        return cells[self._head]

    def unread(self) -> int:
        """See :meth:`Lifetimes.unread`."""
        return cells[self._head] - self._read

    def words(self, before: int) -> list[int]:
        """See :meth:`Lifetimes.words`."""
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

    def mark(self, structure: int) -> None:
        """See :meth:`Lifetimes.mark`."""
        cells[(structure >> 3) + _DELETER] = self._deleter

    def key(self, structure: int, tensor: torch.Tensor) -> int:
        """The address of the structure."""
        return structure

    def memory_of(self, key: int) -> int:
        """See :meth:`Lifetimes.memory_of`; the first cell of a structure is the address of its memory."""
        return cells[key >> 3]


class _WatchedStorage(weakref.ref):  # type: ignore[type-arg]
    """A reference to a storage, which tells of its death."""

    __slots__ = ("address", "key")
    address: int
    key: int


class WatchedStorages(Lifetimes):
    """Deaths as the storages' weak references tell them."""

    def __init__(self) -> None:
        super().__init__()
        self._dead: list[Any] = []
        """References to storages that died, in their order."""
        self._living: dict[int, _WatchedStorage] = {}
        """By key. Keys are odd: addresses, which are keys of other memory, are even."""
        self._keys = itertools.count(1, 2)
        self._read = 0

    def written(self) -> int:
        """See :meth:`Lifetimes.written`."""
        return self._read + len(self._dead)

    def unread(self) -> int:
        """See :meth:`Lifetimes.unread`."""
        return len(self._dead)

    def words(self, before: int) -> list[int]:
        """See :meth:`Lifetimes.words`."""
        dead = self._dead[: before - self._read]
        self._read += len(dead)
        del self._dead[: len(dead)]
        return [self._living.pop(reference.key).key for reference in dead]

    def key(self, structure: int, tensor: torch.Tensor) -> int:
        """A number of its own."""
        storage = tensor.untyped_storage()
        watched = _WatchedStorage(storage, self._dead.append)
        watched.key, watched.address = next(self._keys), storage.data_ptr()
        self._living[watched.key] = watched
        return watched.key

    def memory_of(self, key: int) -> int:
        """See :meth:`Lifetimes.memory_of`."""
        watched = self._living.get(key)
        return 0 if watched is None else watched.address


def best() -> Lifetimes:
    """What learns of lifetimes here: the native library, or without it weak references."""
    try:
        library = native_libraries.load("simulated/native_path/shortcut")
    except NativeUnavailable:
        return WatchedStorages()
    return Ring(library)
