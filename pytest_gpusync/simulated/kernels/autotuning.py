"""The syncs of cuDNN's autotuner: with ``torch.backends.cudnn.benchmark`` a convolution is timed when it first occurs.

cuDNN then runs each plan it has for that convolution, up to a limit, and waits: for the device before the first plan,
for the device after each plan's trial run, and for an event after its timed run. Results are cached by thread, so an
operation that ran forward is timed again in a backward pass, which on a GPU runs on a thread of its own. A batch of
another size is another convolution: the smaller last batch of an epoch costs as much as the first.

Depthwise convolutions, most of which torch computes without cuDNN, are left out.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from pytest_gpusync.simulated.base import sync_events
from pytest_gpusync.simulated.base.state import current_device, in_backward
from pytest_gpusync.simulated.base.sync_events import conditions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Shape = tuple[int, ...]

_timed: set[tuple[Any, ...]] = set()


def reset() -> None:
    """Forget every convolution."""
    _timed.clear()


def announcers(plans: int) -> dict[str, Callable[[Sequence[Any], Mapping[str, Any]], None]]:
    """Return the functions that announce the syncs of a call, by operator, if cuDNN has `plans` plans to try."""

    def forward(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        if not torch._C._get_cudnn_benchmark():
            return
        x, weight, _, stride, padding, dilation, transposed, output_padding, groups = arguments[:9]
        options = (tuple(stride), tuple(padding), tuple(dilation), groups)
        if not _is_tuned(x, groups, transposed):
            return
        if transposed:
            _announce_timing(
                "data", _transposed_shape(x.shape, weight.shape, output_padding, *options), weight, options, plans
            )
        else:
            _announce_timing("forward", tuple(x.shape), weight, options, plans)

    def backward(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        if not torch._C._get_cudnn_benchmark():
            return
        grad, x, weight, _, stride, padding, dilation, transposed, _, groups, wanted = arguments
        options = (tuple(stride), tuple(padding), tuple(dilation), groups)
        if not _is_tuned(x, groups, transposed):
            return
        # A transposed convolution is the gradient of a convolution from the shape of its output.
        shape = tuple(grad.shape if transposed else x.shape)
        if wanted[0]:
            _announce_timing("forward" if transposed else "data", shape, weight, options, plans)
        if wanted[1]:
            _announce_timing("filter", shape, weight, options, plans)

    # A traced program calls _convolution, which has four more arguments.
    return {"aten::convolution": forward, "aten::_convolution": forward, "aten::convolution_backward": backward}


def _is_tuned(x: torch.Tensor, groups: int, transposed: bool) -> bool:
    depthwise = groups > 1 and groups == x.shape[1] and not transposed
    enabled = torch._C._get_cudnn_enabled() and not conditions.capturing
    return enabled and x.is_floating_point() and bool(x.numel()) and not depthwise


def _transposed_shape(
    shape: Sequence[int],
    kernel: Sequence[int],
    output_padding: Sequence[int],
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    groups: int,
) -> Shape:
    """Return the shape of the result of a transposed convolution."""
    lengths = (
        (shape[axis + 2] - 1) * stride[axis]
        - 2 * padding[axis]
        + dilation[axis] * (kernel[axis + 2] - 1)
        + output_padding[axis]
        + 1
        for axis in range(len(shape) - 2)
    )
    return (shape[0], kernel[1] * groups, *lengths)


def _announce_timing(operation: str, shape: Shape, weight: torch.Tensor, options: tuple[Any, ...], plans: int) -> None:
    """Announce the syncs of one operation, unless this thread has timed it before.

    `shape` is that of the convolution's input side.
    """
    thread = None if in_backward() else threading.get_ident()
    key = (thread, current_device(), operation, shape, tuple(weight.shape), weight.dtype, options)
    if key in _timed:
        return
    _timed.add(key)
    # None on a CPU build unless the program sets it; 0 means all of them.
    limit: int | None = torch.backends.cudnn.benchmark_limit
    tried = min(plans, limit) if limit else plans
    sync_events.announce("device", 1 + tried, device=current_device())
    sync_events.announce("event", tried, device=current_device())
