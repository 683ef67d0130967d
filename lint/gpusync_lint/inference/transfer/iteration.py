"""Iteration: the values that loops and `next` take out of iterables."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import element, join_all
from gpusync_lint.domain.training_idioms import LOADER_NAMES
from gpusync_lint.domain.values import CPU_TENSOR, UNKNOWN, Device, Kind, Value, alternatives, list_of
from gpusync_lint.inference.transfer.names import held_items
from gpusync_lint.model.placement import StepEvidence
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame

_VECTORS = frozenset({"arange", "linspace", "logspace", "randperm"})
_OF_SAME_SHAPE = frozenset({"cuda", "double", "flip", "float", "int", "long", "to"})


def iterated(frame: Frame, value: Value, node: ast.expr) -> Value:
    """The iterable that a loop over a value iterates over: the result of `__iter__` for an instance.

    An unknown value with the name of a data loader is one, by convention.
    """
    if value.kind is Kind.UNKNOWN:
        path = (dotted_path(node) or "").lower()
        if path.endswith(LOADER_NAMES):
            loader = Value(Kind.LOADER, elem=CPU_TENSOR._replace(certain=False))
            frame.values[node] = loader
            return loader
    if value.kind is Kind.UNION:
        return join_all([iterated(frame, one, node) for one in alternatives(value)])
    if value.kind is Kind.INSTANCE:
        method = frame.analysis.project.classes.method(value.ref, "__iter__")
        if method is not None:
            found = frame.analysis.call(frame, method, [value], {})
            # `def __iter__(self): return self`
            return list_of(next_item(frame, found)) if found.kind is Kind.INSTANCE else found
        return held_items(frame, value) or value
    if value.kind is Kind.TENSOR and _is_vector(node):
        return list_of(value._replace(zero_dim=True))
    return value


def _is_vector(node: ast.expr) -> bool:
    """Whether an expression creates a tensor with one dimension: `torch.randperm(n).long()[:k]`."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        node = node.value
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _VECTORS:
            return True
        if node.func.attr not in _OF_SAME_SHAPE:
            return False
        node = node.func.value
    return False


def next_item(frame: Frame, iterator: Value) -> Value:
    """The result of `next(iterator)`. Code that takes batches from a data loader is part of a step."""
    if iterator.kind is Kind.LOADER:
        frame.record_step_evidence(StepEvidence.MODEL)
    if iterator.kind is Kind.INSTANCE:
        method = frame.analysis.project.classes.method(iterator.ref, "__next__")
        return UNKNOWN if method is None else frame.analysis.call(frame, method, [iterator], {})
    return element(iterator)


def yields_batches(value: Value) -> bool:
    """Whether a value is a data loader, or a list of batches of host tensors."""
    if value.kind is Kind.LOADER:
        return True
    if value.kind is not Kind.LIST or value.elem is None or value.elem.kind is not Kind.TUPLE:
        return False
    items: tuple[Value, ...] = value.elem.items or ()
    return any(item.kind is Kind.TENSOR and item.device is Device.CPU and not item.certain for item in items)
