"""Finds where torch keeps what the native path reads and writes, by looking at objects with known contents.

torch's structures are private to it and differ between releases. Each offset is the one place at which several
objects hold what they are known to hold; if there is no such place, or more than one, the layout is unknown and the
native path is not used.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._C import DispatchKey, DispatchKeySet, _from_dlpack, _to_dlpack

from pytest_gpusync.simulated.abi.lifetimes import POINTER_IN_CAPSULE
from pytest_gpusync.simulated.base import native
from pytest_gpusync.simulated.base.native import cells

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpusync.simulated.abi.lifetimes import Context

Tensor = torch.Tensor
_TENSOR_WORDS: Final = 23
"""Words of a tensor's structure that every release has."""
_STORAGE_WORDS: Final = 11
"""Words of a storage's structure that every release has."""
_TYPES: Final = {torch.uint8: 0, torch.int64: 4, torch.float32: 6, torch.bool: 11, torch.bfloat16: 15}
"""Some data types, with their numbers."""
_FOLLOWED_TYPES: Final = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
)
"""Data types of tensors whose accesses native code writes down; operators on others are left to Python."""
_ENTRY_WORDS: Final = 512
"""Words of an operator's entry that contain its CPU and CUDA kernels."""


class UnknownLayout(Exception):
    """torch keeps something elsewhere, or in another form."""


