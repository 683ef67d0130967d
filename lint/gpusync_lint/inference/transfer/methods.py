"""Methods of values that are neither tensors nor modules."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING

from gpusync_lint.catalogue.signatures import signatures
from gpusync_lint.domain import python_api, torch_api
from gpusync_lint.domain.lattice import element, join, join_all, join_elements, lookup
from gpusync_lint.domain.values import ARRAY, GUESSED, HOST, UNKNOWN, Device, Kind, Value, dict_of, list_of, tuple_of
from gpusync_lint.inference.tables import METHODS, Call, methods_of
from gpusync_lint.inference.transfer.assignments import rebind
from gpusync_lint.inference.transfer.iteration import next_item
from gpusync_lint.inference.transfer.moves import MOVES, as_type, move, tensor_type_of
from gpusync_lint.inference.transfer.names import held_items

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame

_NEVER_MOVED = frozenset({Kind.HOST, Kind.FUNCTION, Kind.NAME, Kind.ARRAY, Kind.FOREIGN})
_LOGGING_PREFIXES = ("add_", "log_", "set_post")
"""Prefixes of the names of methods that log or display their arguments."""
_CONTAINER_METHODS = frozenset(
    {"items", "keys", "values", "get", "pop", "setdefault", "update", "append", "extend", "insert"}
)
"""Methods that show that what may be a tensor or a container is a container."""
_SAMPLES = frozenset({"log_prob", "entropy", "rsample"})
_SAVING = frozenset({"save_for_backward", "save_for_forward"})
_APPENDING = frozenset({"append", "add", "appendleft"})
_OF_CONTAINERS = _CONTAINER_METHODS | _APPENDING


def call_method(frame: Frame, call: Call) -> Value | None:
    """The result of a method; None if the kind of the receiver does not decide it."""
    held = call.receiver.elem
    if held is not None and held.kind and call.receiver.kind is Kind.TENSOR and call.method in _CONTAINER_METHODS:
        call = call._replace(receiver=held)
    kind = call.receiver.kind
    if call.method in MOVES and kind not in _NEVER_MOVED:
        return move(frame, call)
    handler = METHODS.get(kind)
    return None if handler is None else handler(frame, call)


@methods_of(Kind.UNKNOWN, Kind.MOVED)
def unknown_method(frame: Frame, call: Call) -> Value | None:
    """A method of something unknown. Some methods exist only for tensors, distributions or loggers."""
    name = call.method
    if not _is_specific(name):
        return None
    if name in torch_api.tensors().torch_only and len(call.values) >= _required(name):
        if call.receiver.kind is Kind.MOVED:
            return Value(Kind.TENSOR, Device.GPU, certain=False)
        return Value(Kind.TENSOR, frame.assumed_device(), certain=False, ref=GUESSED)
    if "dim" in call.kwargs and name in torch_api.tensors().reduces:  # arrays are reduced along `axis=`
        return Value(Kind.TENSOR, frame.assumed_device(), certain=False, ref=GUESSED)
    if name == "bool":  # neither arrays nor numbers have this method
        return Value(Kind.TENSOR, frame.assumed_device(), certain=False, boolean=True)
    if name == "type":
        moves = bool(call.args) and bool(tensor_type_of(call.args[0]))
        return as_type(Value(Kind.TENSOR, certain=False), call.args[0]) if moves else None
    if name == "item" or name == "format":
        return HOST
    if name == "numpy":
        return ARRAY
    if name in _SAMPLES:
        return Value(Kind.TENSOR, frame.assumed_device(), certain=False)
    return None if name in torch_api.tensors().reduces else UNKNOWN


@lru_cache(20_000)
def _required(name: str) -> int:
    """How many arguments a method of tensors needs: 2 for `x.gather(dim, index)`; `comm.gather(value)` is of MPI."""
    known = signatures(f"torch.Tensor.{name}")
    last = [[index for index, one in enumerate(each.positional, 1) if one.type == "t"] for each in known]
    return min((max(indices, default=0) for indices in last), default=0)


@lru_cache(20_000)
def _is_specific(name: str) -> bool:
    """Whether the name of a method shows the kind of its receiver or of its result."""
    if name in ("type", "bool", "item", "numpy", "format") or name in _SAMPLES or name.startswith(_LOGGING_PREFIXES):
        return True
    known = torch_api.tensors()
    return name in known.torch_only or name in known.reduces or name in python_api.LOGGERS


@methods_of(Kind.OPTIMIZER, Kind.SCALER, Kind.SCHEDULER)
def optimizer_method(frame: Frame, call: Call) -> Value:
    """A method of an optimizer, a gradient scaler or a scheduler."""
    if call.receiver.kind is Kind.SCALER:
        if call.method == "scale" and call.args:
            return call.args[0]
        if call.method == "get_scale":
            return HOST
    if call.receiver.kind is Kind.OPTIMIZER and call.method == "state_dict":
        state = Value(Kind.TENSOR, frame.assumed_device(), certain=False)
        return dict_of((("param_groups", UNKNOWN),), state)
    if call.method in ("step", "update_parameters") and call.args and call.args[0].kind is Kind.FUNCTION:
        return frame.analysis.call(frame, call.args[0].ref, [], {})  # a closure that computes the loss
    return UNKNOWN


@methods_of(Kind.DICT)
def dict_method(frame: Frame, call: Call) -> Value:
    """A method of a dict."""
    receiver, name = call.receiver, call.method
    if name == "update":
        added = join_all(
            [dict_of(tuple(call.kwargs.items()), None), *(one for one in call.args if one.kind is Kind.DICT)]
        )
        wider = join(receiver, added)
        if wider != receiver:
            rebind(frame, call.node.func.value, wider)  # type: ignore[attr-defined]
        return HOST
    if name in ("get", "pop", "setdefault"):
        return lookup(receiver, call.args[0].const) if call.args else UNKNOWN
    if name in ("items", "values"):
        values = [value for _, value in receiver.items or ()]
        each = join_elements(values if receiver.elem is None else [*values, receiver.elem])
        return list_of(each if name == "values" else tuple_of([HOST, each]))
    return receiver if name == "copy" else HOST


@methods_of(Kind.LIST, Kind.TUPLE)
def sequence_method(frame: Frame, call: Call) -> Value:
    """A method of a list, a tuple or a set."""
    receiver, name, args = call.receiver, call.method, call.args
    added: Value | None = None
    if name in _APPENDING and args:
        added = args[0]
    elif name == "insert" and len(args) > 1:
        added = args[1]
    elif name == "extend" and args:
        added = element(args[0])
    if added is not None:
        old = receiver.elem if receiver.kind is Kind.LIST else element(receiver)
        wider = list_of(added if old is None else join_elements([old, added]))
        if wider != receiver:
            rebind(frame, call.node.func.value, wider)  # type: ignore[attr-defined]
        return HOST
    if name in ("pop", "popleft"):
        return element(receiver)
    if receiver.ref.__class__ is tuple and name in ("_replace", "_asdict"):
        fields = dict(zip(receiver.ref, receiver.items or (), strict=True)) | call.kwargs
        if name == "_asdict":
            return dict_of(tuple(fields.items()), None)
        return tuple_of(fields.values())._replace(ref=receiver.ref)
    return receiver if name == "copy" else HOST


@methods_of(Kind.INSTANCE)
def instance_method(frame: Frame, call: Call) -> Value | None:
    """A method inherited from a container or a distribution, or of the context of autograd; None for other classes."""
    cls = call.receiver.definition
    if cls is None or call.callee.kind:
        return None
    classes = frame.analysis.project.classes
    if call.method in _SAVING and classes.is_autograd_function(cls):
        is_starred = any(isinstance(arg, ast.Starred) for arg in call.node.args)
        saved = list_of(join_elements(call.args)) if is_starred else tuple_of(call.args)
        frame.analysis.instances.set_attribute(call.receiver, "saved_tensors", saved)
        return HOST
    held = held_items(frame, call.receiver) if call.method in _OF_CONTAINERS else None
    if held is not None:
        return METHODS[held.kind](frame, call._replace(receiver=held))
    bases = classes.external_bases(cls)
    if not any(base.startswith("torch.distributions.") for base in bases):
        return None
    return Value(Kind.TENSOR, max(call.receiver.device, frame.assumed_device()))


@methods_of(Kind.DISTRIBUTION)
def distribution_method(frame: Frame, call: Call) -> Value:
    """A method of a distribution."""
    return Value(Kind.TENSOR, call.receiver.device)


@methods_of(Kind.ARRAY)
def array_method(frame: Frame, call: Call) -> Value:
    """A method of a NumPy array."""
    return HOST if call.method in ("item", "tolist") else ARRAY


@methods_of(Kind.HOST)
def host_method(frame: Frame, call: Call) -> Value:
    """A method of a number, a string or another host value."""
    return HOST


@methods_of(Kind.LOADER)
def loader_method(frame: Frame, call: Call) -> Value:
    """A method of a data loader."""
    if call.method in ("next", "__next__"):
        return next_item(frame, call.receiver)
    return call.receiver if call.method == "__iter__" else UNKNOWN
