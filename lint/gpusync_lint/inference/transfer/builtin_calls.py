"""Calls of Python's builtin functions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import element, join_all
from gpusync_lint.domain.training_idioms import is_batch_iterator
from gpusync_lint.domain.values import ARRAY, HOST, LOADER, UNKNOWN, Kind, Value, dict_of, list_of, tuple_of
from gpusync_lint.inference.transfer.calling import call_value
from gpusync_lint.inference.transfer.iteration import iterated, next_item
from gpusync_lint.inference.transfer.names import attribute_of, tensor_attributes
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusync_lint.inference.frame import Frame
    from gpusync_lint.inference.tables import Call
    from gpusync_lint.project.symbols import FunctionDef


def call_builtin(frame: Frame, name: str, call: Call) -> Value:
    """The result of a builtin function: a host value, unless the table below says otherwise."""
    handler = _BUILTINS.get(name)
    return HOST if handler is None else handler(frame, call)


def _collection(frame: Frame, call: Call) -> Value:
    """`list`, `tuple`, `set`, `reversed`, `frozenset`, `sorted`."""
    return list_of(element(call.args[0])) if call.args else list_of(None)


def _iter(frame: Frame, call: Call) -> Value:
    if not call.args or not call.node.args:
        return _collection(frame, call)
    iterable = iterated(frame, call.args[0], call.node.args[0])
    return iterable if iterable.kind is Kind.LOADER else list_of(element(iterable))


def _next(frame: Frame, call: Call) -> Value:
    iterator = call.first
    if iterator.kind is Kind.UNKNOWN and call.node.args and is_batch_iterator(dotted_path(call.node.args[0])):
        iterator = LOADER
    return next_item(frame, iterator)


def _dict(frame: Frame, call: Call) -> Value:
    return call.args[0] if call.args else dict_of(tuple(call.kwargs.items()), None)


def _enumerate(frame: Frame, call: Call) -> Value:
    given = call.first
    items = iterated(frame, given, call.node.args[0]) if call.node.args else given
    return list_of(tuple_of([HOST, element(items)]))


def _zip(frame: Frame, call: Call) -> Value:
    """Tuples of the elements; `zip(*rows)` is a tuple of columns."""
    given = call.node.args
    if len(given) == 1 and isinstance(given[0], ast.Starred):
        row = element(frame.values.get(given[0].value, UNKNOWN))
        if row.kind is Kind.TUPLE:
            return tuple_of([list_of(item) for item in row.items or ()])
    return list_of(tuple_of([element(value) for value in call.args]))


def _arithmetic(frame: Frame, call: Call) -> Value:
    """`max`, `min`, `abs`, `round`, `pow`: of one or several values, or of a sequence."""
    found = _of_numbers(call)
    return found._replace(zero_dim=None) if found.kind is Kind.TENSOR else found


def _sum(frame: Frame, call: Call) -> Value:
    return _of_numbers(call)


def _of_numbers(call: Call) -> Value:
    for value in call.args:
        if value.kind is Kind.FOREIGN:
            return value
    values = [element(value) if value.kind in (Kind.LIST, Kind.TUPLE) else value for value in call.args]
    tensors = [value for value in values if value.kind is Kind.TENSOR]
    if tensors:
        return join_all(tensors)._replace(zero_dim=tensors[0].zero_dim)
    if any(value.kind is Kind.ARRAY for value in values):
        return ARRAY
    return UNKNOWN if any(value.kind is Kind.UNKNOWN for value in values) else HOST


def _getattr(frame: Frame, call: Call) -> Value:
    """An attribute; by a name that is not known, any tensor that the object holds."""
    if len(call.args) >= 2 and isinstance(call.args[1].const, str):
        return attribute_of(frame, call.args[0], call.args[1].const)
    _name_is_text(frame, call)
    return tensor_attributes(frame, call.first) or HOST


def _name_is_text(frame: Frame, call: Call) -> None:
    """What the name of an attribute is made of, in `getattr(self, f"{kind}_loss")`, is text and no tensor."""
    for part in ast.walk(call.node.args[1]) if len(call.node.args) > 1 else ():
        if isinstance(part, (ast.Name, ast.Attribute)) and not frame.values.get(part, HOST).certain:
            frame.values[part] = HOST


def _setattr(frame: Frame, call: Call) -> Value:
    """Set an attribute; by a name that is not known, any that holds a tensor."""
    if len(call.args) == 3:
        owner, name, value = call.args
        instances = frame.analysis.instances
        if isinstance(name.const, str):
            instances.set_attribute(owner, name.const, value)
        elif value.kind is Kind.TENSOR and owner.definition is not None:
            for label in instances.tensor_attributes(frame.reader, owner.definition):
                instances.set_attribute(owner, label, value)
    return HOST


def _vars(frame: Frame, call: Call) -> Value:
    """The attributes of an object, as a dict: any of its tensors by any name."""
    held = tensor_attributes(frame, call.first)
    return UNKNOWN if held is None else dict_of((), held)


def _map(frame: Frame, call: Call) -> Value:
    if len(call.args) > 1:
        args = [element(value) for value in call.args[1:]]
        return list_of(call_value(frame, call._replace(callee=call.args[0], args=args, kwargs={})))
    return _filter(frame, call)


def _filter(frame: Frame, call: Call) -> Value:
    return list_of(element(call.args[-1])) if call.args else UNKNOWN


def _super(frame: Frame, call: Call) -> Value:
    """`super()` in a method: an instance of the next class in the project."""
    fn: FunctionDef | None = frame.fn
    while fn is not None and fn.cls is None:
        fn = fn.outer
    if fn is None or fn.cls is None:
        return UNKNOWN
    classes = frame.analysis.project.classes
    bases = classes.project_lineage(fn.cls)[1:]
    if any(base.startswith("torch.distributions.") for base in classes.external_bases(fn.cls)):
        return Value(Kind.DISTRIBUTION, frame.analysis.devices.assumed_device(fn))
    if not bases:
        return UNKNOWN
    kind = Kind.MODULE if classes.is_module(fn.cls) else Kind.INSTANCE
    return Value(kind, frame.analysis.devices.assumed_device(fn), ref=bases[0])


def _unknown(frame: Frame, call: Call) -> Value:
    return UNKNOWN


_BUILTINS: dict[str, Callable[[Frame, Call], Value]] = {
    **dict.fromkeys(("list", "tuple", "set", "reversed", "frozenset"), _collection),
    **dict.fromkeys(("max", "min", "abs", "round", "pow"), _arithmetic),
    **dict.fromkeys(("open", "object", "type", "slice"), _unknown),
    "sorted": _collection,
    "iter": _iter,
    "next": _next,
    "dict": _dict,
    "enumerate": _enumerate,
    "zip": _zip,
    "sum": _sum,
    "getattr": _getattr,
    "setattr": _setattr,
    "vars": _vars,
    "map": _map,
    "filter": _filter,
    "super": _super,
}
