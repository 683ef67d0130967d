"""Provides torchvision's operators if its own library does not load.

Package indexes easily give a CUDA build of torchvision with a CPU build of torch. Its library then does not load, so
its operators do not exist, and ``import torchvision`` fails. While the device is on, they are defined here instead, at
the moment the library fails to load; a torchvision that loads is left alone. The box operators are computed; the others
raise an error that names them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

Tensor = torch.Tensor

_POOL = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SAMPLED = f"{_POOL}, int sampling_ratio"
_SCALES = "float input_scale, int input_zero_point, float rois_scale, int rois_zero_point"
_SHAPE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_CONV = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, "
    "SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, "
    "bool use_mask"
)
_SERVED = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, Tensor rois, {_SAMPLED}, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, {_POOL}, {_SHAPE}, int sampling_ratio, bool aligned) -> Tensor",
)
_REFUSED = (
    f"roi_pool(Tensor input, Tensor rois, {_POOL}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, {_POOL}, {_SHAPE}) -> Tensor",
    f"ps_roi_align(Tensor input, Tensor rois, {_SAMPLED}) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_SAMPLED}, {_SHAPE}) -> Tensor",
    f"ps_roi_pool(Tensor input, Tensor rois, {_POOL}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_POOL}, {_SHAPE}) -> Tensor",
    f"deform_conv2d({_CONV}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_CONV}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "box_iou_rotated(Tensor boxes1, Tensor boxes2) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"qroi_align(Tensor input, Tensor rois, {_SCALES}, {_SAMPLED}, bool aligned) -> Tensor",
)
"""The schemas of torchvision 0.26 to 0.29, as ``torch.ops.torchvision`` shows them when the library loads."""

_libraries: list[torch.library.Library] = []


def stand_in(path: Any) -> bool:
    """Define the operators if `path`, a library that did not load, is torchvision's; return whether it is."""
    file = Path(path)
    if file.parent.name != "torchvision" or not file.name.startswith("_C"):
        return False
    if _libraries:
        return True
    if hasattr(torch.ops.torchvision, "nms"):
        # torchvision or the program has defined the operators already: they stay.
        return False
    library = torch.library.Library("torchvision", "DEF")
    _libraries.append(library)
    for schema in (*_SERVED, *_REFUSED):
        library.define(schema)
    library.define("_cuda_version() -> int")
    library.impl("_cuda_version", lambda: -1, "CompositeImplicitAutograd")
    # The device's kernels of these are derived from the CPU's when they are first called.
    library.impl("nms", nms, "CPU")
    library.impl("roi_align", roi_align, "CPU")
    library.impl("_roi_align_backward", roi_align_backward, "CPU")
    for schema in _REFUSED:
        name = schema.partition("(")[0]
        for key in ("CPU", "CUDA"):
            library.impl(name, _refusal(name), key)
    if importlib.util.find_spec("torchvision._autograd_registrations") is None:
        # In older releases the gradients are part of the library too.
        torch.library.register_autograd("torchvision::roi_align", _gradient, setup_context=_keep, lib=library)
    return True


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"torchvision::{name} is not simulated, and this torchvision's own library does not load with "
            f"torch {torch.__version__}: install the torchvision that was built for it"
        )

    return refuse


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of the boxes (N, 4) that no kept box of higher score overlaps by more than the threshold, best
    first.
    """
    boxes = dets.float() if dets.dtype in (torch.float16, torch.bfloat16) else dets
    low, high = boxes[:, :2], boxes[:, 2:]
    area = (high - low).prod(1)
    left = scores.argsort(stable=True, descending=True)
    kept = []
    while left.numel():
        best, left = left[0], left[1:]
        kept.append(best)
        shared = (torch.minimum(high[best], high[left]) - torch.maximum(low[best], low[left])).clamp(min=0).prod(1)
        left = left[~(shared / (area[best] + area[left] - shared) > iou_threshold)]
    return torch.stack(kept) if kept else torch.empty(0, dtype=torch.int64)


def roi_align(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Average each region (K, 5: image, x1, y1, x2, y2) of `input` (N, C, H, W) into (K, C, height, width) bins."""
    options = (spatial_scale, sampling_ratio, aligned)
    size = input.shape[-2:]
    vertical, horizontal = _weights(rois, (pooled_height, pooled_width), size, *options)
    output = torch.empty(len(rois), input.shape[1], pooled_height, pooled_width, dtype=vertical.dtype)
    for image, chosen in _by_image(rois):
        plane = input[image].to(vertical.dtype)
        output[chosen] = torch.einsum("kpy,cyx,kqx->kcpq", vertical[chosen], plane, horizontal[chosen])
    return output.to(input.dtype)


