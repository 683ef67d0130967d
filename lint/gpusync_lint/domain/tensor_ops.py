"""The results of operations on tensors and devices, as functions of values: no names and no source are involved."""

from __future__ import annotations

import ast

from gpusync_lint.domain import accelerators, torch_api
from gpusync_lint.domain.training_idioms import is_mask_name
from gpusync_lint.domain.values import (
    BOOL_DTYPE,
    COALESCED,
    DTYPE,
    GPU_ABSENT,
    GPU_PRESENT,
    HOST,
    NESTED,
    UNCOALESCED,
    UNKNOWN,
    Device,
    Gradient,
    Kind,
    Value,
    tensor,
    tensor_like,
    wider,
)


def tensor_attribute(owner: Value, attribute: str) -> Value:
    """The value of an attribute of a tensor."""
    operations = torch_api.tensors()
    if attribute in operations.host_attributes:
        return HOST
    if attribute == "device":
        return Value(Kind.DEVICE, owner.device)
    if attribute == "dtype":
        return BOOL_DTYPE if owner.boolean else DTYPE
    if attribute == "is_cuda":
        return GPU_PRESENT
    if attribute in operations.same_attributes:
        return owner._replace(gradient=Gradient.NONE) if attribute == "data" else owner
    if torch_api.is_batch_attribute(attribute):
        return HOST
    if attribute[:1] == "_":
        return UNKNOWN  # what torch keeps with a tensor is no tensor as a rule
    if owner.ref == NESTED:
        return UNKNOWN  # a part of a part of an object: `models[0].blocks[0].linear.features`
    # Tensors have no such attribute, so it is an output object of a library (`outputs.loss`) or a batch.
    zero_dim = True if attribute == "loss" else None
    part = tensor_like(owner, False, zero_dim, is_mask_name(attribute), owner.pinned, owner.gradient)
    return part if owner.certain else part._replace(ref=NESTED)


def combine(left: Value, right: Value) -> Value:
    """The tensor that an operation on two values returns, at least one of which is a tensor."""
    if left.kind is not Kind.TENSOR or right.kind is not Kind.TENSOR:
        operand, other = (left, right) if left.kind is Kind.TENSOR else (right, left)
        zero_dim = operand.zero_dim if other.kind is Kind.HOST or other.kind is Kind.FLAG else None
        return tensor(operand.device, operand.certain, zero_dim, gradient=operand.gradient)
    zero_dim = True if left.zero_dim and right.zero_dim else False if False in (left.zero_dim, right.zero_dim) else None
    gradient = max(left.gradient, right.gradient)
    device = _common_device(left, right)
    # What is computed with a tensor that certainly is on the device is one, too.
    sure = left if left.certain else right
    certain = (left.certain and right.certain) or (sure.certain and sure.device is device > Device.ASSUMED)
    return tensor(device, certain, zero_dim, gradient=gradient)


def _common_device(left: Value, right: Value) -> Device:
    """The device of the operands, which is the same for both, except for 0-dimensional tensors on the host.

    What was copied to the host shows that the other operand is there as well, if only convention puts it on the device.
    """
    low, high = (left, right) if left.device <= right.device else (right, left)
    if low.device is Device.CPU and high.device is Device.ASSUMED and low.certain and low.zero_dim is False:
        return Device.CPU
    return wider(left.device, right.device)


def indexed_gradient(base: Value, index: Value) -> Gradient:
    """What the backward pass through `base[index]` does."""
    if not base.gradient or base.device is Device.CPU:
        return base.gradient
    parts = index.items or () if index.kind is Kind.TUPLE else (index,)
    found = base.gradient
    for part in parts:
        if part.kind is Kind.TENSOR and part.boolean and part.on_device:
            found = max(found, Gradient.THROUGH_MASK)
        elif part.certain and not part.zero_dim and not part.boolean:
            # A list or an array becomes a tensor on the device, which the backward pass uses again.
            is_host_tensor = part.kind is Kind.TENSOR and part.device is Device.CPU
            found = max(found, Gradient.THROUGH_INDEX) if is_host_tensor else found
    return found


def multiplied_gradient(left: Value, right: Value) -> Gradient:
    """What the backward pass through a matrix product does."""
    found = max(left.gradient, right.gradient)
    is_sparse = left.kind is Kind.TENSOR and left.ref in (UNCOALESCED, COALESCED) and left.device is not Device.CPU
    return max(found, Gradient.THROUGH_SPARSE) if is_sparse and right.gradient else found


def selects(index: Value) -> bool:
    """Whether an index selects by values, a mask or a tensor of indices, and not only by numbers and slices."""
    if index.kind is Kind.TUPLE:
        return any(selects(item) for item in index.items or ())
    return index.kind in (Kind.TENSOR, Kind.ARRAY, Kind.LIST)


def is_gpu_string(text: object) -> bool:
    """Whether a constant is the name of a GPU: `"cuda:0"`."""
    return isinstance(text, str) and text.startswith(("cuda", "gpu", "xpu", "hip"))


def device_of(value: Value) -> Device | None:
    """The device that a value specifies; None if it specifies none."""
    if value.kind is Kind.DEVICE:
        return value.device
    if isinstance(value.const, str):
        if value.const.startswith("cpu"):
            return Device.CPU
        named = accelerators.named(value.const)
        if named is not None:
            return named
        if is_gpu_string(value.const) or value.const == "auto":
            return Device.GPU
    if value.kind is Kind.HOST and isinstance(value.const, int) and not isinstance(value.const, bool):
        return Device.GPU
    return None


def device_comparison(op: type, left: Value, right: Value, names_cuda: bool) -> Value | None:
    """Whether a comparison asks if there is a GPU; None if it asks for something else.

    `names_cuda` says whether the file names CUDA. If it does, it may run there instead of on another accelerator.

    `GPU_PRESENT` for `device == "cuda"`, `device.type != "cpu"` and `torch.cuda.device_count() > 1`; `GPU_ABSENT` for
    `device == "cpu"`.
    """
    if left.kind is Kind.FLAG and op in (ast.Gt, ast.GtE, ast.NotEq):
        return left if left.const else None
    if op is ast.In or op is ast.NotIn:  # `"cuda" in str(x.device)`
        if right.kind is not Kind.DEVICE or not (is_gpu_string(left.const) or left.const == "cpu"):
            return None
        return GPU_PRESENT if (left.const != "cpu") is (op is ast.In) else GPU_ABSENT
    if op is not ast.Eq and op is not ast.NotEq:
        return None
    if isinstance(left.const, str) and not isinstance(right.const, str):
        left, right = right, left
    flag = _device_equals(left.const, right.const, names_cuda)
    if flag is None or op is ast.Eq:
        return flag
    if right.const == "mps" and names_cuda:  # another device than this one may be a GPU or the CPU
        return None
    return GPU_ABSENT if flag.const else GPU_PRESENT


def _device_equals(device: object, text: object, names_cuda: bool) -> Value | None:
    """Whether there is a GPU if the two are equal; `device` is None if it is not a constant."""
    if is_gpu_string(text):
        may_equal = not isinstance(device, str) or is_gpu_string(device) or device in ("auto", "")
        return GPU_PRESENT if may_equal else None
    if text == "cpu":
        return None if isinstance(device, str) else GPU_ABSENT
    if not isinstance(text, str) or accelerators.named(text) is None:
        return None
    if names_cuda:
        return GPU_ABSENT if text == "mps" else None
    return None if isinstance(device, str) and device != text else GPU_PRESENT
