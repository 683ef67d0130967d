"""Replaces the parts of ``torch`` itself, its tensors and its storages, that would use a real device or
pinned memory.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch

from pytest_gpusync.simulated.base.state import device_index
from pytest_gpusync.simulated.kernels import neural
from pytest_gpusync.simulated.races import freed_memory, host_arrays, host_operators, pinned_memory, reports
from pytest_gpusync.simulated.tensors import memory, pinned, streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpusync.simulated.base.patches import Patches

Tensor = torch.Tensor

_FACTORIES = (
    "arange",
    "empty",
    "empty_like",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "tensor",
    "zeros",
    "zeros_like",
)
_METHODS = ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")
_LEGACY = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


def install(patches: Patches) -> None:
    """Replace everything; `patches` restores it."""
    _install_pinning(patches)
    _install_storages(patches)
    for name, dtype in _LEGACY.items():
        patches.set(torch.cuda, name, _legacy_type(name, dtype))
    patches.set(torch, "set_default_tensor_type", _default_type(torch.set_default_tensor_type))
    patches.set(torch.nn.RNNBase, "flatten_parameters", neural.flattening(torch.nn.RNNBase.flatten_parameters))
    patches.set(Tensor, "record_stream", _record_stream)
    patches.set(Tensor, "__cuda_array_interface__", property(_array_interface))


def _record_stream(tensor: Tensor, stream: Any) -> None:
    """Let the allocator wait for `stream` before it reuses the memory, which is all that this does on a GPU, too."""
    if reports.is_listening() and tensor.is_cuda and tensor.numel():
        freed_memory.record_stream(tensor, streams.timeline_of(stream))


def _array_interface(tensor: Tensor) -> Any:
    """Refuse to pass host memory to a library that would treat it as a GPU's; a CPU tensor has no such attribute."""
    if tensor.is_cuda:
        raise NotImplementedError(
            "tensors of the simulated device cannot be passed to CuPy, Numba or other CUDA libraries: run on a GPU"
        )
    raise AttributeError(f"can't get __cuda_array_interface__ on non-CUDA tensor type: {tensor.type()}")


def _install_pinning(patches: Patches) -> None:
    # If a default device is set, torch recognizes its factories by identity: let it look at the originals first.
    import torch.utils._device as default_device

    default_device._device_constructors()
    for name in _FACTORIES:
        patches.set(torch, name, _marking(getattr(torch, name)))
    for name in _METHODS:
        patches.set(Tensor, name, _marking(getattr(Tensor, name)))
    host_operators.install()
    for name in ("tolist", "__array__", "__reduce_ex__", "__deepcopy__"):
        patches.set(Tensor, name, _reading(getattr(Tensor, name)))
    patches.set(Tensor, "numpy", _array(Tensor.numpy))
    patches.set(Tensor, "is_pinned", lambda self, device=None: pinned.is_pinned(self))
    patches.set(Tensor, "pin_memory", lambda self, device=None: pinned.pin(self))