def roi_align_backward(
    grad: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Return the gradient of the input of :func:`roi_align`."""
    options = (spatial_scale, sampling_ratio, aligned)
    vertical, horizontal = _weights(rois, (pooled_height, pooled_width), (height, width), *options)
    result = torch.zeros(batch_size, channels, height, width, dtype=vertical.dtype)
    for image, chosen in _by_image(rois):
        part = grad[chosen].to(vertical.dtype)
        result[image] = torch.einsum("kpy,kcpq,kqx->cyx", vertical[chosen], part, horizontal[chosen])
    return result.to(grad.dtype)


def _by_image(rois: Tensor) -> list[tuple[int, Tensor]]:
    """Return the images that have regions, each with the positions of its regions."""
    images = rois[:, 0].long()
    return [(image, (images == image).nonzero()[:, 0]) for image in images.unique().tolist()]


def _weights(
    rois: Tensor,
    bins: tuple[int, int],
    size: torch.Size | tuple[int, int],
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> tuple[Tensor, Tensor]:
    """Return the weight of each row, and of each column, in each bin: two tensors (K, bins, length).

    Sampling and averaging are separable, so a bin's value is a sum over rows and columns with these weights.
    """
    rois = rois.float() if rois.dtype in (torch.float16, torch.bfloat16) else rois
    edges = rois[:, 1:] * spatial_scale - (0.5 if aligned else 0.0)
    found = []
    for axis, low, high in ((0, 1, 3), (1, 0, 2)):
        start, length = edges[:, low, None, None], (edges[:, high] - edges[:, low])[:, None, None]
        if not aligned:
            length = length.clamp(min=1)
        found.append(_axis_weights(start, length / bins[axis], bins[axis], size[axis], sampling_ratio))
    return found[0], found[1]


def _axis_weights(start: Tensor, bin_length: Tensor, bins: int, length: int, sampling_ratio: int) -> Tensor:
    """Return the weights along one axis; `start` and `bin_length` have the shape (K, 1, 1)."""
    if sampling_ratio > 0:
        samples = torch.full_like(bin_length, sampling_ratio)
    else:
        samples = bin_length.ceil().clamp(min=0)
    steps = torch.arange(int(samples.max()) if samples.numel() else 0, dtype=start.dtype)
    at = start + torch.arange(bins, dtype=start.dtype)[:, None] * bin_length + (steps + 0.5) * bin_length / samples
    counts = (steps < samples) & (at >= -1) & (at <= length)
    share = counts / samples.clamp(min=1)
    # A region without samples has divided by zero: its share is zero anyway.
    at = at.nan_to_num().clamp(0, length - 1)
    before = at.floor()
    beyond = at - before
    weights = torch.zeros(len(start), bins, length, dtype=start.dtype)
    weights.scatter_add_(2, before.long(), (1 - beyond) * share)
    weights.scatter_add_(2, (before.long() + 1).clamp(max=length - 1), beyond * share)
    return weights


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.shape, ctx.options = inputs[0].shape, inputs[2:]


def _gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (rois,) = ctx.saved_tensors
    scale, height, width, ratio, aligned = ctx.options
    result = torch.ops.torchvision._roi_align_backward(grad, rois, scale, height, width, *ctx.shape, ratio, aligned)
    return result, None, None, None, None, None, None
