"""Calls of Python's builtin functions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import element, join, join_elements
from gpusync_lint.domain.training_idioms import is_batch_iterator
from gpusync_lint.domain.values import (
    ARRAY,
    HOST,
    LOADER,
    UNKNOWN,
    Kind,
    Value,
    alternatives,
    dict_of,
    list_of,
    tuple_of,
)
from gpusync_lint.inference.transfer.calling import call_value
from gpusync_lint.inference.transfer.iteration import iterated, next_item
from gpusync_lint.inference.transfer.names import attribute_of, held_items, tensor_attributes
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusync_lint.inference.frame import Frame
    from gpusync_lint.inference.tables import Call
    from gpusync_lint.project.symbols import FunctionDef


_WITH_METHODS = frozenset({Kind.INSTANCE, Kind.MODULE})


def call_builtin(frame: Frame, name: str, call: Call) -> Value:
    """The result of a builtin function: a host value, unless the table below says otherwise."""
    handler = _BUILTINS.get(name)
    return HOST if handler is None else handler(frame, call)


def _collection(frame: Frame, call: Call) -> Value:
    """`set`, `reversed`, `frozenset`, `sorted`."""
    return list_of(element(call.args[0])) if call.args else list_of(None)


def _sequence(frame: Frame, call: Call) -> Value:
    """`list`, `tuple`. Elements that have nothing in common are told apart: `list(zip(*samples))`."""
    items = _collection(frame, call)
    return call.first if call.first.kind is Kind.TUPLE and _is_mixed(items.elem) else items


def _is_mixed(value: Value | None) -> bool:
    """Whether a value is the join of values, or of lists of values, that have nothing in common."""
    return value is UNKNOWN or (value is not None and value.kind is Kind.LIST and value.elem is UNKNOWN)


def _sorted(frame: Frame, call: Call) -> Value:
    _call_key(frame, call)
    return _collection(frame, call)


def _call_key(frame: Frame, call: Call) -> None:
    """Call the function by which `sorted`, `min` or `max` compares elements: `key=lambda pair: pair[1].item()`."""
    key = call.kwargs.get("key", UNKNOWN)
    if key.kind and call.args:
        call_value(frame, call._replace(callee=key, args=[element(call.args[0])], kwargs={}))


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


def dict_from(frame: Frame, call: Call) -> Value:
    """`dict`, `OrderedDict`: of another dict, of pairs, of keyword arguments."""
    given = call.first
    named = dict_of(tuple(call.kwargs.items()), None)
    if given.kind is Kind.LIST or given.kind is Kind.TUPLE:
        pair = element(given)
        return dict_of(named.items or (), pair.items[1]) if pair.items is not None and len(pair.items) == 2 else named
    if not call.args or given.kind is Kind.HOST:
        return named
    return join(given, named) if call.kwargs and given.kind is Kind.DICT else given


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
    if len(given) != len(call.args):
        return list_of(tuple_of([element(value) for value in call.args]))
    pairs = zip(call.args, given, strict=True)
    return list_of(tuple_of([element(iterated(frame, value, node)) for value, node in pairs]))


def _arithmetic(frame: Frame, call: Call) -> Value:
    """`abs`, `round`, `pow`."""
    found = _of_numbers(frame, call)
    is_one = found.kind is Kind.TENSOR and all(value.zero_dim for value in call.args if value.kind is Kind.TENSOR)
    return found._replace(zero_dim=True if is_one else None) if found.kind is Kind.TENSOR else found


def _extreme(frame: Frame, call: Call) -> Value:
    """`max`, `min`: of several values, or of a sequence. Only tensors with one element can be compared so."""
    found = _of_numbers(frame, call)
    if found.kind is not Kind.TENSOR:
        return found
    # A tuple of what is tensors by convention only may well be a size.
    may_be_size = not found.certain and len(call.args) == 1 and call.first.kind is Kind.TUPLE
    return found._replace(zero_dim=None if may_be_size else True)


def _sum(frame: Frame, call: Call) -> Value:
    return _of_numbers(frame, call)


def _of_numbers(frame: Frame, call: Call) -> Value:
    for value in call.args:
        if value.kind is Kind.FOREIGN:
            return value
    _call_key(frame, call)
    given = [held_items(frame, value) or value for value in call.args]
    values = [element(value) if value.kind in (Kind.LIST, Kind.TUPLE) else value for value in given]
    tensors = [value for value in values if value.kind is Kind.TENSOR]
    if tensors:
        return join_elements(tensors)._replace(zero_dim=tensors[0].zero_dim)
    if any(value.kind is Kind.ARRAY for value in values):
        return ARRAY
    if values and all(value.kind is Kind.TUPLE for value in values):  # `max(pairs, key=...)`
        return join_elements(values)
    return UNKNOWN if any(value.kind is Kind.UNKNOWN for value in values) else HOST


def _getattr(frame: Frame, call: Call) -> Value:
    """An attribute; by a name that is not known, any tensor that the object holds."""
    if len(call.args) >= 2 and isinstance(call.args[1].const, str):
        return attribute_of(frame, call.args[0], call.args[1].const)
    _name_is_text(frame, call)
    named = _attributes_named(frame, call)
    if named is not None:
        return named
    return tensor_attributes(frame, call.first) or _named_methods(frame, call.first)


def _attributes_named(frame: Frame, call: Call) -> Value | None:
    """Any tensor with the prefix of `getattr(self, "loss_" + name)`, own or of a subclass; None if there is none."""
    node, owner = call.node.args[1] if len(call.node.args) > 1 else None, call.first
    first = node.left if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) else node
    first = first.values[0] if isinstance(first, ast.JoinedStr) and first.values else first
    prefix = first.value if isinstance(first, ast.Constant) else None
    if not isinstance(prefix, str) or owner.kind not in _WITH_METHODS or owner.definition is None:
        return None
    classes = frame.analysis.project.classes
    found = [
        frame.analysis.instances.attribute(frame.reader, cls, name)
        for cls in (*classes.project_lineage(owner.ref), *classes.subclasses(owner.ref))
        for name in cls.attributes
        if name.startswith(prefix)
    ]
    tensors = [value for value in found if value is not None and value.kind is Kind.TENSOR]
    return join_elements(tensors) if tensors else None


def _named_methods(frame: Frame, owner: Value) -> Value:
    """The methods of an object that strings of the file name: `getattr(hook, name)` and `self.call("after_step")`."""
    named = frame.fn.file.quoted_words
    found = []
    for one in alternatives(owner):
        if one.kind in _WITH_METHODS and one.definition is not None:
            for cls in frame.analysis.project.classes.project_lineage(one.ref):
                found += [attribute_of(frame, one, name) for name in cls.methods if name in named]
    if found:
        return join_elements(list(dict.fromkeys(found)))
    return UNKNOWN if owner.kind in _WITH_METHODS else HOST


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
    return list_of(element(call.args[-1])) if call.args else UNKNOWN


def _filter(frame: Frame, call: Call) -> Value:
    if len(call.args) == 2:
        call_value(frame, call._replace(callee=call.args[0], args=[element(call.args[1])], kwargs={}))
    return list_of(element(call.args[-1])) if call.args else UNKNOWN


def _super(frame: Frame, call: Call) -> Value:
    """`super()` in a method: an instance of the next class in the project, bound to the class of the method."""
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
    device = frame.analysis.devices.assumed_device(fn)
    return Value(kind, device, ref=bases[0], bound=Value(Kind.CLASS, ref=fn.cls))


def _text(frame: Frame, call: Call) -> Value:
    """`str`, `repr`, `print`: the methods of instances of the project that convert them to text."""
    for value in call.args:
        as_text(frame, value)
    return call.first if call.first.kind is Kind.DEVICE else HOST  # `"cuda" in str(x.device)`


def as_text(frame: Frame, value: Value) -> None:
    """Call the method that converts an instance of a class of the project to text."""
    if value.kind is Kind.INSTANCE:
        classes = frame.analysis.project.classes
        method = classes.method(value.ref, "__str__") or classes.method(value.ref, "__repr__")
        if method is not None:
            frame.analysis.call(frame, method, [value], {})


def _unknown(frame: Frame, call: Call) -> Value:
    return UNKNOWN


_BUILTINS: dict[str, Callable[[Frame, Call], Value]] = {
    **dict.fromkeys(("list", "tuple"), _sequence),
    **dict.fromkeys(("set", "reversed", "frozenset"), _collection),
    **dict.fromkeys(("max", "min"), _extreme),
    **dict.fromkeys(("abs", "round", "pow"), _arithmetic),
    **dict.fromkeys(("open", "object", "type", "slice"), _unknown),
    **dict.fromkeys(("str", "repr", "print"), _text),
    "sorted": _sorted,
    "iter": _iter,
    "next": _next,
    "dict": dict_from,
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
