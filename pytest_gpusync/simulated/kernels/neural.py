"""Neural network operators that torch computes on cuda with kernels that a CPU build lacks, written with CPU operators.

They run on CPU tensors inside a CUDA kernel, except :func:`scaled_dot_product_attention`, which runs above autograd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._C import DispatchKey, DispatchKeySet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

aten = torch.ops.aten
Tensor = torch.Tensor
_HALVES = (torch.float16, torch.bfloat16)
_CPU_KEYS = DispatchKeySet(DispatchKey.CPU)
_MATH, _FLASH = 0, 1
"""Results of ``_fused_sdp_choice``: plain operators, and the CPU's flash attention."""


def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cell: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The pointwise part of an LSTM cell: returns new hidden state, new cell state, and the activated gates as
    workspace.
    """
    gates = input_gates + hidden_gates
    if input_bias is not None and hidden_bias is not None:
        gates = gates + input_bias + hidden_bias
    entry, forget, candidate, output = gates.chunk(4, 1)
    entry, forget, candidate, output = entry.sigmoid(), forget.sigmoid(), candidate.tanh(), output.sigmoid()
    new_cell = forget * cell + entry * candidate
    return output * new_cell.tanh(), new_cell, torch.cat([entry, forget, candidate, output], 1)


def lstm_cell_backward(
    grad_hidden: Tensor | None,
    grad_cell: Tensor | None,
    cell: Tensor,
    new_cell: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of the gates, the cell state and the bias."""
    if grad_hidden is None and grad_cell is None:
        return None, None, None
    entry, forget, candidate, output = workspace.chunk(4, 1)
    squashed = new_cell.tanh()
    grad = torch.zeros_like(new_cell) if grad_cell is None else grad_cell
    grad_output = torch.zeros_like(new_cell)
    if grad_hidden is not None:
        grad = grad + grad_hidden * output * (1 - squashed * squashed)
        grad_output = grad_hidden * squashed
    gates = torch.cat(
        [
            grad * candidate * entry * (1 - entry),
            grad * cell * forget * (1 - forget),
            grad * entry * (1 - candidate * candidate),
            grad_output * output * (1 - output),
        ],
        1,
    )
    return gates, grad * forget, (gates.sum(0) if has_bias else None)


def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hidden: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The pointwise part of a GRU cell: returns the new hidden state and a workspace for the backward pass."""
    if input_bias is not None and hidden_bias is not None:
        input_gates, hidden_gates = input_gates + input_bias, hidden_gates + hidden_bias
    input_reset, input_update, input_new = input_gates.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = hidden_gates.chunk(3, 1)
    reset, update = (input_reset + hidden_reset).sigmoid(), (input_update + hidden_update).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    return new + update * (hidden - new), torch.cat([reset, update, new, hidden, hidden_new], 1)


def gru_cell_backward(
    grad: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of the input gates, the hidden gates, the hidden state and the two biases."""
    reset, update, new, hidden, hidden_new = workspace.chunk(5, 1)
    grad_update = grad * (hidden - new) * update * (1 - update)
    grad_new = grad * (1 - update) * (1 - new * new)
    grad_reset = grad_new * hidden_new * reset * (1 - reset)
    input_gates = torch.cat([grad_reset, grad_update, grad_new], 1)
    hidden_gates = torch.cat([grad_reset, grad_update, grad_new * reset], 1)
    biases = (input_gates.sum(0), hidden_gates.sum(0)) if has_bias else (None, None)
    return input_gates, hidden_gates, grad * update, *biases


def rms_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, epsilon: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return the normalized tensor and the reciprocal root mean square."""
    dims = tuple(range(-len(shape), 0))
    wide = x.float() if x.dtype in _HALVES else x
    if epsilon is None:
        epsilon = torch.finfo(wide.dtype).eps
    scale = torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + epsilon)
    result = wide * scale
    if weight is not None:
        result = result * weight
    return result.to(x.dtype), scale


def rms_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], scale: Tensor, weight: Tensor | None, wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the requested gradients of the input and the weight."""
    dims = tuple(range(-len(shape), 0))
    normal = (x.float() if x.dtype in _HALVES else x) * scale
    grad = grad.to(normal.dtype)
    weighted = grad if weight is None else grad * weight
    grad_x = scale * (weighted - normal * (weighted * normal).mean(dims, keepdim=True))
    grad_weight = None
    if weight is not None and wanted[1]:
        outer = tuple(range(x.dim() - len(shape)))
        product = grad * normal
        grad_weight = (product.sum(outer) if outer else product).to(weight.dtype)
    return (grad_x.to(x.dtype) if wanted[0] else None), grad_weight


