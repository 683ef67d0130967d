"""Moves between devices: `.to(...)`, `.cuda()`, `.cpu()`, `.type(...)`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain import accelerators, torch_api
from gpusync_lint.domain.lattice import join_all
from gpusync_lint.domain.tensor_ops import device_of
from gpusync_lint.domain.values import (
    CPU_TENSOR,
    GUESSED,
    MOVED,
    UNKNOWN,
    Device,
    Gradient,
    Kind,
    Value,
    alternatives,
    contents,
    with_device,
)
from gpusync_lint.inference.transfer.assignments import rebind

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame
    from gpusync_lint.inference.tables import Call

MOVES = frozenset({"to", "cuda", "cpu"}) | accelerators.moves().keys()
"""Methods that move their receiver to a device."""
_IN_PLACE = frozenset({Kind.INSTANCE, Kind.OPTIMIZER, Kind.SCALER})
_AS_A_WHOLE = frozenset({Kind.UNKNOWN, Kind.RECORDS, Kind.MOVED})


def move(frame: Frame, call: Call) -> Value:
    """The result of a method that moves its receiver, of any kind."""
    receiver = call.receiver
    kind = receiver.kind
    if kind is Kind.UNION:
        return join_all([move(frame, call._replace(receiver=one)) for one in alternatives(receiver)])
    target = _target(frame, call)
    if kind is Kind.TENSOR:
        dtypes = [value for value in call.values if value.kind is Kind.DTYPE]
        if target is Device.CPU and receiver.gradient and receiver.on_device and frame.tracks_gradients():
            receiver = receiver._replace(gradient=max(receiver.gradient, Gradient.THROUGH_COPY))
        if call.method == "cpu":
            return receiver._replace(device=Device.CPU, certain=True, zero_dim=receiver.zero_dim or False, pinned=False)
        return receiver._replace(
            device=receiver.device if target is None else target,
            boolean=dtypes[0].boolean if dtypes else receiver.boolean,
            pinned=receiver.pinned and target is None,
            ref=None if receiver.ref == GUESSED and target is not None else receiver.ref,
        )
    if target is None or kind in _IN_PLACE:
        return receiver
    if kind is Kind.MODULE:
        return _move_module(frame, call, target)
    if kind in _AS_A_WHOLE:
        if target is Device.CPU:
            return _on_host(call)
        return MOVED
    return with_device(receiver, target) if kind in (Kind.TUPLE, Kind.LIST, Kind.DICT) else UNKNOWN


def _on_host(call: Call) -> Value:
    """Something unknown on the host. What a call or an index returned is a tensor as a rule; a name may be a model."""
    func = call.node.func
    if isinstance(func, ast.Attribute) and isinstance(func.value, (ast.Call, ast.Subscript)):
        return CPU_TENSOR._replace(zero_dim=False)
    return UNKNOWN


def _move_module(frame: Frame, call: Call, target: Device) -> Value:
    """Move a module in place, and return it."""
    moved = call.receiver._replace(device=target)
    if moved.ref is not None and not isinstance(moved.ref, str) and target is not Device.CPU:
        frame.analysis.classes.record_move(moved.ref)
    assert isinstance(call.node.func, ast.Attribute)
    rebind(frame, call.node.func.value, moved)
    return moved


def move_instance(frame: Frame, call: Call) -> None:
    """A class of the project has a method that moves its instances, so what tensors they hold may be on the device."""
    target = _target(frame, call)
    definition = call.receiver.definition
    if target is None or target < Device.ASSUMED or definition is None:
        return
    for base in frame.analysis.project.classes.project_lineage(definition):
        for name, value in list(base.attributes.items()):
            if any(one.kind is Kind.TENSOR and one.device is Device.CPU for one in (value, *contents(value))):
                frame.analysis.classes.widen_attribute(base, name, with_device(value, target))


def _target(frame: Frame, call: Call) -> Device | None:
    """The target of a move; None if only the dtype or the layout changes."""
    if call.method == "cpu":
        return Device.CPU
    if call.method == "cuda":
        return Device.GPU
    if call.method != "to":
        return accelerators.moves()[call.method]
    for value in [call.kwargs["device"]] if "device" in call.kwargs else call.args[:1]:
        device = device_of(value)
        if device is not None:
            return device
        if value.kind is Kind.TENSOR:
            return value.device
        if value.const is None:
            if value.kind is Kind.HOST:
                return Device.GPU
            if value.kind in (Kind.UNKNOWN, Kind.MOVED):
                return frame.assumed_device()
    return None


def as_type(receiver: Value, given: Value) -> Value:
    """`x.type(torch.cuda.FloatTensor)`: changes the device and the dtype."""
    where = tensor_type_of(given)
    device = Device.GPU if where == "cuda" else Device.CPU if where == "cpu" else receiver.device
    return receiver._replace(device=device, pinned=False, boolean=_is_boolean_type(given))


def tensor_type_of(value: Value) -> str:
    """The device of a legacy tensor type, given by name or as a string: `cpu` or `cuda`; empty for other values."""
    return torch_api.tensor_type(value.ref if value.kind is Kind.NAME else value.const)


def _is_boolean_type(value: Value) -> bool:
    if value.kind is Kind.NAME:
        return isinstance(value.ref, str) and value.ref.endswith("BoolTensor")
    return value.kind is Kind.DTYPE and value.boolean
