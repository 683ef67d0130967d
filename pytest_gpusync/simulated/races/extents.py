"""Which bytes of memory a tensor or an array covers, and whether two of them share any."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

Layout = tuple[tuple[int, ...], tuple[int, ...], int]
"""Sizes, strides in bytes, and the bytes of an element, of memory with gaps."""

Extent = tuple[int, int, "Layout | None"]
"""The first address, the one after the last, and the layout; None for the layout of memory without gaps."""

_MAX_RUNS: Final = 1 << 22
"""Contiguous runs that are compared one by one; two tensors with more are taken not to overlap."""


def base_of(tensor: torch.Tensor) -> int:
    """Return the first address of the storage of a tensor."""
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()


def of_tensor(tensor: torch.Tensor) -> Extent:
    """Return the extent of a tensor with at least one element."""
    start = tensor.data_ptr()
    if tensor.is_contiguous():
        return start, start + tensor.numel() * tensor.element_size(), None
    item = tensor.element_size()
    return of_strided(start, tensor.shape, [stride * item for stride in tensor.stride()], item)


def of_strided(start: int, sizes: Sequence[int], strides: Sequence[int], item: int) -> Extent:
    """Return the extent of memory with these sizes and strides in bytes; a stride may be negative."""
    dimensions = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size > 1 and stride]
    start += sum((size - 1) * stride for size, stride in dimensions if stride < 0)
    dimensions = sorted(((size, abs(stride)) for size, stride in dimensions), key=lambda pair: pair[1])
    run = item
    while dimensions and dimensions[0][1] <= run:
        # Neighbors, or overlapping: one longer run.
        size, stride = dimensions.pop(0)
        run += (size - 1) * stride
    end = start + run + sum((size - 1) * stride for size, stride in dimensions)
    if not dimensions:
        return start, end, None
    outer = list(reversed(dimensions))
    return start, end, (tuple(size for size, _ in outer), tuple(stride for _, stride in outer), run)


def overlap(one: Extent, other: Extent) -> bool:
    """Return whether two extents share a byte."""
    if one[0] >= other[1] or other[0] >= one[1]:
        return False
    if one[2] is None and other[2] is None:
        return True
    runs, others = _runs(one), _runs(other)
    if runs is None or others is None:
        return False
    import numpy

    # A run shares a byte with the first of the other runs that ends after the run begins, or with none.
    (starts, length), (other_starts, other_length) = runs, others
    ends = numpy.sort(other_starts) + other_length
    position = numpy.searchsorted(ends, starts, side="right")
    within = position < len(ends)
    return bool((ends[position[within]] - other_length < starts[within] + length).any())


def _runs(extent: Extent) -> tuple[Any, int] | None:
    """Return the first addresses of the contiguous runs, as an array, and their length; None for too many."""
    import numpy

    start, end, layout = extent
    starts = numpy.array([start], dtype=numpy.int64)
    if layout is None:
        return starts, end - start
    sizes, strides, run = layout
    if prod(sizes) > _MAX_RUNS:
        return None
    for size, stride in zip(sizes, strides, strict=True):
        starts = (starts[:, None] + numpy.arange(size, dtype=numpy.int64) * stride).reshape(-1)
    return starts, run
