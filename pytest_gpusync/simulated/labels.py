"""Relabels tensors between ``cpu`` and ``cuda:N`` without copying.

A tensor of the simulated device is an ordinary :class:`torch.Tensor` whose storage is host memory and whose device
says ``cuda``. It is made through DLPack: the capsule that describes a tensor names its device in one 8-byte field,
which is overwritten before torch reads the capsule back. Both tensors share the memory, and the new one keeps the
old one's storage alive. About one microsecond each way.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch._C import _from_dlpack, _to_dlpack

from . import memory

_DEVICE_OFFSET = 8
"""Offset of ``DLTensor.device`` ({int32 type, int32 index}): it follows the data pointer."""
_DL_CPU, _DL_CUDA = 1, 2
_strided = torch.strided
_address_of_capsule = ctypes.pythonapi.PyCapsule_GetPointer
_address_of_capsule.restype = ctypes.c_void_p
_address_of_capsule.argtypes = [ctypes.py_object, ctypes.c_char_p]
_field_at = ctypes.c_int64.from_address


def as_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the memory of `tensor`, a simulated tensor, with its strides and conjugate and negative
    bits.
    """
    if tensor.layout is not _strided:
        refuse_layout(tensor)
    capsule = _to_dlpack(tensor)
    _field_at(_address_of_capsule(capsule, b"dltensor") + _DEVICE_OFFSET).value = _DL_CPU
    result: torch.Tensor = _from_dlpack(capsule)
    if tensor.is_conj():
        result = torch._conj(result)
    if tensor.is_neg():
        result = torch._neg_view(result)
    return result


def as_cuda(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """A tensor of device ``cuda:index`` over the memory of `tensor`, a CPU tensor."""
    if tensor.layout is not _strided:
        refuse_layout(tensor)
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    capsule = _to_dlpack(tensor)
    _field_at(_address_of_capsule(capsule, b"dltensor") + _DEVICE_OFFSET).value = _DL_CUDA | index << 32
    result: torch.Tensor = _from_dlpack(capsule)
    memory.note(result, index)
    return result


def refuse_layout(value: Any) -> None:
    """Raise for a tensor that has no plain memory to share."""
    raise NotImplementedError(
        f"the simulated device does not simulate {value.layout} tensors: use dense tensors, or run on a GPU"
    )
