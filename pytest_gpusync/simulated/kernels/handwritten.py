"""Kernels of the CUDA key that cannot be derived from the operator's schema: copies, reads, resizing, indexing,
dropout.
"""

from __future__ import annotations

import sys
from math import prod
from typing import TYPE_CHECKING, Any, cast

import torch

from pytest_gpusync.model.measurement import PAGEABLE_H2D_WAITS_ABOVE
from pytest_gpusync.simulated.base import capture_rules, sync_events
from pytest_gpusync.simulated.base.state import check_ordinal, current_device, ensure_usable, process
from pytest_gpusync.simulated.base.sync_events import conditions
from pytest_gpusync.simulated.kernels.cpu_backed import CPU_KEYS, Schema, adopt, kernel_for, label
from pytest_gpusync.simulated.races import current_stream, device_memory, device_work, reports
from pytest_gpusync.simulated.races.lines import Line
from pytest_gpusync.simulated.tensors import cuda_graphs, generators, pinned, unknown_values
from pytest_gpusync.simulated.tensors.labels import as_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

aten = torch.ops.aten
Tensor = torch.Tensor
_MASKS = (torch.bool, torch.uint8)


def copy_(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """``copy_`` within the device and between device and host."""
    if process.blocked:
        ensure_usable()
    if reports.is_listening() or conditions.capturing:
        _follow_copy(target, source, non_blocking)
    if target.is_cuda != source.is_cuda:
        announce_copy(target, source, non_blocking)
    if not process.values:
        if not target.is_cuda:
            unknown_values.refuse("a copy to the host")
        return target
    to = as_cpu(target) if target.is_cuda else target.detach()
    origin = as_cpu(source) if source.is_cuda else source
    if conditions.capturing:
        cuda_graphs.record("aten::copy_", aten.copy_.default, [to, origin], {}, writes=True)
    else:
        aten.copy_.default(to, origin)
    return target


def _follow_copy(target: Tensor, source: Tensor, non_blocking: bool) -> None:
    """Tell those who look for races which stream reads `source` and writes `target`."""
    if not target.numel():
        return
    line = Line.of(sys._getframe(1))
    if source.is_cuda:
        stream = current_stream.launch(source.get_device())
        if target.is_cuda and target.get_device() != source.get_device():
            # The copy runs on the source's stream, between two events that order it on the target's.
            other = current_stream.launch(target.get_device())
            stream.wait(other.snapshot())
    else:
        stream = current_stream.launch(target.get_device())
    device_work.copies(source, False, stream, line, _is_read_by_the_device(target, source, non_blocking))
    device_work.copies(target, True, stream, line, pinned.is_pinned(target) and target.is_contiguous())
    if source.is_cuda and target.is_cuda and target.get_device() != source.get_device():
        current_stream.launch(target.get_device()).wait(stream.snapshot())


def _is_read_by_the_device(target: Tensor, source: Tensor, non_blocking: bool) -> bool:
    """Return whether a copy to the device reads `source` itself; otherwise the host first makes a copy of it."""
    if not non_blocking and source.dtype != target.dtype:
        return False  # the host converts it
    return pinned.is_pinned(source) and source.expand_as(target).is_contiguous()


def announce_copy(target: Tensor, source: Tensor, non_blocking: bool) -> None:
    """Announce the sync of a copy between host and device, if it makes one."""
    if target.is_cuda:
        straight = source.dtype == target.dtype and source.shape == target.shape and source.is_contiguous()
        _announce_inbound(source.expand_as(target), target.dtype, straight, non_blocking, target.get_device())
    elif target.numel():
        nbytes = target.numel() * source.element_size()
        if conditions.capturing and not (target.is_contiguous() and pinned.is_pinned(target)):
            _refuse_unpinned()
        elif not non_blocking:
            sync_events.announce("stream", direction="D2H", nbytes=nbytes, device=source.get_device())
        elif not (target.is_contiguous() and pinned.is_pinned(target)):
            sync_events.announce("pageable", direction="D2H", nbytes=nbytes, device=source.get_device())


def _announce_inbound(source: Tensor, dtype: torch.dtype, straight: bool, non_blocking: bool, index: int) -> None:
    """Announce the sync of a copy from the host.

    If `straight`, the device reads `source` itself; otherwise the host first converts it into a new, pageable buffer.
    """
    nbytes = source.numel() * dtype.itemsize
    if not nbytes:
        return
    if conditions.capturing and not (pinned.is_pinned(source) and (straight or non_blocking)):
        _refuse_unpinned()
    elif not non_blocking:
        sync_events.announce("stream", direction="H2D", nbytes=nbytes, device=index)
    elif nbytes > PAGEABLE_H2D_WAITS_ABOVE and not (straight and pinned.is_pinned(source)):
        sync_events.announce("pageable", direction="H2D", nbytes=nbytes, device=index)


def _refuse_unpinned() -> None:
    """A copy of pageable memory is not permitted during a capture, whether or not it would wait."""
    capture_rules.refuse("copy", capture_rules.UNPINNED, sys._getframe(1))


def to_copy(
    source: Tensor,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    """``_to_copy`` from a simulated tensor to another type or device."""
    if process.blocked:
        ensure_usable()
    options: dict[str, Any] = {"dtype": dtype, "layout": layout, "memory_format": memory_format}
    if device is not None and device.type == "cpu":
        if process.tracking or conditions.capturing:
            _follow_read(source, "copy")
        if source.numel() and not non_blocking and conditions.capturing:
            _refuse_unpinned()
        elif source.numel() and not non_blocking:
            sync_events.announce(
                "stream",
                direction="D2H",
                nbytes=source.numel() * source.element_size(),
                device=source.get_device(),
            )
        if not process.values:
            unknown_values.refuse("a copy to the host")
        if conditions.capturing:
            result: Tensor = cuda_graphs.record(
                "aten::_to_copy", aten._to_copy.default, [as_cpu(source)], options, writes=False
            )
        else:
            result = aten._to_copy.default(as_cpu(source), **options)
        if not non_blocking:
            return pinned.mark(result) if pin_memory else result
        # torch uses a pinned buffer for an asynchronous copy to the host, so the copy does not wait.
        pinned.mark(result)
        if reports.is_listening():
            stream = current_stream.launch(source.get_device())
            device_work.copies(result, True, stream, Line.of(sys._getframe(1)), True)
        return result
    if device is not None and device.type != "cuda":
        return torch.empty_like(source, dtype=dtype or source.dtype, device=device)
    index = source.get_device() if device is None else device.index
    if index is None:
        index = current_device()
    check_ordinal(index)
    values = source
    announced = False
    straight = dtype in (None, source.dtype) and source.is_contiguous()
    if source.is_cuda:
        values = as_cpu(source)
        if source.get_device() != index and reports.is_listening():
            return _copy_to_other_device(source, index, options)
    else:
        if (reports.is_listening() or conditions.capturing) and source.numel():
            is_direct = pinned.is_pinned(source) and source.is_contiguous() and (straight or non_blocking)
            device_work.copies(source, False, current_stream.launch(index), Line.of(sys._getframe(1)), is_direct)
        if conditions.capturing:  # which may refuse it
            _announce_inbound(source, dtype or source.dtype, straight, non_blocking, index)
            announced = True
        if not process.values:
            values = unknown_values.meta_of(source)
    if conditions.capturing and process.values:
        result = cuda_graphs.record("aten::_to_copy", aten._to_copy.default, [values], options, writes=False)
    else:
        result = aten._to_copy.default(values, **options)
    result = label(result, index)
    if process.tracking or conditions.capturing:
        if source.is_cuda:
            _follow_read(source, "copy")
        device_work.after(_TO_COPY, result)
    if not (source.is_cuda or announced):
        # The host waits for the copy, so what the copy wrote is ordered before what the host does next.
        _announce_inbound(source, dtype or source.dtype, straight, non_blocking, index)
    return result


def _copy_to_other_device(source: Tensor, index: int, options: dict[str, Any]) -> Tensor:
    """Convert on the source's device, then copy, as torch does."""
    options = {**options, "dtype": options["dtype"] or source.dtype}
    converted = aten._to_copy.default(as_cpu(source), **options)
    result: Tensor = label(converted, index)
    _follow_copy(result, source, True)
    return result


def _follow_read(source: Tensor, what: str) -> None:
    if source.numel():
        device_memory.touch(source, False, current_stream.launch(source.get_device()), Line.of(sys._getframe(1)), what)


def foreach_copy_(targets: Sequence[Tensor], sources: Sequence[Tensor], non_blocking: bool = False) -> None:
    """``_foreach_copy_``: one copy after the other between host and device, otherwise one kernel."""
    if all(tensor.is_cuda for tensor in (*targets, *sources)):
        _foreach_copy(targets, sources, non_blocking)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, non_blocking=non_blocking)


def local_scalar_dense(x: Tensor) -> Any:
    """Read one value: ``item()`` and everything based on it."""
    if process.blocked:
        ensure_usable()
    if process.tracking or conditions.capturing:
        _follow_read(x, "item")
    sync_events.announce("stream", direction="D2H", nbytes=x.element_size(), device=x.get_device())
    if not process.values:
        unknown_values.refuse("reading a number")
    return aten._local_scalar_dense.default(as_cpu(x))


def native_dropout(x: Tensor, probability: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Dropout that draws from the device's generator, for which the CPU operator has no parameter."""
    if process.blocked:
        ensure_usable()
    index = x.get_device()
    if process.tracking or conditions.capturing:
        _follow_read(x, "native_dropout")

    def run(values: Tensor) -> tuple[Tensor, Tensor]:
        if train is not None and not train:
            return values.clone(), torch.ones_like(values, dtype=torch.bool)
        keep = 1 - probability
        mask = torch.empty_like(values, dtype=torch.bool)
        if process.values:
            mask.bernoulli_(keep, generator=generators.resolve(None, index))
        return values * mask * (1 / keep if keep else 0.0), mask

    values = as_cpu(x)
    result, mask = (
        cuda_graphs.record("aten::native_dropout", run, [values], {}, writes=False)
        if conditions.capturing and process.values
        else run(values)
    )
    both = cast("Tensor", label(result, index)), cast("Tensor", label(mask, index))
    if process.tracking or conditions.capturing:
        device_work.after(_DROPOUT, both)
    return both


def resize_(x: Tensor, size: Sequence[int], memory_format: torch.memory_format | None = None) -> Tensor:
    """``resize_``: within its storage if that is large enough, otherwise into new memory."""
    if process.blocked:
        ensure_usable()
    storage = x.untyped_storage()
    if (x.storage_offset() + prod(size)) * x.element_size() <= storage.nbytes():
        stride = torch.empty(size, device="meta").stride()
        aten.set_.source_Storage_storage_offset.redispatch(
            CPU_KEYS, x, storage, x.storage_offset(), list(size), list(stride)
        )
        return x
    fresh = torch.empty(size, dtype=x.dtype)
    if process.values:
        old = as_cpu(x).reshape(-1)
        fresh.view(-1)[: old.numel()] = old
    adopt(x, fresh)
    return x


def set_empty(x: Tensor) -> Tensor:
    """``set_()``: without memory."""
    if process.blocked:
        ensure_usable()
    adopt(x, torch.empty(0, dtype=x.dtype))
    return x


def is_pinned(x: Tensor, device: torch.device | None = None) -> bool:
    """Return False: device memory is not pinned."""
    return False


def _announce_indices(target: Tensor, indices: Sequence[Tensor | None], accumulate: bool = False) -> None:
    """Announce the syncs of indexing: a mask on the device goes through ``nonzero``, indices on the host are copied.

    The indices of a mask on the host are copied from pinned memory, without a wait, unless the call accumulates.
    """
    for index in indices:
        if index is None:
            continue
        mask = index.dtype in _MASKS
        if index.is_cuda:
            if mask:
                sync_events.announce("stream", device=target.get_device())
        elif index.numel() and (accumulate or not mask):
            count = index.dim() if mask else 1
            sync_events.announce("stream", count, direction="H2D", nbytes=index.numel() * 8, device=target.get_device())


def _fills_by_mask(target: Tensor, indices: Sequence[Tensor | None], value: Tensor) -> bool:
    """Return whether ``index_put_`` becomes ``masked_fill_``: one value from the host, and one mask
    on the device that fits."""
    if value.numel() != 1 or value.is_cuda:
        return False
    dim, seen = 0, False
    for index in indices:
        if index is None:
            dim += 1
        elif index.dtype not in _MASKS or seen or index.device != target.device:
            return False
        else:
            seen = True
            if index.shape != target.shape[dim : dim + index.dim()]:
                return False
            dim += index.dim()
    return seen


_TO_COPY = Schema(aten._to_copy.default)
_DROPOUT = Schema(aten.native_dropout.default)
_foreach_copy = kernel_for(aten._foreach_copy_.default)
_index = kernel_for(aten.index.Tensor)
_index_out = kernel_for(aten.index.Tensor_out)
_index_put = kernel_for(aten._index_put_impl_.default)


def _check_indices(x: Tensor, indices: Sequence[Tensor | None]) -> None:
    if any(each is not None and each.is_cuda and each.device != x.device for each in indices):
        raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor ({x.device})")


def index(x: Tensor, indices: Sequence[Tensor | None]) -> Any:
    """``x[indices]``."""
    _check_indices(x, indices)
    _announce_indices(x, indices)
    return _index(x, indices)


def index_out(x: Tensor, indices: Sequence[Tensor | None], *, out: Tensor) -> Any:
    """``x[indices]`` into a tensor."""
    _check_indices(x, indices)
    _announce_indices(x, indices)
    return _index_out(x, indices, out=out)


def index_put_(
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Any:
    """``x[indices] = values``."""
    if accumulate or not _fills_by_mask(x, indices, values):
        _announce_indices(x, indices, accumulate)
        if not values.is_cuda and values.numel():
            nbytes = values.numel() * values.element_size()
            sync_events.announce("stream", direction="H2D", nbytes=nbytes, device=x.get_device())
    return _index_put(x, [_as_mask(each) for each in indices], values, accumulate, unsafe)


def _as_mask(index: Tensor | None) -> Tensor | None:
    """A mask of bytes on the host as a boolean one: only where it is on the device of its target, torch refuses it."""
    is_byte_mask = index is not None and index.dtype is torch.uint8 and not index.is_cuda
    return index.bool() if index is not None and is_byte_mask else index


def _with_item(op: Any, scalar_op: Any, position: int) -> Callable[..., Any]:
    """Return the kernel of an operator whose CUDA kernel reads a 0-dim tensor argument with ``item()``."""

    def kernel(*arguments: Any, **keywords: Any) -> Any:
        value = arguments[position]
        if value.dim() != 0:
            raise RuntimeError(
                f"{op._schema.name.removeprefix('aten::')} only supports a 0-dimensional value tensor, "
                f"but got tensor with {value.dim()} dimension(s)."
            )
        return scalar_op(*arguments[:position], value.item(), *arguments[position + 1 :], **keywords)

    return kernel


_isin = kernel_for(aten.isin.Tensor_Tensor)


def isin(elements: Tensor, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """``isin``, whose C++ code is the same for CPU and CUDA: if it sorts, it runs on the labeled tensors and calls
    their kernels.
    """
    if process.blocked:
        ensure_usable()
    sorts = test_elements.numel() >= int(10 * elements.numel() ** 0.145)
    if not sorts or conditions.capturing or not (elements.is_cuda and test_elements.is_cuda):
        return _isin(elements, test_elements, assume_unique=assume_unique, invert=invert)
    out = torch.empty(0, dtype=torch.bool, device=elements.device)
    return aten.isin.Tensor_Tensor_out.redispatch(
        CPU_KEYS, elements, test_elements, assume_unique=assume_unique, invert=invert, out=out
    )


_convolution = kernel_for(aten.convolution.default)


def convolution(*arguments: Any, **keywords: Any) -> Any:
    """Convolution; while ``torch.jit.trace`` runs, through the operator that it records.

    torch leaves ``convolution`` itself out of a traced graph and records ``_convolution``, which its implementation
    calls on the tensors of the device.
    """
    if torch._C._get_tracing_state() is None:
        return _convolution(*arguments, **keywords)
    cudnn = torch.backends.cudnn
    flags = (cudnn.benchmark, cudnn.deterministic, cudnn.enabled, cudnn.allow_tf32)
    return aten._convolution.default(*arguments, *flags, **keywords)


def zero_tensor(size: Sequence[int], **options: Any) -> Tensor:
    """Return a dense tensor of zeros: torch's own zero tensor has no memory to share."""
    options.pop("layout", None)
    return torch.zeros(size, **options)


def _returns_false(*arguments: Any, **keywords: Any) -> bool:
    return False


def kernels() -> dict[str, Callable[..., Any]]:
    """Return the kernels of this module, by operator name within ``aten``."""
    return {
        "copy_": copy_,
        "_to_copy": to_copy,
        "_foreach_copy_": foreach_copy_,
        "_local_scalar_dense": local_scalar_dense,
        "native_dropout": native_dropout,
        "resize_": resize_,
        "set_": set_empty,
        "is_pinned": is_pinned,
        "index.Tensor": index,
        "index.Tensor_out": index_out,
        "_index_put_impl_": index_put_,
        "isin.Tensor_Tensor": isin,
        "convolution": convolution,
        "masked_fill.Tensor": _with_item(aten.masked_fill.Tensor, aten.masked_fill.Scalar, 2),
        "masked_fill_.Tensor": _with_item(aten.masked_fill_.Tensor, aten.masked_fill_.Scalar, 2),
        "index_fill_.int_Tensor": _with_item(aten.index_fill_.int_Tensor, aten.index_fill_.int_Scalar, 3),
        # CTC loss calls these; the CPU's result keeps it from using a library that does not exist.
        "_use_cudnn_ctc_loss": _returns_false,
        "_use_cudnn_ctc_loss.Tensor": _returns_false,
        "_use_miopen_ctc_loss": _returns_false,
        "_use_miopen_ctc_loss.Tensor": _returns_false,
    }
