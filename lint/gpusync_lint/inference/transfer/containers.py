"""Displays, comprehensions and subscripts."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import foreign
from gpusync_lint.domain.lattice import element, join, join_elements, lookup, part_of
from gpusync_lint.domain.tensor_ops import indexed_gradient
from gpusync_lint.domain.values import (
    GPU_TENSOR,
    HOST,
    UNKNOWN,
    Kind,
    Value,
    dict_of,
    foreign_value,
    list_of,
    tensor_like,
    tuple_of,
)
from gpusync_lint.inference.tables import evaluates
from gpusync_lint.inference.transfer.assignments import MAX_KEYS, bind, is_key, item_path
from gpusync_lint.inference.transfer.iteration import iterated
from gpusync_lint.inference.transfer.names import held_items, kept_on_host
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusync_lint.inference.frame import Frame


_RECORD = 6
"""The maximum length of a list whose elements are told apart."""


@evaluates(ast.Tuple)
def tuple_display(frame: Frame, node: ast.Tuple) -> Value:
    """`(a, b)`. The elements of a long tuple are not told apart."""
    values = [frame.eval(item) for item in node.elts]
    return tuple_of(values) if len(values) <= MAX_KEYS else list_of(join_elements(values))


@evaluates(ast.List, ast.Set)
def list_display(frame: Frame, node: ast.List | ast.Set) -> Value:
    """`[a, b]`, `{a, b}`."""
    values = [frame.eval(item) for item in node.elts]
    joined = join_elements(values) if values else None
    if joined is UNKNOWN and isinstance(node, ast.List) and _is_record(values):
        return tuple_of(values)
    return list_of(joined)


def _is_record(values: list[Value]) -> bool:
    """Whether the elements of a list have nothing in common, as those of `[loss, {"accuracy": accuracy}]`."""
    return (
        len(values) <= _RECORD
        and any(value.kind is Kind.TENSOR for value in values)
        and all(value.kind for value in values)
    )


@evaluates(ast.Dict)
def dict_display(frame: Frame, node: ast.Dict) -> Value:
    """`{key: value, **other}`."""
    pairs: list[tuple[str, Value]] = []
    rest: Value | None = None
    for key, item in zip(node.keys, node.values, strict=True):
        value = frame.eval(item)
        if key is None:
            if value.kind is Kind.DICT:
                pairs = list(dict([*pairs, *(value.items or ())]).items())[:MAX_KEYS]
                if value.elem is not None:
                    rest = value.elem if rest is None else join_elements([rest, value.elem])
            continue
        label = frame.eval(key).const
        if isinstance(label, str) and len(pairs) < MAX_KEYS:
            pairs.append((label, value))
        else:
            rest = value if rest is None else join_elements([rest, value])
    return dict_of(tuple(pairs), rest)


@evaluates(ast.Starred)
def starred(frame: Frame, node: ast.Starred) -> Value:
    """`*a`."""
    return element(frame.eval(node.value))


@evaluates(ast.ListComp, ast.SetComp, ast.GeneratorExp)
def comprehension(frame: Frame, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
    """`[a for b in c if d]`; also sets and generators."""
    mark = _enter_generators(frame, node.generators)
    value = frame.eval(node.elt)
    _leave_generators(frame, mark)
    return list_of(value)


@evaluates(ast.DictComp)
def dict_comprehension(frame: Frame, node: ast.DictComp) -> Value:
    """`{a: b for c in d}`."""
    mark = _enter_generators(frame, node.generators)
    frame.eval(node.key)
    value = frame.eval(node.value)
    _leave_generators(frame, mark)
    return dict_of((), value)


def _enter_generators(frame: Frame, generators: list[ast.comprehension]) -> int:
    """Bind the targets of a comprehension. Returns the mark to roll back to."""
    mark = frame.store.mark()
    frame.comprehensions += 1
    for generator in generators:
        bind(frame, generator.target, element(iterated(frame, frame.eval(generator.iter), generator.iter)))
        for condition in generator.ifs:
            frame.eval(condition)
    return mark


def _leave_generators(frame: Frame, mark: int) -> None:
    frame.comprehensions -= 1
    frame.store.rollback(mark)


@evaluates(ast.Subscript)
def subscript(frame: Frame, node: ast.Subscript) -> Value:
    """`base[index]`."""
    base = frame.eval(node.value)
    index = frame.eval(node.slice)
    if is_key(node.slice):
        path = dotted_path(node.value)
        known = frame.store.get(item_path(path, index.const)) if path else None
        if known is not None:
            return known
    handler = _SUBSCRIPTS.get(base.kind)
    value = UNKNOWN if handler is None else handler(frame, node, base, index)
    return kept_on_host(value) if index.const in frame.host_fields else value


def _item_of_tensor(frame: Frame, node: ast.Subscript, base: Value, index: Value) -> Value:
    if base.elem is not None and base.elem.kind:
        item = _SUBSCRIPTS[base.elem.kind](frame, node, base.elem, index)
        if isinstance(index.const, str):
            return item
        if not isinstance(node.slice, ast.Slice):
            joined = join(item, _item_of_tensor(frame, node, base._replace(elem=None), index))
            return joined if joined.kind else item
    if isinstance(index.const, str):  # a batch that is a dict
        return base
    return tensor_like(base, base.certain, None, base.boolean, False, indexed_gradient(base, index))


def _item_of_sequence(frame: Frame, node: ast.Subscript, base: Value, index: Value) -> Value:
    return base if isinstance(node.slice, ast.Slice) else lookup(base, index.const)


def _item_of_dict(frame: Frame, node: ast.Subscript, base: Value, index: Value) -> Value:
    return lookup(base, index.const or None)  # the key of a loop over a dict is an empty string


def _item_of_foreign(frame: Frame, node: ast.Subscript, base: Value, index: Value) -> Value:
    """An item of a value of another framework, or of a function that it wraps: `kernel[grid]`."""
    type_name = base.ref if base.kind is Kind.FOREIGN else frame.analysis.tracing.wrapper(base.ref)
    return foreign_value(foreign.types()[type_name].item) if type_name else UNKNOWN


def _item_of_batch(frame: Frame, node: ast.Subscript, base: Value, index: Value) -> Value:
    return GPU_TENSOR._replace(certain=False) if isinstance(index.const, str) else base


def _item_of_records(frame: Frame, node: ast.Subscript, base: Value, index: Value) -> Value:
    return Value(Kind.RECORDS)


def _item_of_module(frame: Frame, node: ast.Subscript, base: Value, index: Value) -> Value:
    return base if isinstance(node.slice, ast.Slice) else part_of(base)


def _item_of_array(frame: Frame, node: ast.Subscript, base: Value, index: Value) -> Value:
    return Value(Kind.ARRAY) if isinstance(node.slice, ast.Slice) else element(base)


def _item_of_instance(frame: Frame, node: ast.Subscript, base: Value, index: Value) -> Value:
    """The result of `__getitem__` of a class of the project, or an item of what it is by its base."""
    method = frame.analysis.project.classes.method(base.ref, "__getitem__") if base.definition is not None else None
    if method is not None:
        return frame.analysis.call(frame, method, [base, index], {})
    held = held_items(frame, base)
    return UNKNOWN if held is None else _SUBSCRIPTS[held.kind](frame, node, held, index)


def _item_of_host(frame: Frame, node: ast.Subscript, base: Value, index: Value) -> Value:
    return HOST


_SUBSCRIPTS: dict[Kind, Callable[[Frame, ast.Subscript, Value, Value], Value]] = {
    Kind.TENSOR: _item_of_tensor,
    Kind.LIST: _item_of_sequence,
    Kind.TUPLE: _item_of_sequence,
    Kind.DICT: _item_of_dict,
    Kind.FOREIGN: _item_of_foreign,
    Kind.FUNCTION: _item_of_foreign,
    Kind.MOVED: _item_of_batch,
    Kind.RECORDS: _item_of_records,
    Kind.MODULE: _item_of_module,
    Kind.ARRAY: _item_of_array,
    Kind.HOST: _item_of_host,
    Kind.INSTANCE: _item_of_instance,
}


@evaluates(ast.Slice)
def slice_bounds(frame: Frame, node: ast.Slice) -> Value:
    """`lower:upper:step`."""
    for bound in (node.lower, node.upper, node.step):
        if bound is not None:
            frame.eval(bound)
    return HOST
