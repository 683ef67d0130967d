"""``torch.distributed`` on simulated devices, and the copies of ``DataParallel`` between devices.

NCCL needs a driver, and gloo needs a CUDA build for cuda tensors. A single process has nobody to communicate with, so
its collectives copy. Several processes, each with simulated devices of its own, communicate through gloo.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from pytest_gpusync.simulated.base.state import process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.simulated.base.patches import Patches

Tensor = torch.Tensor
_BACKENDS = {"nccl": "simulated_nccl", "gloo": "simulated_gloo"}
"""Replacements of the communication libraries."""


def install(patches: Patches) -> None:
    """Replace everything; `patches` restores it."""
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
    initialize, create = c10d.init_process_group, c10d.new_group

    def init_process_group(backend: Any = None, *arguments: Any, **keywords: Any) -> Any:
        stand_in = _stand_in(backend)
        if stand_in is None:
            return initialize(backend, *arguments, **keywords)
        keywords.pop("device_id", None)
        keywords.pop("pg_options", None)
        size = keywords.get("world_size", -1)
        if size is None or size < 1:
            size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            # No other process: the address that the program gives for meeting them need not be reachable.
            store = keywords.get("store") or dist.HashStore()
            return initialize(stand_in, store=store, rank=0, world_size=1)
        return initialize(stand_in, *arguments, **keywords)

    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *_: Any, **keywords: Any) -> Any:
        keywords.pop("device_id", None)
        keywords.pop("pg_options", None)
        return create(ranks, timeout, None if backend is None else _stand_in(backend) or backend, **keywords)

    def get_backend(group: Any = None) -> Any:
        name = name_of(group)
        return next((library for library, stand_in in _BACKENDS.items() if stand_in == name), name)

    def device_of_objects(group: Any = None) -> str:
        return {_BACKENDS["nccl"]: "cuda", _BACKENDS["gloo"]: "cpu"}.get(name_of(group)) or objects(group)

    name_of, objects = c10d.get_backend, c10d._get_object_coll_device
    for stand_in in _BACKENDS.values():
        if stand_in not in dist.Backend.backend_list:
            dist.Backend.register_backend(stand_in, _create_group, devices=["cpu", "cuda"])
    patches.set(c10d, "_get_object_coll_device", device_of_objects)
    for name, function in {
        "init_process_group": init_process_group,
        "new_group": new_group,
        "get_backend": get_backend,
        "is_nccl_available": lambda: True,
    }.items():
        patches.set(c10d, name, function)
        patches.set(dist, name, function)

    class Logger(dist.Logger):  # type: ignore[misc]
        """Reads no statistics: they come from the reducer's timer of a CUDA device, which a CPU build lacks."""

        def set_runtime_stats_and_log(self) -> None:
            """Do nothing."""

    patches.set(dist, "Logger", Logger)
    if hasattr(torch._C, "_CudaDeviceProperties") and "prepare_for_forward" in vars(dist.Reducer):
        # On a CUDA build it starts that timer, which requests events from the driver.
        patches.set(dist.Reducer, "prepare_for_forward", lambda self: None)


def _stand_in(backend: Any) -> str | None:
    """Return the replacement of the requested library; None if it needs none."""
    wanted = str(backend or "nccl").lower()
    return next((stand_in for library, stand_in in _BACKENDS.items() if library in wanted), None)


def _create_group(store: Any, rank: int, size: int, timeout: Any) -> Any:
    if size > 1:
        if not process.values:
            raise NotImplementedError(
                "several processes need values, and this simulated device computes none: run with values"
            )
        from pytest_gpusync.simulated.torch_api._gloo_group import GlooProcessGroup

        return GlooProcessGroup(store, rank, size, timeout)
    from pytest_gpusync.simulated.torch_api._process_group import SingleProcessGroup

    return SingleProcessGroup(rank, size)
