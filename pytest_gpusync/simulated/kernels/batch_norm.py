"""The parts of batch normalization over several processes, which torch has only as CUDA operators.

They run on CPU tensors, inside a CUDA kernel. As there, statistics of half-precision inputs are kept in single
precision. Channels are dimension 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

Tensor = torch.Tensor
_HALVES = (torch.float16, torch.bfloat16)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in _HALVES else x


def _all_but_channels(x: Tensor) -> list[int]:
    """Return every dimension except the channels."""
    return [dim for dim in range(x.dim()) if dim != 1]


def _by_channel(x: Tensor, values: Tensor) -> Tensor:
    """Return `values`, one for each channel, in a shape that fits `x`."""
    return values.view(1, -1, *(1,) * (x.dim() - 2))


def stats(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return mean and reciprocal standard deviation of each channel."""
    variance, mean = torch.var_mean(_wide(x), _all_but_channels(x), correction=0)
    return mean, (variance + epsilon).rsqrt()


def elemt(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    """Return the normalized input."""
    result = (_wide(x) - _by_channel(x, mean)) * _by_channel(x, scale)
    if weight is not None:
        result = result * _by_channel(x, weight)
    if bias is not None:
        result = result + _by_channel(x, bias)
    return result.to(x.dtype)


def gather_stats_with_counts(
    x: Tensor,
    mean: Tensor,
    scale: Tensor,
    running_mean: Tensor | None,
    running_variance: Tensor | None,
    momentum: float,
    epsilon: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return mean and reciprocal standard deviation over all processes, from those of each (rows); updates the running
    ones.
    """
    weights = (counts / counts.sum()).to(mean.dtype).unsqueeze(1)
    total_mean = (weights * mean).sum(0)
    variance = (weights * (scale.pow(-2) - epsilon + (mean - total_mean).pow(2))).sum(0)
    number = counts.sum()
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(momentum * total_mean)
    if running_variance is not None:
        running_variance.mul_(1 - momentum).add_(momentum * (variance * (number / (number - 1))))
    return total_mean, (variance + epsilon).rsqrt()


def backward_reduce(
    grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, *wanted: bool
) -> tuple[Tensor | None, ...]:
    """Return, by channel: sum of the gradient, sum of its product with the centered input, gradients of weight and
    bias.
    """
    wide = _wide(grad)
    sum_grad = wide.sum(_all_but_channels(grad))
    sum_product = (wide * (_wide(x) - _by_channel(x, mean))).sum(_all_but_channels(grad))
    wants_input, wants_weight, wants_bias = wanted
    dtype = sum_grad.dtype if weight is None else weight.dtype
    return (
        sum_grad if wants_input else None,
        sum_product if wants_input else None,
        (sum_product * scale).to(dtype) if wants_weight else None,
        sum_grad.to(dtype) if wants_bias else None,
    )


def backward_elemt(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    sum_grad: Tensor,
    sum_product: Tensor,
    counts: Tensor,
) -> Tensor:
    """Return the gradient of the input, from the sums over all processes."""
    number = counts.sum()
    centered = _wide(x) - _by_channel(x, mean)
    result = _wide(grad) - _by_channel(x, sum_grad / number)
    result = result - centered * _by_channel(x, scale.pow(2) * sum_product / number)
    factor = scale if weight is None else scale * weight
    return (result * _by_channel(x, factor)).to(x.dtype)


def replacements() -> dict[str, Callable[..., Any]]:
    """Return CPU functions by the name of the operator they replace."""
    return {
        "aten::batch_norm_stats": stats,
        "aten::batch_norm_elemt": elemt,
        "aten::batch_norm_gather_stats_with_counts": gather_stats_with_counts,
        "aten::batch_norm_backward_reduce": backward_reduce,
        "aten::batch_norm_backward_elemt": backward_elemt,
    }
