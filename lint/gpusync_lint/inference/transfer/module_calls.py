"""Calls of modules and of their methods."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain import torch_api
from gpusync_lint.domain.lattice import join, join_elements, part_of
from gpusync_lint.domain.values import (
    HOST,
    UNKNOWN,
    Device,
    Gradient,
    Kind,
    Value,
    contents,
    dict_of,
    list_of,
    modules,
    tensor,
    tuple_of,
    with_device,
    with_gradient,
)
from gpusync_lint.inference.tables import Call, calls, methods_of
from gpusync_lint.inference.transfer import captures
from gpusync_lint.inference.transfer.assignments import rebind
from gpusync_lint.model.placement import StepEvidence

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame
    from gpusync_lint.project.symbols import FunctionDef


_ADDING = frozenset({"append", "insert", "add_module"})
_CONTAINERS = frozenset({Kind.TUPLE, Kind.LIST, Kind.DICT})


@calls(Kind.MODULE)
def call_module(frame: Frame, call: Call) -> Value:
    """Call a module: its `forward`, or for an external module a tensor on the device of its weights and inputs."""
    module = call.callee
    if module.ref is None and module.items:
        return join_elements([call_module(frame, call._replace(callee=one)) for one in modules(module)])
    of_layer = _is_of_innermost_loop(frame, call.node.func)
    is_layer = of_layer or (frame.is_in_module() and module.ref is not frame.fn.cls)
    frame.record_step_evidence(StepEvidence.LAYER if is_layer else StepEvidence.MODEL)
    device = _device_of_weights(frame, module)
    if device is Device.CPU:  # its weights, if it has any, are where its inputs are: torch refuses anything else
        device = _device_of_inputs(frame, call)
    if module.ref is not None and not isinstance(module.ref, str):
        forward = frame.analysis.project.classes.method(module.ref, "forward")
        if forward is not None:
            result = _call_forward(frame, forward, call, device, of_layer)
            if result.kind is not Kind.UNKNOWN or device is Device.CPU:
                return result
    return _call_external_module(frame, call, device)


def _is_of_innermost_loop(frame: Frame, callee: ast.expr) -> bool:
    """Whether the loop around a call iterates over the modules that it calls: they are parts of one step.

    The loop binds the module, or its index: `for layer in layers: layer(x)`, `for i in range(n): self.layers[i](x)`.
    """
    loop = frame.loops[-1] if frame.loops else None
    bound = callee.slice if isinstance(callee, ast.Subscript) else callee
    if not isinstance(loop, ast.For) or not isinstance(bound, ast.Name):
        return False
    return any(isinstance(node, ast.Name) and node.id == bound.id for node in ast.walk(loop.target))


def _device_of_inputs(frame: Frame, call: Call) -> Device:
    """The device of what a module on the host is called with; the assumed one if nothing is known about it."""
    values = call.values
    flat = [one for value in values for one in ((value,) if value.kind not in _CONTAINERS else contents(value))]
    found = [value.device for value in flat if value.kind is Kind.TENSOR]
    if not found and any(value.kind is Kind.UNKNOWN or value.kind is Kind.MOVED for value in values):
        return frame.assumed_device()
    return max(found, default=Device.CPU)


def _call_forward(frame: Frame, forward: FunctionDef, call: Call, device: Device, of_layer: bool) -> Value:
    if device is Device.CPU and frame.fn.is_module:
        call = _on_assumed_device(frame, forward, call)
    result = frame.analysis.call(frame, forward, [call.callee, *call.args], call.kwargs, of_layer)
    if not frame.tracks_gradients():
        result = with_gradient(result, Gradient.NONE)
    return result if device is Device.ASSUMED or device is Device.UNKNOWN else with_device(result, device)


def _on_assumed_device(frame: Frame, forward: FunctionDef, call: Call) -> Call:
    """A call in a demo, which runs a module on the host: where its arguments are says nothing about other calls.

    Its weights would be there too, so they are taken to be where the weights of the module are assumed to be.
    """
    device = frame.analysis.devices.assumed_device(forward)
    if device is not Device.ASSUMED:
        return call
    args = [with_device(value, device) for value in call.args]
    return call._replace(args=args, kwargs={name: with_device(value, device) for name, value in call.kwargs.items()})


def _call_external_module(frame: Frame, call: Call, device: Device) -> Value:
    dotted = call.callee.ref if isinstance(call.callee.ref, str) else ""
    if call.callee.elem is not None and dotted == "torch.nn.Sequential":
        inner = call._replace(callee=part_of(call.callee), args=[_with_gradient(frame, one) for one in call.args])
        result = call_module(frame, inner)
        return result if device is Device.ASSUMED or device is Device.UNKNOWN else with_device(result, device)
    given = [value.device for value in call.values if value.kind is Kind.TENSOR]
    last = dotted.rpartition(".")[2]
    if last.endswith("Loss"):
        where = max(given, default=frame.assumed_device())
        gradient = max((value.gradient for value in call.values), default=Gradient.NONE)
        return tensor(where, zero_dim=call.callee.argument("reduction").const != "none" or None, gradient=gradient)
    if given:
        device = max(device, *given)
    gradient = Gradient.FLOWS if frame.tracks_gradients() else Gradient.NONE
    gradient = max(gradient, max((value.gradient for value in call.values), default=gradient))
    output = tensor(device, certain=dotted.startswith("torch.nn"), gradient=gradient)
    if last in torch_api.modules().with_hidden_state:
        return tuple_of([output, tuple_of([output, output]) if last == "LSTM" else output])
    return output


def _with_gradient(frame: Frame, value: Value) -> Value:
    """What reaches a part of a model through the parts before it."""
    if value.kind is Kind.TENSOR and value.gradient is Gradient.NONE and frame.tracks_gradients():
        return value._replace(gradient=Gradient.FLOWS)
    return value


def _device_of_weights(frame: Frame, module: Value) -> Device:
    """The device of the parameters of a module: its own, or that to which an instance of its class is moved."""
    if module.device is Device.CPU and module.ref is not None and not isinstance(module.ref, str):
        return frame.assumed_device() if frame.analysis.classes.is_moved(frame.reader, module.ref) else Device.CPU
    return module.device


@methods_of(Kind.MODULE)
def module_method(frame: Frame, call: Call) -> Value | None:
    """The result of a method of a module; None for a method of a project class."""
    name, module = call.method, call.receiver
    if call.callee.kind is Kind.FUNCTION:
        return None
    if isinstance(module.ref, str) and frame.analysis.named.gives_tensor(f"{module.ref}.{name}"):
        return Value(Kind.TENSOR, _device_of_weights(frame, module))
    if call.callee.kind is Kind.MODULE:  # a submodule
        return call_module(frame, call)
    known = torch_api.modules()
    if name == "compile":
        captures.record_compiled(frame, module, call.kwargs)
    if name in known.same:
        return module
    if name in known.unknown:
        return UNKNOWN
    if name in _ADDING and call.args and call.args[-1].kind is Kind.MODULE:
        return _add_part(frame, call)
    if name in ("values", "items") and (module.elem is not None or module.ref == "torch.nn.ModuleDict"):
        return list_of(part_of(module) if name == "values" else tuple_of([HOST, part_of(module)]))
    if name in ("forward", "__call__"):
        return call_module(frame, call._replace(callee=module))
    if name == "register_buffer" and len(call.args) > 1 and isinstance(call.first.const, str):
        buffer = with_device(call.args[1], frame.assumed_device())
        frame.analysis.instances.set_attribute(module, call.first.const, buffer)
        return HOST
    parts = _parts(frame, module, name)
    return _computed(frame, call) if parts is None else parts


def _add_part(frame: Frame, call: Call) -> Value:
    """`layers.append(module)`, `layers.add_module(name, module)`."""
    part = call.args[-1]
    module = call.receiver
    if module.ref.__class__ is str and any(one.definition is not None for one in modules(part)):
        wider = module._replace(elem=part if module.elem is None else join(module.elem, part))
        if wider != module:
            rebind(frame, call.node.func.value, wider)  # type: ignore[attr-defined]
    return module


def _computed(frame: Frame, call: Call) -> Value:
    """The result of another method of an external module, which computes with its arguments."""
    name, module = call.method, call.receiver
    if name == "generate" or (name != "log" and any(value.kind is Kind.TENSOR for value in call.args)):
        return Value(Kind.TENSOR, _device_of_weights(frame, module), certain=name == "generate")
    return UNKNOWN


def _parts(frame: Frame, module: Value, name: str) -> Value | None:
    """The result of a method that iterates over the parts of a module; None for any other method."""
    known = torch_api.modules()
    plain = name.removeprefix("named_")
    if plain in known.tensors:
        part = tensor(_device_of_weights(frame, module), gradient=Gradient.FLOWS)
    elif plain in known.modules:
        part = part_of(module)
    elif name == "state_dict":
        return dict_of((), Value(Kind.TENSOR, _device_of_weights(frame, module)))
    else:
        return None
    return list_of(part if plain == name else tuple_of([HOST, part]))
