"""Sparse tensors of the device: COO, and the compressed layouts (CSR, CSC, BSR, BSC).

A sparse tensor contains dense ones, its indices and its values. Those of a simulated sparse tensor are simulated
tensors; :func:`to_host` and :func:`to_device` relabel them and build the sparse tensor again. The kernels run the CPU's
on sparse CPU tensors. If one writes to a sparse tensor, that tensor takes over the parts of the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._C import DispatchKey, DispatchKeySet

from pytest_gpusync.simulated.base.state import current_device, ensure_usable, process
from pytest_gpusync.simulated.kernels import calibration
from pytest_gpusync.simulated.kernels.cpu_backed import Schema, finisher
from pytest_gpusync.simulated.tensors import unknown_values
from pytest_gpusync.simulated.tensors.labels import as_cpu, as_cuda, other_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

Tensor = torch.Tensor
aten = torch.ops.aten

_HOST_KEYS = {
    "SparseCUDA": DispatchKeySet(DispatchKey.SparseCPU),
    "SparseCsrCUDA": DispatchKeySet(DispatchKey.SparseCsrCPU),
}
_ON_LABELED = frozenset(
    f"aten::{name}"
    for name in (
        "_coalesced_",
        "_dimI",
        "_dimV",
        "_indices",
        "_nnz",
        "_sparse_coo_tensor_with_dims",
        "_sparse_coo_tensor_with_dims_and_tensors",
        "_values",
        "ccol_indices",
        "col_indices",
        "crow_indices",
        "dense_dim",
        "empty.memory_format",
        "indices",
        "is_coalesced",
        "row_indices",
        "sparse_dim",
        "sparse_resize_",
        "sparse_resize_and_clear_",
        "values",
    )
)
"""Operators that read the parts or assemble them: the CPU's code does this for any device."""
_PARTS = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def to_host(x: Tensor) -> Tensor:
    """Return a sparse CPU tensor over the memory of `x`, a simulated sparse tensor."""
    if not process.values:
        unknown_values.refuse("an operator on sparse tensors")
    return _rebuilt(x, as_cpu, "cpu")


def to_device(x: Tensor, index: int) -> Tensor:
    """Return a sparse tensor of ``cuda:index`` over the memory of `x`, a sparse CPU tensor."""
    return _rebuilt(x, lambda part: as_cuda(part, index), f"cuda:{index}")


def _rebuilt(x: Tensor, relabel: Callable[[Tensor], Tensor], device: str) -> Tensor:
    where = torch.device(device)
    if x.layout is torch.sparse_coo:
        result: Tensor = aten._sparse_coo_tensor_with_dims_and_tensors.default.redispatch(
            _HOST_KEYS["SparseCUDA"],
            x.sparse_dim(),
            x.dense_dim(),
            list(x.shape),
            relabel(x._indices()),
            relabel(x._values()),
            dtype=x.dtype,
            layout=x.layout,
            device=where,
            is_coalesced=x.is_coalesced(),
        )
        return result
    compressed, plain = (relabel(getattr(x, name)()) for name in _PARTS[x.layout])
    rebuilt: Tensor = aten._sparse_compressed_tensor_unsafe.default(
        compressed, plain, relabel(x.values()), list(x.shape), dtype=x.dtype, layout=x.layout, device=where
    )
    return rebuilt


other_tensors.to_host, other_tensors.to_device = to_host, to_device


def kernel_for(op: Any, key: str) -> Callable[..., Any]:
    """Return the kernel of the operator overload `op` for `key`, a sparse CUDA dispatch key."""
    schema = Schema(op)
    if schema.name in _ON_LABELED:
        return _kernel_on_parts(op, key)
    announce = calibration.announcer(f"sparse {schema.name}") or calibration.announcer(schema.name)
    finish = finisher(schema)

    def kernel(*arguments: Any, **keywords: Any) -> Any:
        if process.blocked:
            ensure_usable()
        if announce is not None:
            announce(arguments, keywords)
        relabeled: list[tuple[Tensor, Tensor]] = []
        call = [_on_host(value, relabeled) for value in arguments]
        named = {name: _on_host(value, relabeled) for name, value in keywords.items()}
        result = op(*call, **named)
        index = next((original.get_device() for original, _ in relabeled), current_device())
        if schema.writes:
            for original, host in relabeled:
                if original.layout is not torch.strided and any(original is value for value in _written(arguments)):
                    original.data = to_device(host, index)
        return finish(result, arguments, keywords, index)

    def _written(arguments: Any) -> list[Any]:
        return [arguments[position] for position in schema.written if position < len(arguments)]

    return kernel


def _kernel_on_parts(op: Any, key: str) -> Callable[..., Any]:
    keys = _HOST_KEYS[key]

    def kernel(*arguments: Any, **keywords: Any) -> Any:
        if process.blocked:
            ensure_usable()
        return op.redispatch(keys, *arguments, **keywords)

    return kernel


def _on_host(value: Any, relabeled: list[tuple[Tensor, Tensor]]) -> Any:
    """Return `value` with its simulated tensors relabeled, each recorded with its original; a cuda device becomes the
    CPU.
    """
    if isinstance(value, Tensor):
        if not value.is_cuda:
            return value
        host = as_cpu(value)
        relabeled.append((value, host))
        return host
    if isinstance(value, (list, tuple)):
        return [_on_host(each, relabeled) for each in value]
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return value
