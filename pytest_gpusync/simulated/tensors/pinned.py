"""Tracks which CPU tensors are pinned: page-locked memory, which a GPU copies without making the host wait."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pytest_gpusync.simulated.races import host_operators, pinned_memory

_pinned: dict[int, StorageWeakRef] = {}
"""Pinned storages by address: an address alone may have been freed and reused by pageable memory."""


class _Sweeps:
    """When entries of memory that is gone are removed: each time that their number has doubled."""

    least = next = 128


def mark(tensor: torch.Tensor) -> torch.Tensor:
    """Mark the memory of `tensor`, a CPU tensor, as pinned; return the tensor."""
    if len(_pinned) >= _Sweeps.next:
        # Iterate over a copy: the pinning thread of a DataLoader may add entries meanwhile.
        for address, storage_reference in list(_pinned.items()):
            if storage_reference.expired():
                _pinned.pop(address, None)
        _Sweeps.next = max(_Sweeps.least, 2 * len(_pinned))
    storage = tensor.untyped_storage()
    _pinned[storage.data_ptr()] = StorageWeakRef(storage)
    host_operators.mark(tensor)
    pinned_memory.made(storage.data_ptr())
    return tensor


def is_pinned(tensor: torch.Tensor) -> bool:
    """Return whether `tensor` is in pinned memory."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not _pinned:
        return False
    known = _pinned.get(tensor.untyped_storage().data_ptr())
    return known is not None and not known.expired()


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Return a pinned copy of `tensor`, or `tensor` itself if it is pinned already."""
    if tensor.is_cuda:
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    if is_pinned(tensor):
        return tensor
    return mark(tensor.clone(memory_format=torch.preserve_format))