def find_tensors(context: Context) -> None:
    """Find the fields of tensors and storages, and the functions of torch that the native path calls.

    Raises:
        UnknownLayout: a field was not found.
        SimulationUnavailable: a function was not found.
    """
    with torch.inference_mode(mode=False):
        tensors = [torch.zeros(shape, device="cpu") for shape in ((), (2,), (2, 3, 4), (2, 3, 4, 5))]
    cpu, three, five = tensors[2], _labelled(tensors[2], 3), _labelled(tensors[3], 5)
    with torch.inference_mode():
        cpu_inference = torch.zeros(2, device="cpu")
        inference = _labelled(cpu_inference, 3)
    host, cuda = _key_set(cpu), _key_set(three)
    contents = {id(x): _words(x._cdata, _TENSOR_WORDS) for x in (*tensors, three, five, inference, cpu_inference)}

    def offset(what: str, *expected: tuple[Tensor, int]) -> int:
        places = range(2, _TENSOR_WORDS)
        found = [n for n in places if all(contents[id(x)][n] == _signed(value) for x, value in expected)]
        return 8 * _only(found, what)

    context.key_set = offset("the keys", (cpu, host), (three, cuda), (five, cuda))
    context.host, context.cuda = host, cuda
    context.host_inference, context.cuda_inference = _key_set(cpu_inference), _key_set(inference)
    context.keys = DispatchKeySet(DispatchKey.CPU).raw_repr()
    if len({host, cuda, context.host_inference, context.cuda_inference}) != 4:
        raise UnknownLayout("key sets are alike")
    context.storage = offset("the storage", *((x, x.untyped_storage()._cdata) for x in (cpu, three, five)))
    context.dimension = offset("the dimension", *((x, x.dim()) for x in (*tensors, three, five)))
    typed = [(torch.zeros(1, dtype=dtype, device="cpu"), number) for dtype, number in _TYPES.items()]
    types = [(x._cdata, number.to_bytes(2, "little")) for x, number in typed]
    context.type = _offset_of_two_bytes(types, 8 * _TENSOR_WORDS, "the data type")
    devices = [(cpu._cdata, b"\0\xff"), (three._cdata, b"\1\3"), (five._cdata, b"\1\5")]
    context.device = _offset_of_two_bytes(devices, 8 * _TENSOR_WORDS, "the device")
    # The bit of a Python object, one weak reference for all strong ones, and one strong reference.
    if cells[(tensors[1]._cdata >> 3) + 1] != _signed(1 << 63 | 1 << 32 | 1):
        raise UnknownLayout(f"torch {torch.__version__} counts references differently")
    context.version = _version_pointer(context.storage // 8)
    _find_storages(context, [tensors[2], tensors[3]], three, five)
    _find_shapes(context, offset, contents)
    context.undefined = native.symbol("libc10.so", "_ZN3c1019UndefinedTensorImpl10_singletonE")
    context.shallow_copy = native.symbol(
        "libc10.so", "_ZNK3c1010TensorImpl23shallow_copy_and_detachERKNS_15VariableVersionEb"
    )


def _find_shapes(context: Context, offset: Callable[..., int], contents: dict[int, list[int]]) -> None:
    """Find the sizes, the strides and the first element of tensors, and the sizes of data types."""
    with torch.inference_mode(mode=False):
        parts = [
            torch.zeros(97, 89, 83, device="cpu")[5:, 7:, 11:],
            torch.zeros(41, 43, 47, 53, device="cpu")[2:, 3:, 5:],
        ]
    for part in parts:
        contents[id(part)] = _words(part._cdata, _TENSOR_WORDS)
    for place in (0, 1, 2):
        for name, values in (("sizes", Tensor.size), ("strides", Tensor.stride)):
            found = offset(f"the {name}", *((part, values(part, place)) for part in parts)) - 8 * place
            if getattr(context, name) not in (0, found):
                raise UnknownLayout(f"torch {torch.__version__} keeps {name} in several places")
            setattr(context, name, found)
    context.first_element = offset("the first element", *((part, part.storage_offset()) for part in parts))
    context.elements = offset("the number of elements", *((part, part.numel()) for part in parts))
    for dtype in _FOLLOWED_TYPES:
        element = torch.empty(1, dtype=dtype, device="cpu")
        number = int.from_bytes(ctypes.string_at(element._cdata + context.type, 2), "little")
        context.item_size[number] = element.element_size()


def _words(address: int, count: int) -> list[int]:
    return cells[address >> 3 : (address >> 3) + count].tolist()


def _only(found: Sequence[int], what: str) -> int:
    if len(found) != 1:
        raise UnknownLayout(f"torch {torch.__version__} keeps {what} in {len(found)} places")
    return found[0]


def _labelled(tensor: Tensor, index: int) -> Tensor:
    """`tensor` as one of ``cuda:index`` that is not counted."""
    capsule = _to_dlpack(tensor)
    cells[(cells[(id(capsule) >> 3) + POINTER_IN_CAPSULE] >> 3) + 1] = 2 | index << 32
    labelled: Tensor = _from_dlpack(capsule)
    return labelled


def _key_set(tensor: Tensor) -> int:
    raw: int = torch._C._dispatch_keys(tensor).raw_repr()
    return raw


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _offset_of_two_bytes(expected: Sequence[tuple[int, bytes]], size: int, what: str) -> int:
    """Find two bytes in structures of `size` bytes, given as (address, those two bytes)."""
    contents = [(ctypes.string_at(address, size), two) for address, two in expected]
    return _only(
        [offset for offset in range(16, size, 2) if all(held[offset : offset + 2] == two for held, two in contents)],
        what,
    )


_kept: list[Any] = []
"""What native code refers to."""


def _version_pointer(storage: int) -> int:
    """Return the address of a tensor's pointer to its version counter, which detached tensors share."""
    with torch.inference_mode(mode=False):
        one, other = torch.zeros(2, device="cpu"), torch.zeros(2, device="cpu")
        same = one.detach()
    words = [_words(x._cdata, _TENSOR_WORDS) for x in (one, same, other)]
    place = _only(
        [n for n, (a, b, c) in enumerate(zip(*words, strict=True)) if n != storage and a == b != c and a > 4096],
        "the version counter",
    )
    torch._C._autograd._unsafe_set_version_counter((one,), (4321,))
    if cells[(words[0][place] >> 3) + 2] & 0xFFFFFFFF != 4321:
        raise UnknownLayout(f"torch {torch.__version__} keeps versions differently")
    _kept.append(one)
    return one._cdata + 8 * place


def _find_storages(context: Context, hosts: Sequence[Tensor], three: Tensor, five: Tensor) -> None:
    size = 9
    storages = [x.untyped_storage() for x in (*hosts, three, five)]
    contents = [_words(storage._cdata, size) for storage in storages]
    pointers = [
        [n for n in range(2, size) if words[n] == x.data_ptr()] for x, words in zip(hosts, contents, strict=False)
    ]
    # The memory, its deleter, and the deleter's argument, which is the memory again.
    if pointers[0] != [2, 4] or pointers[1] != [2, 4] or contents[0][3] != contents[1][3]:
        raise UnknownLayout(f"torch {torch.__version__} keeps the memory of tensors differently")
    context.memory, context.deleter = 16, 24
    context.host_deleter = contents[0][3]
    sizes = [n for n in range(5, size) if all(w[n] == s.nbytes() for s, w in zip(storages, contents, strict=True))]
    context.nbytes = 8 * _only(sizes, "sizes")
    devices = [(storages[0]._cdata, b"\0\xff"), (storages[2]._cdata, b"\1\3"), (storages[3]._cdata, b"\1\5")]
    context.memory_device = _offset_of_two_bytes(devices, 8 * size, "the device of memory")
    context.host_device = context.host_memory_device = 0xFF00
    _copy_borrowing_storage(context)


def _copy_borrowing_storage(context: Context) -> None:
    """Keep a copy of a storage whose memory belongs to something else."""
    borrowed = _from_dlpack(_to_dlpack(torch.zeros(5, device="cpu")))
    address = cells[(borrowed._cdata + context.storage) >> 3]
    words = _words(address, _STORAGE_WORDS)
    if words[1] != 1 << 32 | 1 or words[6] != 20 or any(words[8:]):
        raise UnknownLayout(f"torch {torch.__version__} makes storages differently")
    # As large as the block that torch's storage lies in: allocators may be told the size again when it is freed.
    usable = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)(native.symbol("libc10.so", "malloc_usable_size"))
    context.storage_words = usable(address) // 8
    if not _STORAGE_WORDS <= context.storage_words <= len(context.empty_storage):
        raise UnknownLayout(f"torch {torch.__version__} makes storages of another size")
    context.empty_storage[:_STORAGE_WORDS] = [word & (1 << 64) - 1 for word in words]


