"""Assignments to names, attributes, subscripts, and tuples of them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import element, join, join_elements, widened
from gpusync_lint.domain.tensor_ops import combine
from gpusync_lint.domain.values import ARRAY, Device, Kind, Value, dict_of, list_of, tuple_of
from gpusync_lint.inference.tables import executes
from gpusync_lint.inference.transfer.names import ITEMS, held_items, value_and_path
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame

MAX_KEYS = 64
"""The maximum number of keys of a dict that have values of their own."""


@executes(ast.Assign)
def assign(frame: Frame, node: ast.Assign) -> None:
    """`target = other = value`."""
    value = frame.computed(node.value)
    for target in node.targets:
        if isinstance(target, ast.Tuple) and value.kind is not Kind.TUPLE and isinstance(node.value, ast.Call):
            value = frame.tuples_of_call().get(len(target.elts), value)
        bind(frame, target, value)


@executes(ast.AnnAssign)
def annotated_assign(frame: Frame, node: ast.AnnAssign) -> None:
    """`target: annotation = value`. The annotation counts if the value is unknown."""
    declared = frame.declared(node.annotation)
    if node.value is not None:
        value = frame.eval(node.value)
        bind(frame, node.target, declared if value.kind is Kind.UNKNOWN else value)
    elif declared.kind:
        bind(frame, node.target, declared)


@executes(ast.AugAssign)
def augmented_assign(frame: Frame, node: ast.AugAssign) -> None:
    """`target += value`."""
    old = frame.eval(node.target)
    value = frame.eval(node.value)
    if Kind.TENSOR in (old.kind, value.kind):
        result = combine(old, value)
        if old.kind is Kind.TENSOR:  # in place: the tensor keeps its device and dtype
            result = result._replace(device=old.device, boolean=old.boolean)
    elif old.kind is Kind.LIST and value.kind in (Kind.LIST, Kind.TUPLE):
        result = join(old, list_of(element(value)))
    elif Kind.FOREIGN in (old.kind, value.kind):
        result = old if old.kind is Kind.FOREIGN else value
    elif ARRAY in (old, value):
        result = ARRAY
    else:
        result = old if old.kind is value.kind else join(old, value)
    bind(frame, node.target, result)


def bind(frame: Frame, target: ast.expr, value: Value) -> None:
    """Assign a value to a target."""
    if isinstance(target, ast.Name):
        if frame.extended:
            value = frame.with_extension(target.id, value)
        frame.store.set_name(target.id, value)
        frame.values[target] = value
    elif isinstance(target, (ast.Tuple, ast.List)):
        _unpack(frame, target.elts, value)
    elif isinstance(target, ast.Attribute):
        owner, path = value_and_path(frame, target.value)
        if path is not None:
            frame.store.set(f"{path}.{target.attr}", value)
        frame.analysis.instances.set_attribute(frame.values.get(target.value, owner), target.attr, value)
    elif isinstance(target, ast.Starred):
        bind(frame, target.value, list_of(element(value)))
    elif isinstance(target, ast.Subscript):
        _store(frame, target, value)


def rebind(frame: Frame, target: ast.expr, value: Value) -> None:
    """Store the new value of an object that was changed in place: a list that was extended, a module that was moved."""
    if isinstance(target, ast.Subscript):
        _store(frame, target, value)
        return
    path = dotted_path(target)
    if path is None:
        return
    holder = frame.eval(target)
    if holder.kind is Kind.INSTANCE and held_items(frame, holder) is not None:
        frame.analysis.instances.set_attribute(holder, ITEMS, value)
        return
    frame.store.set(path, value)
    if isinstance(target, ast.Name):
        frame.extend_outer(target.id, value)
    if isinstance(target, ast.Attribute):
        owner = frame.values.get(target.value)
        if owner is None:
            owner = frame.eval(target.value)
        frame.analysis.instances.set_attribute(owner, target.attr, value)


def _unpack(frame: Frame, targets: list[ast.expr], value: Value) -> None:
    held = value.elem if value.kind is Kind.TENSOR and value.elem is not None else value
    items = held.items if held.kind is Kind.TUPLE else None
    starred = any(isinstance(target, ast.Starred) for target in targets)
    if items is not None and len(items) == len(targets) and not starred:
        for target, item in zip(targets, items, strict=True):
            bind(frame, target, item)
        return
    each = element(value) if value.kind is not Kind.MOVED else value
    for target in targets:
        bind(frame, target, each)


def is_key(index: ast.expr) -> bool:
    """Whether an index is written as a string or a number."""
    return isinstance(index, ast.Constant) and index.value.__class__ in (str, int)


def item_path(path: str, key: str | int) -> str:
    """The path under which the environment keeps an item of something of unknown type."""
    return f"{path}.[{key}]"


def _moves_batch(frame: Frame, target: ast.Subscript, base: Value) -> bool:
    """Whether `batch[key] = batch[key].to(device)` moves the parts of something that is a batch by convention."""
    if base.certain or base.device is not Device.CPU or not isinstance(target.slice, ast.Name):
        return False
    statement = frame.statement
    moved = statement.value if isinstance(statement, ast.Assign) else None
    if not frame.loops or statement not in getattr(frame.loops[-1], "body", ()):  # `if key != "meta":`
        return False
    return isinstance(moved, ast.Call) and getattr(moved.func, "attr", "") in ("to", "cuda")


def _store_in_tensor(frame: Frame, target: ast.Subscript, path: str, base: Value, index: Value, value: Value) -> None:
    """`x[index] = value`, and `batch[0] = value` for something that is a batch by convention."""
    if value.on_device and _moves_batch(frame, target, base):
        frame.store.set(path, base._replace(device=value.device, pageable=False, pinned=False))
    elif not base.certain and base.device is Device.CPU and is_key(target.slice):
        frame.store.set(item_path(path, index.const), value)


def _store(frame: Frame, target: ast.Subscript, value: Value) -> None:
    """`target[index] = value`."""
    base = frame.eval(target.value)
    index = frame.eval(target.slice)
    path = dotted_path(target.value)
    if path is None:
        return
    if base.elem is not None and base.elem.kind is Kind.DICT and isinstance(index.const, str):
        base = base.elem
    elif base.kind is Kind.INSTANCE:
        method = frame.analysis.project.classes.method(base.ref, "__setitem__")
        if method is not None:
            frame.analysis.call(frame, method, [base, index, value], {})
            return
        base = held_items(frame, base) or base
    if base.kind is Kind.DICT:
        pairs = base.items or ()
        if isinstance(index.const, str) and len(pairs) < MAX_KEYS:
            kept = tuple(pair for pair in pairs if pair[0] != index.const)
            wider = dict_of((*kept, (index.const, value)), base.elem)
        else:
            wider = dict_of(pairs, value if base.elem is None else join_elements([base.elem, value]))
        rebind(frame, target.value, wider)
    elif base.kind is Kind.MODULE and value.kind is Kind.MODULE and base.ref.__class__ is str:
        rebind(frame, target.value, base._replace(elem=value if base.elem is None else join(base.elem, value)))
    elif base.kind is Kind.LIST:
        wider = list_of(value if base.elem is None else widened(base.elem, value))
        if wider != base:
            rebind(frame, target.value, wider)
    elif base.kind is Kind.TENSOR:
        _store_in_tensor(frame, target, path, base, index, value)
    elif base.kind is Kind.TUPLE and base.items and is_key(target.slice):  # a list of which the elements are told apart
        items = list(base.items)
        if isinstance(index.const, int) and index.const < len(items):
            items[index.const] = value
            frame.store.set(path, tuple_of(items))
    elif base.kind is Kind.UNKNOWN and isinstance(index.const, str):
        frame.store.set(item_path(path, index.const), value)