def _softmax_pair(name: str) -> dict[str, Callable[..., Any]]:
    """Return softmax with ``half_to_float``, which exists only on cuda: half-precision input,
    single-precision result.
    """
    forward_op = getattr(aten, name).default
    backward_op = getattr(aten, name + "_backward_data").default

    def forward(x: Tensor, dim: int, half_to_float: bool) -> Any:
        return forward_op(x.float() if half_to_float else x, dim, False)

    def backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Any:
        return backward_op(grad, output, dim, grad.dtype).to(input_dtype)

    return {f"aten::{name}": forward, f"aten::{name}_backward_data": backward}


def _in_dtype(name: str) -> dict[str, Callable[..., Any]]:
    """Return products whose result has another type than the factors, which exist only on cuda."""
    multiply = getattr(torch, name)

    def product(*arguments: Any, **options: Any) -> Any:
        *factors, dtype = arguments
        return multiply(*(factor.to(dtype) for factor in factors), **options)

    return {f"aten::{name}.dtype": product, f"aten::{name}.dtype_out": product}


def replacements() -> dict[str, Callable[..., Any]]:
    """Return CPU functions by the name of the operator they replace."""
    return {
        "aten::_thnn_fused_lstm_cell": lstm_cell,
        "aten::_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
        "aten::_thnn_fused_gru_cell": gru_cell,
        "aten::_thnn_fused_gru_cell_backward": gru_cell_backward,
        "aten::_fused_rms_norm": rms_norm,
        "aten::_fused_rms_norm_backward": rms_norm_backward,
        **_in_dtype("mm"),
        **_in_dtype("bmm"),
        **_in_dtype("addmm"),
        **_in_dtype("baddbmm"),
        **_softmax_pair("_softmax"),
        **_softmax_pair("_log_softmax"),
    }


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention with the kernel that the CPU's dispatcher would choose, so that values are those of a CPU run."""
    try:
        choice = aten._fused_sdp_choice.default.redispatch(
            _CPU_KEYS, query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    except RuntimeError:
        # Only backends are enabled that a CPU does not have.
        choice = _MATH
    if choice == _FLASH and query.dim() == 3:
        # From torch 2.15 on, treated as one sequence with many heads.
        while attn_mask is not None and attn_mask.dim() < 4:
            attn_mask = attn_mask.unsqueeze(0)
        query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        result = scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return result.squeeze(0)
    if choice == _FLASH:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
                attn_mask.logical_not(), float("-inf")
            )
        outputs: tuple[Tensor, Tensor] = aten._scaled_dot_product_flash_attention_for_cpu.default(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )
        return outputs[0]
    outputs = aten._scaled_dot_product_attention_math.default(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )
    return outputs[0]


def flattening(flatten: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a replacement of ``nn.RNNBase.flatten_parameters``.

    On a GPU, cuDNN puts the weights into one block of memory, so a program that saves the module copies one storage,
    not one for each weight.
    """

    def flatten_parameters(self: Any) -> None:
        weights = self._flat_weights
        if len(weights) != len(self._flat_weights_names) or not all(
            isinstance(weight, torch.Tensor) and weight.is_cuda and weight.dtype == weights[0].dtype
            for weight in weights
        ):
            return flatten(self)
        if len({weight.data_ptr() for weight in weights}) != len(weights) or not torch.backends.cudnn.enabled:
            return None
        with torch.no_grad():
            whole = torch.empty(
                sum(weight.numel() for weight in weights), dtype=weights[0].dtype, device=weights[0].device
            )
            start = 0
            for weight in weights:
                part = whole[start : start + weight.numel()].view(weight.shape)
                weight.data = part.copy_(weight)
                start += weight.numel()
        return None

    return flatten_parameters
