"""Remembers which CPU tensors are pinned: page-locked memory, which a GPU copies without making the host wait."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_SWEEP_AT = 4096

_pinned: dict[int, StorageWeakRef] = {}
"""The storage that was pinned, by address: an address alone may have been freed and given to pageable memory."""


def mark(tensor: torch.Tensor) -> torch.Tensor:
    """Remember the memory of `tensor`, a CPU tensor, as pinned; returns the tensor."""
    if len(_pinned) >= _SWEEP_AT:
        # A copy: the thread of a DataLoader that pins may add to it meanwhile.
        for address, storage_reference in list(_pinned.items()):
            if storage_reference.expired():
                _pinned.pop(address, None)
    storage = tensor.untyped_storage()
    _pinned[storage.data_ptr()] = StorageWeakRef(storage)
    return tensor


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether `tensor` lies in pinned memory."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not _pinned:
        return False
    known = _pinned.get(tensor.untyped_storage().data_ptr())
    return known is not None and not known.expired()


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """A pinned copy of `tensor`, or itself where it is pinned already."""
    if tensor.is_cuda:
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    if is_pinned(tensor):
        return tensor
    return mark(tensor.clone(memory_format=torch.preserve_format))
