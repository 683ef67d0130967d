"""Strided nested tensors of the device.

A nested tensor is a buffer and, on the host, the sizes of its parts. Except for a few kernels, torch's code for it is
the same for a CPU and a GPU: it calls other operators on the buffer or on the parts. So the CPU's code runs on the
nested tensor itself; what it calls, and what makes the host wait there, is the same as on a GPU. The remaining kernels
are the CPU's, on relabeled tensors; a GPU's do not wait either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch._C import DispatchKey, DispatchKeySet

from pytest_gpusync.simulated.base.state import ensure_usable, process
from pytest_gpusync.simulated.kernels import sparse
from pytest_gpusync.simulated.kernels.cpu_backed import CPU_KEYS, Schema
from pytest_gpusync.simulated.tensors.labels import as_cpu, as_cuda, other_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Tensor = torch.Tensor
aten = torch.ops.aten
_HOST_KEYS: Final = DispatchKeySet(DispatchKey.NestedTensorCPU)
ONLY_ON_HOST: Final = frozenset({"aten::sum.dim_IntList", "aten::_nested_sum_backward", "aten::_pin_memory"})
"""Operators on nested tensors that do not exist for a GPU."""
MAKERS: Final = (
    "_nested_tensor_from_mask",
    "_nested_tensor_from_mask_left_aligned",
    "_nested_view_from_buffer",
)
"""Operators within ``aten`` that make nested tensors from dense ones."""
_DIFFERENT_ON_CPU: Final = frozenset(
    {
        "aten::_native_multi_head_attention",
        "aten::_nested_tensor_softmax_with_shape",
        "aten::_transform_bias_rescale_qkv",
        "aten::bmm",
        "aten::native_layer_norm",
        "aten::native_layer_norm_backward",
        "aten::to_padded_tensor",
    }
)
"""Operators that a GPU computes in another way than the CPU."""


def to_host(x: Tensor) -> Tensor:
    """Return a nested CPU tensor over the memory of `x`, a simulated nested tensor."""
    return _rebuilt(x, as_cpu(aten.values.default.redispatch(_HOST_KEYS, x)))


def to_device(x: Tensor, index: int) -> Tensor:
    """Return a nested tensor of ``cuda:index`` over the memory of `x`, a nested CPU tensor."""
    return _rebuilt(x, as_cuda(aten.values.default(x), index))


def _rebuilt(x: Tensor, buffer: Tensor) -> Tensor:
    parts = (x._nested_tensor_size(), x._nested_tensor_strides(), x._nested_tensor_storage_offsets())
    result: Tensor = aten._nested_view_from_buffer.default.redispatch(CPU_KEYS, buffer, *parts)
    return result


other_tensors.nested_to_host, other_tensors.nested_to_device = to_host, to_device


def kernel_for(op: Any) -> Callable[..., Any]:
    """Return the kernel of the operator overload `op` for nested tensors."""
    schema = Schema(op)
    if schema.name in _DIFFERENT_ON_CPU:
        return sparse.kernel_for(op, "NestedTensorCUDA")
    return _kernel_on_labeled(op, _HOST_KEYS, schema.tensors)


def maker_for(op: Any) -> Callable[..., Any]:
    """Return the kernel of an operator of :data:`MAKERS`."""
    return _kernel_on_labeled(op, CPU_KEYS, ())


def _kernel_on_labeled(op: Any, keys: DispatchKeySet, tensors: Sequence[int]) -> Callable[..., Any]:
    def kernel(*arguments: Any, **keywords: Any) -> Any:
        if process.blocked:
            ensure_usable()
        call = list(arguments)
        for place in tensors:
            if place < len(call) and isinstance(call[place], (bool, int, float, complex)):
                call[place] = _number(call[place])
        return op.redispatch(keys, *call, **keywords)

    return kernel


def _number(value: complex) -> Tensor:
    """Return a Python number as the tensor required by the schema."""
    dtype = torch.get_default_dtype() if isinstance(value, float) else None
    return torch.scalar_tensor(value, dtype=dtype or torch.as_tensor(value).dtype, device="cpu")