def _reading(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that reads the whole memory of a tensor without an operator, which tells that it does."""

    @functools.wraps(method)
    def call(self: Tensor, *arguments: Any, **keywords: Any) -> Any:
        if pinned_memory.pending and self.is_cpu and self.layout is torch.strided:
            pinned_memory.host_uses(self, False, sys._getframe(1))
        return method(self, *arguments, **keywords)

    return call


def _array(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``numpy``, whose arrays over pinned memory tell when they are used."""

    @functools.wraps(method)
    def call(self: Tensor, *arguments: Any, **keywords: Any) -> Any:
        array = method(self, *arguments, **keywords)
        if reports.is_listening() and pinned.is_pinned(self):
            return host_arrays.watch(array)
        return array

    return call


@functools.cache
def _marking(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Return `factory` with support for ``pin_memory=True``: its result is marked as pinned.

    The replacement lives as long as the process: TorchScript, which is told that it is the builtin, knows it by its
    address.
    """
    import torch.jit._builtins as builtins

    @functools.wraps(factory)
    def create(*arguments: Any, **keywords: Any) -> Any:
        if "pin_memory" in keywords and keywords.pop("pin_memory"):
            return pinned.mark(factory(*arguments, **keywords))
        return factory(*arguments, **keywords)

    schema = builtins._find_builtin(factory)
    if schema is not None:
        builtins._register_builtin(create, schema)
    return create


def _install_storages(patches: Patches) -> None:
    storage_type = torch.UntypedStorage
    new, resize, nbytes = storage_type.__new__, storage_type.resize_, storage_type.nbytes

    def create(cls: Any, *arguments: Any, **keywords: Any) -> Any:
        device = keywords.get("device")
        if device is None or torch.device(device).type != "cuda":
            return new(cls, *arguments, **keywords)
        size = arguments[0] if arguments else 0
        return _device_storage(size if isinstance(size, int) else len(size), torch.device(device))

    def copy_(self: Any, source: Any, non_blocking: bool | None = None) -> Any:
        _bytes(self).copy_(_bytes(source), non_blocking=bool(non_blocking))
        return self

    def to_cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
        if self.is_cuda:
            return self
        target = _device_storage(self.nbytes(), torch.device("cuda", device_index(device)))
        return copy_(target, self, non_blocking)

    def resize_(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return resize(self, size)
        # Memory shared through DLPack keeps its size. Sharded training frees a storage and grows it again: the memory
        # stays where it is, and the device's statistics change as on a GPU.
        if size > nbytes(self):
            raise NotImplementedError("the simulated device cannot grow a storage in place: allocate a new tensor")
        address = self.data_ptr()
        if memory.is_shrunk(address):
            if size:
                memory.grow(address, size, self.device.index)
        elif not size:
            memory.shrink(address)
        return self

    def current_size(self: Any) -> Any:
        return 0 if self.is_cuda and memory.is_shrunk(self.data_ptr()) else nbytes(self)

    def is_pinned(self: Any, device: Any = "cuda") -> bool:
        return self.device.type == "cpu" and pinned.is_pinned(_bytes(self))

    for name in ("_share_fd_cpu_", "_share_filename_cpu_", "_write_file"):
        patches.set(storage_type, name, _reading_storage(getattr(storage_type, name)))
    for name, function in {
        "__new__": staticmethod(create),
        "copy_": copy_,
        "cuda": to_cuda,
        "resize_": resize_,
        "nbytes": current_size,
        "size": current_size,
        "is_pinned": is_pinned,
        "_share_cuda_": _refuse_sharing,
        "_new_shared_cuda": _refuse_sharing,
    }.items():
        patches.set(storage_type, name, function)


def _reading_storage(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a storage that hands its memory to another process or a file, which tells that it does."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if pinned_memory.pending and self.device.type == "cpu":
            pinned_memory.host_uses(_bytes(self), False, sys._getframe(1))
        return method(self, *arguments, **keywords)

    return call


def _refuse_sharing(*_: Any, **__: Any) -> Any:
    raise NotImplementedError(
        "tensors of the simulated device cannot be sent to another process: send CPU tensors, or run on a GPU"
    )


def _device_storage(nbytes: int, device: torch.device) -> torch.UntypedStorage:
    return torch.empty(nbytes, dtype=torch.uint8, device=device).untyped_storage()


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


@functools.cache
def _legacy_type(name: str, dtype: torch.dtype) -> type:
    """Return a replacement of ``torch.cuda.FloatTensor`` and similar types: a constructor that works with isinstance
    and ``Tensor.type``.
    """

    class Legacy(type):
        is_cuda = True

        def __call__(cls, *arguments: Any, **_: Any) -> Tensor:
            if arguments and not isinstance(arguments[0], (int, torch.Size)):
                return torch.tensor(arguments[0], dtype=dtype).cuda()
            return torch.empty(*(arguments or (0,)), dtype=dtype, device="cuda")

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, Tensor) and instance.is_cuda and instance.dtype == dtype

    # Tensor.type reads the qualified name from the C type, where a Python class keeps only its own name.
    return Legacy(f"torch.cuda.{name}", (), {"dtype": dtype, "__module__": "torch.cuda"})


class _Defaults:
    """What the legacy default tensor type has changed."""

    new: Callable[..., Tensor] | None = None
    """The replaced constructor, while a type of the device is the default."""


def reset() -> None:
    """Make CPU tensors the default again, if a type of the device was."""
    if _Defaults.new is not None:
        torch.set_default_device(None)
        Tensor.__new__ = _Defaults.new  # type: ignore[method-assign,assignment]
        _Defaults.new = None


def _default_type(set_default: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return ``torch.set_default_tensor_type``, in which a type of the device means a default device and a default data
    type.
    """
    new = Tensor.__new__

    # torch's compiler compares this signature with its own version of the function, unless it takes anything.
    def create(*everything: Any, **keywords: Any) -> Tensor:
        # The legacy constructor uses the default type, but not the default device.
        cls, *arguments = everything
        made: Tensor
        if cls is not Tensor or keywords or (arguments and isinstance(arguments[0], (Tensor, torch.UntypedStorage))):
            made = new(cls, *arguments, **keywords)
            return made
        if all(isinstance(argument, (int, torch.Size)) for argument in arguments):
            return torch.empty(*(arguments or (0,)), device="cuda")
        made = new(cls, *arguments)
        return made.cuda()

    def set_default_tensor_type(kind: Any) -> None:
        module, _, name = (kind if isinstance(kind, str) else getattr(kind, "__name__", "")).rpartition(".")
        dtype = _LEGACY.get(name)
        if module == "torch.cuda" and dtype is not None and dtype.is_floating_point:
            _Defaults.new = new  # first: reset() restores what follows
            torch.set_default_dtype(dtype)
            torch.set_default_device("cuda")
            Tensor.__new__ = create  # type: ignore[assignment,method-assign]
            return
        reset()
        set_default(kind)

    return set_default_tensor_type