class DispatchTables:
    """The kernels in the entries of operators, found with an operator that has Python kernels for CPU and CUDA.

    Each kernel is stored twice: in the table that calls use, and in the list of kernels registered for its key. torch
    fills the table from the lists, and compares the two before it reports an error. Both hold the kernel's object,
    followed by the function that enters it. The lists are in a hash table with slots of five words: the distance from
    the slot where the entry belongs, the key, the list's first and last node, and its length. A node has pointers to
    the next and the previous one, and the kernel.
    """

    def __init__(self, entry: int, host: int, cuda: int) -> None:
        """Find the lists.

        Args:
            entry: the operator's entry.
            host: place of its CPU kernel in the entry.
            cuda: place of its CUDA kernel in the entry.
        """
        self._host, self._cuda = host, cuda
        self.enters_python = cells[entry + cuda + 1]
        """Address of the function that enters Python kernels."""
        readable = _readable()
        found = []
        for place in range(_ENTRY_WORDS, 2 * _ENTRY_WORDS):
            slots, mask = cells[entry + place], cells[entry + place + 1]
            if not 0 < mask < 256 or mask & (mask + 1) or not _within(slots, 40 * (mask + 1), readable):
                continue
            for slot in range(slots >> 3, (slots >> 3) + 5 * (mask + 1), 5):
                node = cells[slot + 2]
                if _within(node, 32, readable) and cells[(node >> 3) + 2] == cells[entry + cuda]:
                    found.append((place, cells[slot + 1] & 0xFFFF))
        if len(found) != 1:
            raise UnknownLayout(f"torch {torch.__version__} keeps registered kernels in {len(found)} places")
        self._lists, self._key = found[0]

    def host_kernel(self, entry: int) -> int | None:
        """Return the address of the cell with the CPU kernel; None without one, or if it is in Python."""
        cell = entry + self._host
        return None if cells[cell + 1] in (0, self.enters_python) else cell << 3

    def kernel(self, entry: int) -> int:
        """Return the object of the CUDA kernel."""
        return cells[entry + self._cuda]

    def registered(self, entry: int) -> int | None:
        """Return the cell with the function that enters the CUDA kernel, in the list; None if it is not in Python."""
        kernel = self.kernel(entry)
        if cells[entry + self._cuda + 1] != self.enters_python:
            return None
        slots, mask = cells[entry + self._lists] >> 3, cells[entry + self._lists + 1]
        # Slots after the last one hold what found no place before it; the very last of all is no slot.
        for slot in range(slots, slots + 5 * (mask + max(4, mask.bit_length())), 5):
            if cells[slot] & 0xFF < 128 and cells[slot + 1] & 0xFFFF == self._key:
                node = cells[slot + 2] >> 3
                return node + 3 if (cells[node + 2], cells[node + 3]) == (kernel, self.enters_python) else None
        return None

    def replace(self, entry: int, function: int) -> None:
        """Have torch call `function` instead of the one that enters the CUDA kernel, which is in Python."""
        registered = self.registered(entry)
        if registered is not None:
            cells[registered] = cells[entry + self._cuda + 1] = function


