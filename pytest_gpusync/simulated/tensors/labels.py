"""Relabels tensors between ``cpu`` and ``cuda:N`` without copying.

A tensor of the simulated device is an ordinary :class:`torch.Tensor` whose storage is host memory and whose device says
``cuda``. It is made through DLPack: the structure that describes a tensor has its device in one 8-byte field, which is
overwritten before torch reads the structure back. Both tensors share the memory, and the new one keeps the old one's
storage alive. It takes less than a microsecond in each direction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._C import _from_dlpack, _to_dlpack

from pytest_gpusync.simulated.abi.lifetimes import POINTER_IN_CAPSULE
from pytest_gpusync.simulated.base.native import cells
from pytest_gpusync.simulated.base.state import process
from pytest_gpusync.simulated.tensors import memory, unknown_values

if TYPE_CHECKING:
    from collections.abc import Callable

_DEVICE = 1
"""The cell of ``DLTensor`` with its device ({int32 type, int32 index}); it follows the data pointer."""
_DL_CPU, _DL_CUDA = 1, 2
_strided = torch.strided
_nbytes = torch.UntypedStorage.nbytes


def _not_simulated(what: str) -> NotImplementedError:
    return NotImplementedError(
        f"the simulated device does not simulate {what} tensors: use dense tensors, or run on a GPU"
    )


def _refuse(tensor: torch.Tensor, *_: Any) -> Any:
    raise _not_simulated(str(tensor.layout))


class _OtherTensors:
    """Relabels sparse and nested tensors; set by the modules with their kernels."""

    to_host: Callable[[torch.Tensor], torch.Tensor] = staticmethod(_refuse)
    to_device: Callable[[torch.Tensor, int], torch.Tensor] = staticmethod(_refuse)
    nested_to_host: Callable[[torch.Tensor], torch.Tensor] = staticmethod(_refuse)
    nested_to_device: Callable[[torch.Tensor, int], torch.Tensor] = staticmethod(_refuse)


other_tensors = _OtherTensors()


def as_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor over the memory of `tensor`, a simulated tensor, with its strides and conjugate and negative
    bits; without values, a meta tensor.
    """
    if tensor.layout is not _strided:
        return other_tensors.to_host(tensor)
    if not process.values:
        return unknown_values.meta_of(tensor)
    try:
        capsule = _to_dlpack(tensor)
    except RuntimeError:
        if not tensor.is_nested:
            raise
        return other_tensors.nested_to_host(tensor)
    cells[(cells[(id(capsule) >> 3) + POINTER_IN_CAPSULE] >> 3) + _DEVICE] = _DL_CPU
    result: torch.Tensor = _from_dlpack(capsule)
    if tensor.is_conj():
        result = torch._conj(result)
    if tensor.is_neg():
        result = torch._neg_view(result)
    return result


def as_cuda(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """Return a tensor of device ``cuda:index`` over the memory of `tensor`, a CPU tensor.

    Raises:
        torch.OutOfMemoryError: the device has no room for it.
    """
    if tensor.layout is not _strided:
        return other_tensors.to_device(tensor, index)
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    try:
        capsule = _to_dlpack(tensor)
    except RuntimeError:
        if not tensor.is_nested:
            raise
        return other_tensors.nested_to_device(tensor, index)
    except BufferError:
        raise _not_simulated("quantized" if tensor.is_quantized else str(tensor.dtype)) from None
    address = cells[(id(capsule) >> 3) + POINTER_IN_CAPSULE]
    structure = address >> 3
    cells[structure + _DEVICE] = _DL_CUDA | index << 32
    learner = memory.lifetimes()
    learner.mark(address)
    died = learner.written()
    result: torch.Tensor = _from_dlpack(capsule)
    nbytes = result.nbytes if result.is_contiguous() else _nbytes(result.untyped_storage())
    if nbytes:
        key = learner.key(address, result)
        memory.record_birth(key, nbytes, index, died)
        if process.tracking:
            memory.tell_tracker(key, index, died)
    return result
