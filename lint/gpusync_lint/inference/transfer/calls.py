"""Call expressions: the values of their parts, evidence of a training step, and the result."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import element, join_all, join_elements
from gpusync_lint.domain.training_idioms import BACKWARD, MODEL_METHODS, STEPPED, is_model_name
from gpusync_lint.domain.values import UNKNOWN, UNPACKED, Device, Gradient, Kind, Value
from gpusync_lint.inference.tables import Call, evaluates
from gpusync_lint.inference.transfer.calling import call_value
from gpusync_lint.inference.transfer.methods import call_method
from gpusync_lint.inference.transfer.moves import MOVES, move_instance
from gpusync_lint.inference.transfer.names import attribute, value_and_path
from gpusync_lint.inference.transfer.serving import call_in_server
from gpusync_lint.model.levels import Heat
from gpusync_lint.model.placement import StepEvidence
from gpusync_lint.project import framework_callbacks

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame

_STEP_METHODS = frozenset({"step", "backward", "zero_grad", "manual_backward", "apply_gradients", "generate"})
"""Methods that are evidence of a training step, or of a step of generation."""
_HOOKS = frozenset(
    {
        "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
        "register_full_backward_pre_hook", "register_backward_hook", "register_hook",
        "register_post_accumulate_grad_hook", "register_module_forward_hook",
    }
)  # fmt: skip
"""Methods that pass a function to torch, which calls it in each forward or backward pass."""
_BOUND = frozenset({Kind.FUNCTION, Kind.CLASS, Kind.INSTANCE, Kind.NAME, Kind.UNION, Kind.PARTIAL})
"""Kinds of attributes that are called directly. Otherwise the kind of the receiver decides what the method does."""
_CALLABLE = frozenset({Kind.FUNCTION, Kind.CLASS, Kind.MODULE, Kind.LAMBDA, Kind.PARTIAL})
_BATCH_ON_HOST = Value(Kind.TENSOR, Device.CPU, certain=False)
_RUNNING = ("forward", "generate")
_LOSSES = ("loss", "loss_fn", "loss_func", "loss_function", "criterion")
_MAX_CANDIDATES = 8
"""The maximum number of entries of a dict of functions that a call of an entry may call."""


@evaluates(ast.Call)
def call(frame: Frame, node: ast.Call) -> Value:
    """`callee(argument, name=argument)`."""
    result = _call(frame, node)
    if result.kind is Kind.UNKNOWN:
        return _result_by_convention(frame, node)
    return _BATCH_ON_HOST if result.kind is Kind.INSTANCE and _asks_for_tensors(node) else result


def _result_by_convention(frame: Frame, node: ast.Call) -> Value:
    """What something unknown returns: a batch if it is asked for tensors, tensors if it is a model by its name."""
    if node.keywords and _asks_for_tensors(node):
        return _BATCH_ON_HOST
    name = _called(node)
    if name == "closure" and not node.args:  # what `optimizer.step(closure)` is given computes the loss
        return Value(Kind.TENSOR, frame.assumed_device(), certain=False, zero_dim=True)
    is_model = name in _RUNNING or is_model_name(name) or name.endswith(_LOSSES)
    if not is_model and isinstance(node.func, ast.Attribute):
        owner = node.func.value
        is_model = is_model_name(getattr(owner, "attr", "") or getattr(owner, "id", ""))
    if is_model:
        given = [frame.values.get(one, UNKNOWN) for one in (*node.args, *(each.value for each in node.keywords))]
        if any(value.on_device for value in given):
            gradient = Gradient.FLOWS if frame.tracks_gradients() else Gradient.NONE
            return Value(Kind.TENSOR, Device.GPU, certain=False, gradient=gradient)
    return UNKNOWN


def _asks_for_tensors(node: ast.Call) -> bool:
    """Whether a call asks a tokenizer for tensors, which are on the host: `tokenizer(text, return_tensors="pt")`.

    The call of a class is none: `DataCollatorWithPadding(tokenizer, return_tensors="pt")`.
    """
    kinds = [each.value for each in node.keywords if each.arg == "return_tensors"]
    if not kinds or not isinstance(kinds[0], ast.Constant) or kinds[0].value != "pt":
        return False
    return not _called(node)[:1].isupper() and all(each.arg != "device" for each in node.keywords)


def _called(node: ast.Call) -> str:
    """The last word of the name of what is called."""
    return getattr(node.func, "attr", "") or getattr(node.func, "id", "")


def _call(frame: Frame, node: ast.Call) -> Value:
    func = node.func
    if isinstance(func, ast.Attribute):
        return _call_attribute(frame, node, func)
    callee = frame.eval(func)
    made = Call(node, callee, _arguments(frame, node), _keywords(frame, node))
    if isinstance(func, ast.Name):
        delegated = call_in_server(frame, made, func.id, None)
        if delegated is not None:
            return delegated
    if callee.kind is Kind.UNKNOWN:
        if isinstance(func, ast.Subscript):
            return _call_item(frame, made, frame.values.get(func.value, UNKNOWN))
        if isinstance(func, ast.Name) and node.args and is_model_name(func.id):
            _record_model(frame)
    return call_value(frame, made)


def _call_attribute(frame: Frame, node: ast.Call, func: ast.Attribute) -> Value:
    name = func.attr
    receiver, path = value_and_path(frame, func.value)
    callee = UNKNOWN
    if receiver.kind is not Kind.TENSOR:
        callee = attribute(frame, func, receiver, f"{path}.{name}" if path else None)
        if callee.kind:
            frame.values[func] = callee
    made = Call(node, callee, _arguments(frame, node), _keywords(frame, node), receiver, name)
    if name in _STEP_METHODS:
        _record_step_evidence(frame, made, path)
    elif name == "add_event_handler":
        _record_event_handler(frame, made)
    elif name in _HOOKS:
        _record_hook(frame, made)
    delegated = call_in_server(frame, made, name, path)
    if delegated is not None:
        return delegated
    if callee.kind not in _BOUND or receiver.kind is Kind.DICT:
        result = call_method(frame, made)
        if callee.kind is Kind.UNKNOWN and receiver.kind is Kind.MODULE and receiver.ref is None and not receiver.items:
            named = _call_targets(frame, made, path)
            return join_all(named) if named else result or UNKNOWN
        if result is not None:
            return result
        if callee.kind is Kind.UNKNOWN and receiver.kind is Kind.UNKNOWN:
            if name in MODEL_METHODS or (node.args and is_model_name(name)):
                _record_model(frame)
            return _call_by_name(frame, made, path)
    result = call_value(frame, made)
    if name in MOVES and receiver.kind is Kind.MODULE:  # an override, which moves the module like any other
        return call_method(frame, made) or result
    if name in MOVES and receiver.kind is Kind.INSTANCE and callee.kind is Kind.FUNCTION:
        move_instance(frame, made)
    return result


def _arguments(frame: Frame, node: ast.Call) -> list[Value]:
    """The positional arguments. A starred tuple is expanded."""
    values: list[Value] = []
    for arg in node.args:
        value = frame.eval(arg)
        if arg.__class__ is not ast.Starred:
            values.append(value)
            continue
        whole = frame.values.get(arg.value, UNKNOWN)
        values += (whole.items or ()) if whole.kind is Kind.TUPLE else (element(whole),)
    return values


def _keywords(frame: Frame, node: ast.Call) -> dict[str, Value]:
    """The keyword arguments. A batch that is passed as `**batch` is stored under the key `**`.

    Others without a known name are stored under `UNPACKED`.
    """
    kwargs: dict[str, Value] = {}
    for keyword in node.keywords:
        value = frame.eval(keyword.value)
        if keyword.arg is not None:
            kwargs[keyword.arg] = value
        elif value.kind is Kind.DICT:
            kwargs.update({name: item for name, item in value.items or () if name not in kwargs})
            if value.elem is not None and value.elem.kind is not Kind.HOST:
                kwargs[UNPACKED] = UNKNOWN
        elif value.kind is Kind.TENSOR:
            kwargs.setdefault("**", value)
        else:
            kwargs[UNPACKED] = UNKNOWN
    return kwargs


def _call_by_name(frame: Frame, call: Call, path: str | None) -> Value:
    """Call a method of something unknown: the methods of the project that this may be."""
    results = _call_targets(frame, call, path)
    if not results:
        frame.record_unknown_call(call.args, call.kwargs)
    return join_all(results)


def _call_targets(frame: Frame, call: Call, path: str | None) -> list[Value]:
    """The results of the methods that a call may run, by the names of the receiver and of the method."""
    results = []
    for method in frame.analysis.call_targets(path, call.method):
        receiver = frame.analysis.instances.self_of(method)
        results.append(frame.analysis.call(frame, method, [receiver, *call.args], call.kwargs))
    return results


def _call_item(frame: Frame, call: Call, table: Value) -> Value:
    """Call an entry of a dict of functions, classes or modules: any of them."""
    entries = [item for _, item in table.items or ()] if table.kind is Kind.DICT else []
    candidates = [item for item in entries if item.kind in _CALLABLE]
    return join_elements([call_value(frame, call._replace(callee=item)) for item in candidates[:_MAX_CANDIDATES]])


def _record_step_evidence(frame: Frame, call: Call, path: str | None) -> None:
    name, kind = call.method, call.receiver.kind
    words = (path or "").lower()
    if name == "generate":
        if kind is Kind.MODULE:
            frame.record_step_evidence(StepEvidence.MODEL)
    elif name in BACKWARD:
        frame.record_step_evidence(StepEvidence.TRAINING)
    elif name == "step" and "sched" in words:
        return  # a schedule advances once per step or once per epoch
    elif name != "step" or kind in (Kind.OPTIMIZER, Kind.SCALER):
        frame.record_step_evidence(StepEvidence.UPDATE)
    elif kind in (Kind.UNKNOWN, Kind.INSTANCE):
        if "opt" in words or "scaler" in words:
            frame.record_step_evidence(StepEvidence.UPDATE)
        elif call.args and (words.endswith(STEPPED) or "env" in words):
            frame.record_step_evidence(StepEvidence.MODEL)


def _record_model(frame: Frame) -> None:
    """Record a call of something that is a model by its name; in a module it is a part of it."""
    frame.record_step_evidence(StepEvidence.LAYER if frame.is_in_module() else StepEvidence.MODEL)


def _record_hook(frame: Frame, call: Call) -> None:
    """`module.register_forward_hook(hook)`: torch calls the function, or object, whenever it runs the module."""
    hook = call.first
    if hook.kind is Kind.INSTANCE:
        method = frame.analysis.project.classes.method(hook.ref, "__call__")
        if method is not None:
            frame.analysis.record_callback(method, Heat.STEP)
    elif hook.kind is Kind.FUNCTION:
        frame.analysis.record_callback(hook.ref, Heat.STEP)


def _record_event_handler(frame: Frame, call: Call) -> None:
    """`trainer.add_event_handler(Events.ITERATION_COMPLETED, handler)`, of Ignite."""
    if len(call.args) > 1 and call.args[1].kind is Kind.FUNCTION:
        heat = framework_callbacks.event_heat(call.node.args[0])
        if heat is not None:
            frame.analysis.record_callback(call.args[1].ref, heat)
