"""``torch.distributed`` on simulated devices with one process, and the copies of ``DataParallel`` between devices.

NCCL needs a driver, and gloo a CUDA build for cuda tensors. With one process a collective has nobody to talk to: it
copies. More processes are refused.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .patches import Patches

Tensor = torch.Tensor
_BACKEND = "simulated_cuda"


def install(patches: Patches) -> None:
    """Replace everything; `patches` puts it back."""
    for name, function in {
        "_scatter": _scatter,
        "_gather": _gather,
        "_broadcast": _broadcast,
        "_broadcast_coalesced": _broadcast_coalesced,
    }.items():
        patches.set(torch._C, name, function)
    if torch.distributed.is_available():
        _install_process_group(patches)


def _device(index: int) -> torch.device:
    return torch.device("cuda", index)


def _scatter(
    tensor: Tensor, devices: Sequence[int], chunk_sizes: Sequence[int] | None, dim: int, streams: Any = None
) -> list[Tensor]:
    chunks = tensor.split(list(chunk_sizes), dim) if chunk_sizes else tensor.chunk(len(devices), dim)
    return [chunk.to(_device(index), non_blocking=True) for chunk, index in zip(chunks, devices, strict=False)]


def _gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
    target = _device(destination) if destination is not None and destination >= 0 else torch.device("cpu")
    return torch.cat([tensor.to(target) for tensor in tensors], dim)


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    return [tensor.to(_device(index), non_blocking=True) for index in devices]


def _broadcast_coalesced(tensors: Sequence[Tensor], devices: Sequence[int], size: int) -> list[list[Tensor]]:
    return [[tensor.to(_device(index), non_blocking=True) for tensor in tensors] for index in devices]


def _install_process_group(patches: Patches) -> None:
    import torch.distributed.distributed_c10d as c10d

    dist: Any = torch.distributed
    initialize = c10d.init_process_group

    def init_process_group(backend: Any = None, *arguments: Any, **keywords: Any) -> Any:
        size = keywords.get("world_size", -1)
        if size is None or size < 1:
            size = int(os.environ.get("WORLD_SIZE", "1"))
        wanted = str(backend or "nccl")
        if "nccl" not in wanted and "gloo" not in wanted:
            return initialize(backend, *arguments, **keywords)
        if size > 1:
            raise NotImplementedError(
                f"the simulated device runs torch.distributed with one process, not {size}: "
                "run on GPUs, or without the simulated device"
            )
        store = keywords.get("store") or dist.HashStore()
        return initialize(_BACKEND, store=store, rank=0, world_size=1)

    if _BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(_BACKEND, _create_group, devices=["cpu", "cuda"])
    patches.set(c10d, "init_process_group", init_process_group)
    patches.set(dist, "init_process_group", init_process_group)
    patches.set(dist, "is_nccl_available", lambda: True)
    patches.set(c10d, "is_nccl_available", lambda: True)

    class Logger(dist.Logger):  # type: ignore[misc]
        """The reducer's timer of a CUDA device, which a CPU build lacks, is what these statistics read."""

        def set_runtime_stats_and_log(self) -> None:
            """Nothing to log."""

    patches.set(dist, "Logger", Logger)
    if hasattr(torch._C, "_CudaDeviceProperties") and "prepare_for_forward" in vars(dist.Reducer):
        # On a CUDA build it starts that timer, which asks the driver for events.
        patches.set(dist.Reducer, "prepare_for_forward", lambda self: None)


def _create_group(store: Any, rank: int, size: int, timeout: Any) -> Any:
    from ._process_group import SingleProcessGroup

    return SingleProcessGroup(rank, size)
