"""What is known of tensors and devices by their values alone: attributes, operations, indices, comparisons."""

from __future__ import annotations

import ast

from gpusync_lint.domain import torch_api
from gpusync_lint.domain.lattice import (
    BOOL_DTYPE,
    DTYPE,
    GPU_ABSENT,
    GPU_PRESENT,
    HOST,
    Kind,
    Value,
    tensor,
    tensor_like,
)


def tensor_attribute(base: Value, attr: str) -> Value:
    """What an attribute of a tensor holds."""
    known = torch_api.tensors()
    if attr in known.host_attributes:
        return HOST
    if attr == "device":
        return Value(Kind.DEVICE, base.device)
    if attr == "dtype":
        return BOOL_DTYPE if base.boolean else DTYPE
    if attr == "is_cuda":
        return GPU_PRESENT
    if attr in known.same_attributes:
        return base
    if torch_api.is_batch_attribute(attr):
        return HOST
    # An attribute that tensors do not have: an output object of a library (`outputs.loss`), or a batch.
    mask = attr == "mask" or attr.endswith("_mask")
    return tensor_like(base, False, True if attr == "loss" else None, mask, base.pinned)


def combine(left: Value, right: Value) -> Value:
    """The tensor that an operation on two values gives, at least one of which is a tensor."""
    if left.kind is not Kind.TENSOR or right.kind is not Kind.TENSOR:
        given, other = (left, right) if left.kind is Kind.TENSOR else (right, left)
        zero = given.zero_dim if other.kind is Kind.HOST or other.kind is Kind.FLAG else None
        return tensor(given.device, given.certain, zero)
    zero = True if left.zero_dim and right.zero_dim else False if False in (left.zero_dim, right.zero_dim) else None
    # Two tensors in one operation share a device (but for 0-dim ones on the host), so the better known one tells.
    return tensor(max(left.device, right.device), left.certain and right.certain, zero)


def selects(index: Value) -> bool:
    """Whether an index is more than numbers and slices: a mask, or indices that may lie elsewhere than the tensor."""
    if index.kind is Kind.TUPLE:
        return any(selects(item) for item in index.items or ())
    return index.kind in (Kind.TENSOR, Kind.ARRAY, Kind.LIST)


def is_gpu_string(text: object) -> bool:
    """Whether a string names a GPU."""
    return isinstance(text, str) and text.startswith(("cuda", "gpu", "xpu", "hip"))


def device_comparison(op: type, left: Value, right: Value) -> Value | None:
    """`device == "cuda"`, `device.type != "cpu"`, `torch.cuda.device_count() > 1`."""
    if left.kind is Kind.FLAG and op in (ast.Gt, ast.GtE, ast.NotEq):
        return left if left.const else None
    if isinstance(left.const, str) and not isinstance(right.const, str):
        left, right = right, left
    text = right.const
    if not isinstance(text, str) or op not in (ast.Eq, ast.NotEq, ast.In, ast.NotIn):
        return None
    if is_gpu_string(text):
        if isinstance(left.const, str) and not is_gpu_string(left.const) and left.const not in ("auto", ""):
            return None
        return GPU_PRESENT if op is ast.Eq else GPU_ABSENT if op is ast.NotEq else None
    if text == "cpu" and not isinstance(left.const, str):
        return GPU_ABSENT if op is ast.Eq else GPU_PRESENT if op is ast.NotEq else None
    if text == "mps" and op is ast.Eq:
        return GPU_ABSENT
    return None
