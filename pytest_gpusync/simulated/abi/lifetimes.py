"""Notices when the memory of a simulated tensor is released, without running Python code there.

Memory is released anywhere: on a thread without the GIL, while an exception propagates, inside the garbage collector.
So the ``deleter`` of the DLPack structure that a tensor was made from, which torch calls to release the memory, is
replaced by a function of the native library (``native_path_release`` of native_path.cpp). It writes the structure's
address into a ring and calls torch's own deleter. Tensors that the native path makes are written there too: two
words, the first with the highest bit set. The ring is read whenever somebody asks what is allocated. An address can
be used again only after its release was written, so releases with a smaller ticket than the number of words that a
birth saw came before it.

Without the native library, weak references to the storages of tensors notice it. Their callback is ``list.append``:
torch holds the GIL when it releases a storage that Python has seen, and no Python code runs.
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
"""Words of the ring: more blocks of memory than this are never live at once."""
DEVICES: Final = 128
"""More than torch supports."""
SHARED: Final = 1 << 12
"""Counters of memory that another stream may still use, see ``shared_slot()`` of native_path.cpp."""
_WORD, _POINTER = ctypes.c_uint64, ctypes.c_void_p


class Context(ctypes.Structure):
    """``struct context`` of native_path.cpp, which describes it."""

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
        *((name, _WORD) for name in ("following", "sizes", "strides", "first_element", "elements")),
        ("item_size", _WORD * 64),
        ("shared", _WORD * SHARED),
        *((name, _POINTER) for name in ("take_lock", "give_lock", "frame", "caller", "code", "instruction", "let_go")),
    ]


READ_AT: Final = CAPACITY // 16
"""Number of unread words from which the ring is read even if nobody asks."""
BORN: Final = -1 << 63
"""The bit of a word that is the first of a birth; words are signed."""
USED: Final = 1 << 62
"""The further bit of a word that is the first of a record of an operator: ``struct record`` of native_path.cpp."""
LIBRARY: Final = "simulated/native_path/native_path"
_PART: Final = 1 << 14
"""Words of the ring whose memory is given back at once."""
_ZEROS: Final = memoryview(bytes(8 << 12)).cast("q")
POINTER_IN_CAPSULE: Final = 2
"""The cell of a ``PyCapsule`` with its pointer, after the two of every object."""
_DELETER: Final = 7
"""The cell of ``DLManagedTensor`` with its deleter."""

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Lifetimes:
    """What is left of each device's memory, for kernels to read, and in its subclasses what was released."""

    def __init__(self, words: int = 0) -> None:
        """Allocate the context, followed by `words` words."""
        capsule = _to_dlpack(torch.empty(1))
        structure = cells[(id(capsule) >> 3) + POINTER_IN_CAPSULE]
        if structure != _pointer_of(capsule, b"dltensor"):
            raise SimulationUnavailable(
                f"Python {sys.version.split()[0]} lays out its objects in an unknown way (a debug or free-threaded "
                f"build): use an ordinary build of Python {PYTHONS}"
            )
        # Private: a forked child has its own.
        size = ctypes.sizeof(Context)
        memory = mmap.mmap(-1, size + words * 8, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Never released: native code may use it after the interpreter has cleared every module.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
        self._memory = memory
        self.context = Context.from_buffer(memory)
        self.context.dlpack_deleter = cells[(structure >> 3) + _DELETER]
        address = ctypes.addressof(self.context)
        self.room = (address + Context.room.offset) >> 3
        """Cells, by device: bytes that were left when the events were last applied."""
        self.taken = (address + Context.taken.offset) >> 3
        """Cells, by device: bytes that the native path may have taken since then."""
        self.taken_by_python = (address + Context.taken_by_python.offset) >> 3
        """Cells, by device: bytes that Python kernels may have taken since then."""

    def written(self) -> int:
        """Return the number of words written so far."""
        raise NotImplementedError

    def unread(self) -> int:
        """Return the number of words written and not read yet."""
        raise NotImplementedError

    def words(self, before: int) -> list[int]:
        """Return the unread words up to the ticket `before`: the key of memory that was released; for a birth
        :data:`BORN` | device << 48 | bytes, followed by its key; or for an operator :data:`BORN` | :data:`USED` |
        device << 48 | the number of words of its record after the third.
        """
        raise NotImplementedError

    def mark(self, structure: int) -> None:
        """Prepare the DLPack structure at this address, from which torch is about to make a tensor."""

    def key(self, structure: int, tensor: torch.Tensor) -> int:
        """Return the key of the memory of `tensor`, which was made from that structure."""
        raise NotImplementedError

    def memory_of(self, key: int) -> int:
        """Return the address of the live memory with this key."""
        raise NotImplementedError


class Ring(Lifetimes):
    """Releases and births as the native library writes them."""

    def __init__(self, library: ctypes.PyDLL) -> None:
        super().__init__(CAPACITY)
        self.library = library
        address = ctypes.addressof(self.context)
        size = ctypes.sizeof(Context)
        self._head = address >> 3
        self._ring = (address + size) >> 3
        self._read = 0
        self._deleter = ctypes.cast(library.native_path_release, ctypes.c_void_p).value or 0
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
                # Another thread is between taking a place and filling it.
                time.sleep(0)
                part = places.tolist()
            places[:] = _ZEROS[:count]
            words += part
            self._give_back_pages(start, start + count)
            self._read = self.context.read = self._read + count
        return words

    def _give_back_pages(self, start: int, end: int) -> None:
        """Let the system have the memory of the parts of the ring that end between two words, which are zero; otherwise
        a long run would fill the whole ring with memory.
        """
        first, last = start // _PART * _PART, end // _PART * _PART
        if first < last:
            page = mmap.PAGESIZE
            offset = ctypes.sizeof(Context)
            low, high = -(-(offset + first * 8) // page) * page, (offset + last * 8) // page * page
            self._memory.madvise(mmap.MADV_DONTNEED, low, high - low)

    def mark(self, structure: int) -> None:
        """See :meth:`Lifetimes.mark`."""
        cells[(structure >> 3) + _DELETER] = self._deleter

    def key(self, structure: int, tensor: torch.Tensor) -> int:
        """Return the address of the structure."""
        return structure

    def memory_of(self, key: int) -> int:
        """See :meth:`Lifetimes.memory_of`; the first cell of a structure is the address of its memory."""
        return cells[key >> 3]


class _WatchedStorage(weakref.ref):  # type: ignore[type-arg]
    """A reference to a storage, whose callback is called when the storage is released."""

    __slots__ = ("address", "key")
    address: int
    key: int


class WatchedStorages(Lifetimes):
    """Releases as weak references to storages notice them."""

    def __init__(self) -> None:
        super().__init__()
        self._released: list[Any] = []
        """References to storages that were released, in order."""
        self._live: dict[int, _WatchedStorage] = {}
        """By key. Keys are odd; addresses, which are the keys of other memory, are even."""
        self._keys = itertools.count(1, 2)
        self._read = 0

    def written(self) -> int:
        """See :meth:`Lifetimes.written`."""
        return self._read + len(self._released)

    def unread(self) -> int:
        """See :meth:`Lifetimes.unread`."""
        return len(self._released)

    def words(self, before: int) -> list[int]:
        """See :meth:`Lifetimes.words`."""
        released = self._released[: before - self._read]
        self._read += len(released)
        del self._released[: len(released)]
        return [self._live.pop(reference.key).key for reference in released]

    def key(self, structure: int, tensor: torch.Tensor) -> int:
        """Return a new number."""
        storage = tensor.untyped_storage()
        watched = _WatchedStorage(storage, self._released.append)
        watched.key, watched.address = next(self._keys), storage.data_ptr()
        self._live[watched.key] = watched
        return watched.key

    def memory_of(self, key: int) -> int:
        """See :meth:`Lifetimes.memory_of`."""
        watched = self._live.get(key)
        return 0 if watched is None else watched.address


def best() -> Lifetimes:
    """Return the native library's ring, or without the library, weak references."""
    try:
        library = native_libraries.load(LIBRARY)
    except NativeUnavailable:
        return WatchedStorages()
    return Ring(library)
