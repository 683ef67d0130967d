"""The waits of cuDNN's autotuner: with ``torch.backends.cudnn.benchmark`` a convolution is timed when it is first met.

cuDNN then runs each plan it has for that convolution, up to a limit, and waits for it: once for the device before the
first plan, once for the device after each plan's trial run, once for an event after its timed run. What it has met is
remembered by thread, so that an operation that ran forward is timed again within a backward pass, which a GPU runs on a
thread of its own. A batch of another size is another convolution: the last, smaller batch of an epoch costs as much as
the first.

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

_met: set[tuple[Any, ...]] = set()


def reset() -> None:
    """Forget every convolution."""
    _met.clear()


def announcers(plans: int) -> dict[str, Callable[[Sequence[Any], Mapping[str, Any]], None]]:
    """What announces the waits of one call, by operator, where cuDNN has `plans` plans to try for a convolution."""

    def forward(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        if not torch._C._get_cudnn_benchmark():
            return
        x, weight, _, stride, padding, dilation, transposed, output_padding, groups = arguments
        options = (tuple(stride), tuple(padding), tuple(dilation), groups)
        if not _tuned(x, groups, transposed):
            return
        if transposed:
            _time("data", _unfolded(x.shape, weight.shape, output_padding, *options), weight, options, plans)
        else:
            _time("forward", tuple(x.shape), weight, options, plans)

    def backward(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        if not torch._C._get_cudnn_benchmark():
            return
        grad, x, weight, _, stride, padding, dilation, transposed, _, groups, wanted = arguments
        options = (tuple(stride), tuple(padding), tuple(dilation), groups)
        if not _tuned(x, groups, transposed):
            return
        # A transposed convolution is the gradient of a convolution from the shape of its output.
        shape = tuple(grad.shape if transposed else x.shape)
        if wanted[0]:
            _time("forward" if transposed else "data", shape, weight, options, plans)
        if wanted[1]:
            _time("filter", shape, weight, options, plans)

    return {"aten::convolution": forward, "aten::convolution_backward": backward}


def _tuned(x: torch.Tensor, groups: int, transposed: bool) -> bool:
    depthwise = groups > 1 and groups == x.shape[1] and not transposed
    enabled = torch._C._get_cudnn_enabled() and not conditions.capturing
    return enabled and x.is_floating_point() and bool(x.numel()) and not depthwise


def _unfolded(
    shape: Sequence[int],
    kernel: Sequence[int],
    output_padding: Sequence[int],
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    groups: int,
) -> Shape:
    """The shape of the result of a transposed convolution."""
    lengths = (
        (shape[axis + 2] - 1) * stride[axis]
        - 2 * padding[axis]
        + dilation[axis] * (kernel[axis + 2] - 1)
        + output_padding[axis]
        + 1
        for axis in range(len(shape) - 2)
    )
    return (shape[0], kernel[1] * groups, *lengths)


def _time(operation: str, shape: Shape, weight: torch.Tensor, options: tuple[Any, ...], plans: int) -> None:
    """Announce the waits of one operation, unless this thread has met it.

    `shape` is that of the side from which the convolution goes.
    """
    thread = None if in_backward() else threading.get_ident()
    key = (thread, current_device(), operation, shape, tuple(weight.shape), weight.dtype, options)
    if key in _met:
        return
    _met.add(key)
    # None on a CPU build, as long as the program sets none; 0 for all of them.
    limit: int | None = torch.backends.cudnn.benchmark_limit
    tried = min(plans, limit) if limit else plans
    sync_events.sync("device", 1 + tried, device=current_device())
    sync_events.sync("event", tried, device=current_device())