def entry_of(op: Any) -> int:
    """Return the first cell of the dispatcher's entry of an operator."""
    # A Python object's two words, then a pointer to the C++ object, whose first word points to the entry.
    return cells[cells[(id(op._handle) >> 3) + 2] >> 3] >> 3


def _readable() -> list[tuple[int, int]]:
    """Return the memory that this process may read."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as lines:
        areas = [line.split(maxsplit=2)[:2] for line in lines]
    return [
        (int(start, 16), int(end, 16))
        for start, _, end in (place.partition("-") for place, rights in areas if rights.startswith("r"))
    ]


def _within(address: int, size: int, areas: Sequence[tuple[int, int]]) -> bool:
    return address % 8 == 0 and any(start <= address and address + size <= end for start, end in areas)


def find_values(context: Context, inspect: int) -> DispatchTables:
    """Find the dispatch tables, and the tags of arguments.

    Args:
        context: receives the tags.
        inspect: address of the native function that copies arguments into the context.

    Raises:
        UnknownLayout: something was not found.
    """
    library = torch.library.Library("gpusync_native_path", "DEF")
    _kept.append(library)
    library.define(
        "probe(Tensor x, Tensor? absent, Scalar real, int whole, bool flag, Device? place, str text, int[] sizes, "
        "Tensor[] many) -> Tensor"
    )
    op = torch.ops.gpusync_native_path.probe.default
    entry = entry_of(op)

    def kernel(x: Tensor, *_: Any) -> Tensor:
        return x

    found = []
    for key in ("CPU", "CUDA"):
        before = _words(entry << 3, _ENTRY_WORDS)
        library.impl("probe", kernel, key)
        after = _words(entry << 3, _ENTRY_WORDS)
        changed = [n for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        # The kernel's object, then the function that enters it, which stays if a Python fallback was there before.
        if not changed or changed[1:] not in ([], [changed[0] + 1]):
            raise UnknownLayout(f"torch {torch.__version__} keeps the kernels of operators differently")
        found.append(changed[0])
    tables = DispatchTables(entry, *found)
    if tables.registered(entry) is None or tables.registered(entry_of(torch.ops.aten.add.Tensor)) is None:
        raise UnknownLayout(f"torch {torch.__version__} enters Python kernels in several ways")
    context.python = tables.enters_python
    tables.replace(entry, inspect)
    x = _labelled(torch.zeros(3, device="cpu"), 0)
    op(x, None, 2.5, 77, True, torch.device("cuda", 4), "text", [11, 12], [x, x])
    _read_tags(context, x)
    return tables


def _read_tags(context: Context, x: Tensor) -> None:
    seen = [(value[0], value[1] & 0xFFFFFFFF) for value in context.seen]
    tensor, none, real, whole, flag, place, text, sizes, many = [tag for _, tag in seen[:9]]
    integers, tensors = ([(value[0], value[1] & 0xFFFFFFFF) for value in items] for items in context.listed)
    right = (
        seen[0][0] == x._cdata
        and seen[2][0] == struct.unpack("<Q", struct.pack("<d", 2.5))[0]
        and seen[3][0] == 77
        and seen[4][0] & 0xFF == 1
        and seen[5][0] & 0xFFFF == 0x401
        and integers == [(11, whole), (12, whole)]
        and tensors == [(x._cdata, tensor)] * 2
        and sizes == many
        and len({tensor, none, real, whole, flag, place, text, sizes}) == 8
    )
    if not right:
        raise UnknownLayout(f"torch {torch.__version__} passes arguments differently")
    context.tensor, context.none, context.real, context.integer = tensor, none, real, whole
    context.boolean, context.place, context.text, context.generic = flag, place, text, sizes
