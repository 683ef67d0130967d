"""The join of values, where paths meet, and the elements of containers.

The join is optimistic: it keeps what one path knows if the other path knows nothing. After

    model = None
    if config.use_model:
        model = Model().cuda()
    output = model(batch)

`model` is the module. A join that forgot everything at such points would see few tensors in real training scripts.
What is not certain lowers the confidence of a finding instead.

Therefore values are not a lattice in the strict sense, and these laws hold:

- The join is idempotent, and commutative up to the order of the keys of a dict.
- On tensors, arrays, host values, moved objects, `NONE` and `UNKNOWN` it is associative, so it is the least upper bound
  of an order in which `NONE` is the least value and a tensor that is not certain is above everything else. (`pageable`
  is an exception: it is lost if two different tensors are joined.)
- On other kinds it is not associative. `UNKNOWN` yields to a module, but a module and a number have only `UNKNOWN` in
  common, so the result of three paths depends on their order.

The fixpoint iteration therefore does not rely on an ascending chain: it limits the number of runs of a function.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import foreign
from gpusync_lint.domain.tensor_ops import device_of
from gpusync_lint.domain.values import (
    ARRAY_ELEMENT,
    GPU_DEVICE,
    HOST,
    MAX_DEPTH,
    MOVED,
    UNKNOWN,
    Device,
    Gradient,
    Kind,
    Value,
    alternatives,
    contents,
    dict_of,
    foreign_value,
    list_of,
    modules,
    tensor,
    tuple_of,
    wider,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_OPTIMISTIC = frozenset(
    {
        Kind.MODULE, Kind.OPTIMIZER, Kind.SCHEDULER, Kind.LOADER, Kind.DEVICE, Kind.SCALER, Kind.DISTRIBUTION,
        Kind.FUNCTION, Kind.CLASS, Kind.INSTANCE, Kind.STREAM, Kind.EVENT, Kind.MOVED, Kind.UNION, Kind.LAMBDA,
        Kind.PARTIAL,
    }
)  # fmt: skip
"""Kinds that remain if the value is unknown on another path."""
_ABSORBS: dict[Kind, frozenset[Kind]] = {
    **dict.fromkeys(_OPTIMISTIC, frozenset({Kind.UNKNOWN})),
    # `total = 0`, then `total += loss` in a loop: on the paths that matter, it is a tensor.
    Kind.TENSOR: frozenset({Kind.UNKNOWN, Kind.HOST, Kind.ARRAY, Kind.MOVED}),
    # `device = "cuda"`, or `device = torch.device(args.device)`.
    Kind.DEVICE: frozenset({Kind.UNKNOWN, Kind.HOST}),
    # A batch that was moved stays on the device, whatever object of a library it passes through.
    Kind.MOVED: frozenset(Kind(number) for number in range(len(Kind.__annotations__))) - {Kind.TENSOR},
}
"""By kind, the other kinds that have no effect in a join with it. No two kinds absorb each other."""


def join(a: Value, b: Value, depth: int = 0) -> Value:
    """The value at a point that two paths reach, one with each value."""
    if a is b or a == b:
        return a
    if depth > MAX_DEPTH:
        return UNKNOWN
    kind, other = a.kind, b.kind
    if kind is Kind.NONE:
        return b
    if other is Kind.NONE:
        return a
    if _has_class(a) and _has_class(b):
        return _join_alternatives(a, b)
    if kind is other:
        return _JOINS.get(kind, _join_to_unknown)(a, b, depth)
    if other in _ABSORBS.get(kind, ()):
        return _absorb(a, b)
    if kind in _ABSORBS.get(other, ()):
        return _absorb(b, a)
    if kind in _SEQUENCES and other in _SEQUENCES:
        return list_of(join(element(a), element(b), depth + 1))
    if kind is Kind.TENSOR and other in _CONTAINERS:
        return _join_tensor_and_container(a, b, depth)
    if other is Kind.TENSOR and kind in _CONTAINERS:
        return _join_tensor_and_container(b, a, depth)
    return UNKNOWN


def _absorb(a: Value, b: Value) -> Value:
    if a.kind is Kind.TENSOR:
        return a._replace(certain=False)
    if a.kind is Kind.DEVICE and b.const is not None:  # `device = 0`, `device = "cuda"`
        device = device_of(b)
        return a if device is None else _join_devices(a, Value(Kind.DEVICE, device), 0)
    return a


def _has_class(value: Value) -> bool:
    """Whether a value is an object of a known class, or of one of several classes, or a function or class of torch."""
    if value.kind is Kind.NAME:
        return value.dotted_name.startswith("torch.")
    return value.kind in _IN_UNIONS and (value.ref is not None or bool(value.items))


def join_all(values: Sequence[Value]) -> Value:
    """The join of several values; unknown if there are none."""
    return reduce(join, values) if values else UNKNOWN


def join_elements(values: Sequence[Value]) -> Value:
    """The join of values that exist side by side: the elements of a container, or the results of several callees.

    Where paths meet, a gradient that waits is kept only if both have one. A loss is computed from all values of a
    container, so one of them is enough.
    """
    joined = join_all(values)
    if joined.gradient is not Gradient.NONE:
        gradient = max(value.gradient for value in values)
        if gradient is not joined.gradient:
            return joined._replace(gradient=gradient)
    return joined


def widened(old: Value, new: Value) -> Value:
    """The value of a parameter or an attribute that held `old` before and is assigned `new` as well.

    If the values have nothing in common, a tensor remains, or else the value of an optimistic kind, the old one first.
    With `join`, a parameter to which one call site passes a tensor and another one a list would be unknown after the
    first round and a tensor or a list after the second one, depending on the order of the calls.
    """
    joined = join(old, new)
    if joined.kind:
        return joined
    for value in (old, new):
        if value.kind is Kind.TENSOR:
            return value._replace(certain=False)
    return next((value for value in (old, new) if value.kind in _OPTIMISTIC), joined)


_SEQUENCES = frozenset({Kind.LIST, Kind.TUPLE})
_CONTAINERS = frozenset({Kind.LIST, Kind.TUPLE, Kind.DICT})
_IN_UNIONS = frozenset({Kind.FUNCTION, Kind.CLASS, Kind.INSTANCE, Kind.UNION, Kind.LAMBDA})
_MAX_ALTERNATIVES = 6


def _join_alternatives(a: Value, b: Value) -> Value:
    """An object of several possible classes, in the order of their names; unknown if there are too many."""
    if a.kind is b.kind is Kind.NAME:
        same = _join_names(a, b)
        if same.kind:
            return same
    first, second = alternatives(a), alternatives(b)
    if len(first) < len(second):
        a, first, second = b, second, first
    if all(one in first for one in second):
        return a
    found = dict.fromkeys((*first, *second))
    if len(found) > _MAX_ALTERNATIVES:
        return UNKNOWN
    return Value(Kind.UNION, items=tuple(sorted(found, key=_place_of)))


def _place_of(value: Value) -> tuple[str, int, str]:
    """Where the definition is that a value refers to: an order that does not depend on the order of the paths."""
    definition, bound = value.definition, value.bound
    others = f"{value.kind!r} {'' if bound is None else _place_of(bound)}"
    if definition is None:
        return (str(value.ref), 0, others)
    if value.kind is Kind.LAMBDA:
        node, fn = definition
        return (fn.file.path, node.lineno, f"{others} {node.col_offset:06}")
    return (definition.file.path, getattr(definition.node, "lineno", 0), others)


def _join_tensors(a: Value, b: Value, depth: int) -> Value:
    joined = tensor(
        wider(a.device, b.device),
        # `if torch.cuda.is_available(): x = x.cuda()`: a tensor that one path moves is on the device, since the other
        # path is for machines without a GPU; but that is not certain.
        certain=a.certain and b.certain and (a.device >= Device.ASSUMED) == (b.device >= Device.ASSUMED),
        zero_dim=a.zero_dim if a.zero_dim == b.zero_dim else None,
        boolean=a.boolean and b.boolean,
        pinned=a.pinned and b.pinned,
        # A mask on one path only, as in `if mask is not None: x = x[mask]`, may never be used.
        gradient=min(a.gradient, b.gradient) or max(a.gradient, b.gradient),
    )
    if a.elem is not None or b.elem is not None:
        joined = joined._replace(elem=_join_optional(a.elem, b.elem, depth + 1))
    return joined if a.ref is None or a.ref != b.ref else joined._replace(ref=a.ref)


def _join_tensor_and_container(tensor: Value, container: Value, depth: int) -> Value:
    """The results of a function that returns a tensor, or a tuple with that tensor in it if it is asked for more."""
    return tensor._replace(elem=_join_optional(tensor.elem, container, depth + 1))


def _join_modules(a: Value, b: Value, depth: int) -> Value:
    """A module of one of several classes of the project keeps them in `items`."""
    found: dict[Value, None] = {}
    if a.ref != b.ref:
        for module in (*modules(a), *modules(b)):
            if module.definition is not None:
                found[module._replace(device=Device.UNKNOWN, made_with=None)] = None
    several = 0 < len(found) <= _MAX_ALTERNATIVES
    return Value(
        Kind.MODULE,
        wider(a.device, b.device),
        items=tuple(sorted(found, key=_place_of)) if several else a.items if a.items == b.items else None,
        elem=_join_optional(a.elem, b.elem, depth + 1),
        ref=a.ref if a.ref == b.ref else None,
        made_with=a.made_with if a.made_with == b.made_with else None,
    )


def _join_devices(a: Value, b: Value, depth: int) -> Value:
    device = wider(a.device, b.device)
    return a if a.device is device else b if b.device is device else GPU_DEVICE


def _join_loaders(a: Value, b: Value, depth: int) -> Value:
    elem = join(a.elem or UNKNOWN, b.elem or UNKNOWN, depth + 1)
    return Value(Kind.LOADER, min(a.device, b.device), pinned=a.pinned and b.pinned, elem=elem)


def _join_tuples(a: Value, b: Value, depth: int) -> Value:
    first, second = a.items or (), b.items or ()
    if len(first) == len(second):
        joined = tuple_of(join(x, y, depth + 1) for x, y in zip(first, second, strict=True))
        return joined if a.ref is None or a.ref != b.ref else joined._replace(ref=a.ref)
    return list_of(join(element(a), element(b), depth + 1))


def _join_lists(a: Value, b: Value, depth: int) -> Value:
    return list_of(_join_optional(a.elem, b.elem, depth + 1))


def _join_dicts(a: Value, b: Value, depth: int) -> Value:
    """A key that only one dict has keeps its value."""
    left: dict[str, Value] = dict(a.items or ())
    right: dict[str, Value] = dict(b.items or ())
    merged = left | right
    for key in left.keys() & right.keys():
        merged[key] = join(left[key], right[key], depth + 1)
    return dict_of(tuple(merged.items()), _join_optional(a.elem, b.elem, depth + 1))


def _join_optional(a: Value | None, b: Value | None, depth: int) -> Value | None:
    if a is None or b is None:
        return a if b is None else b
    return join(a, b, depth)


def _join_distributions(a: Value, b: Value, depth: int) -> Value:
    """It validates its arguments, which waits, if one of them does."""
    validates = any(value.argument("validate_args").const is not False for value in (a, b))
    ref = a.ref if a.ref == b.ref else None
    return Value(Kind.DISTRIBUTION, wider(a.device, b.device), ref=ref, made_with=() if validates else a.made_with)


def _join_foreign(a: Value, b: Value, depth: int) -> Value:
    return a if a.ref == b.ref else UNKNOWN


def _join_names(a: Value, b: Value, depth: int = 0) -> Value:
    """`torch.cuda.FloatTensor if use_cuda else torch.FloatTensor` is the former; other names have nothing in common."""
    first, second = a.dotted_name, b.dotted_name
    if not first or first.replace("torch.cuda.", "torch.") != second.replace("torch.cuda.", "torch."):
        return UNKNOWN
    return a if first.startswith("torch.cuda.") else b


def _join_to_unknown(a: Value, b: Value, depth: int) -> Value:
    return UNKNOWN


def _join_to_host(a: Value, b: Value, depth: int) -> Value:
    return HOST


def _join_to_kind(a: Value, b: Value, depth: int) -> Value:
    return Value(a.kind)


_JOINS: dict[Kind, Callable[[Value, Value, int], Value]] = {
    Kind.TENSOR: _join_tensors,
    Kind.MODULE: _join_modules,
    Kind.DEVICE: _join_devices,
    Kind.LOADER: _join_loaders,
    Kind.TUPLE: _join_tuples,
    Kind.LIST: _join_lists,
    Kind.DICT: _join_dicts,
    Kind.DISTRIBUTION: _join_distributions,
    Kind.FOREIGN: _join_foreign,
    Kind.NAME: _join_names,
    **dict.fromkeys((Kind.HOST, Kind.FLAG), _join_to_host),
    **dict.fromkeys((Kind.ARRAY, Kind.OPTIMIZER, Kind.DTYPE, Kind.SCALER, Kind.STREAM), _join_to_kind),
}
"""By kind, the join of two values of that kind that differ; unknown for other kinds."""

_ELEMENTS: dict[Kind, Value] = {
    **dict.fromkeys((Kind.HOST, Kind.DICT), HOST),
    Kind.ARRAY: ARRAY_ELEMENT,
    Kind.RECORDS: Value(Kind.RECORDS),
    Kind.MOVED: MOVED,
}


def element(value: Value) -> Value:
    """An element of an iterable: what a loop over it binds."""
    kind = value.kind
    if kind is Kind.TENSOR:
        if value.elem is not None:
            inside = element(value.elem)
            joined = join(element(value._replace(elem=None)), inside)
            return joined if joined.kind else inside
        boolean = value.boolean and value.certain
        same = value.zero_dim is None and boolean is value.boolean
        return value if same else value._replace(zero_dim=None, boolean=boolean)
    if kind is Kind.LIST or kind is Kind.LOADER:
        return value.elem or UNKNOWN
    if kind is Kind.TUPLE:
        return join_elements(value.items or ())
    if kind is Kind.MODULE:  # a `ModuleList` or a `Sequential`
        return part_of(value)
    if kind is Kind.FOREIGN:
        return foreign_value(foreign.types()[value.ref].item)
    return _ELEMENTS.get(kind, UNKNOWN)


def part_of(module: Value) -> Value:
    """A module inside a module that contains others: on the same device, of an unknown class unless that is known."""
    if module.elem is None:
        return Value(Kind.MODULE, module.device)
    return module.elem._replace(device=module.device)


def lookup(container: Value, key: object) -> Value:
    """The value under a constant key or index of a container; None as the key means that it is unknown."""
    if container.kind is Kind.DICT:
        return _lookup_in_dict(container, key)
    if container.kind is Kind.TUPLE and isinstance(key, int) and not isinstance(key, bool):
        items: tuple[Value, ...] = container.items or ()
        if -len(items) <= key < len(items):
            return items[key]
    return element(container)


def _lookup_in_dict(container: Value, key: object) -> Value:
    pairs: tuple[tuple[str, Value], ...] = container.items or ()
    for label, item in pairs:
        if label == key:
            return item
    return join_elements(contents(container)) if key is None else container.elem or UNKNOWN
