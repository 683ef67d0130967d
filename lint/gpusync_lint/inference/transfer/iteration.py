"""What loops run over, and what they take out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import element
from gpusync_lint.domain.training_idioms import LOADER_NAMES
from gpusync_lint.domain.values import CPU_TENSOR, Device, Kind, Value
from gpusync_lint.model.placement import StepEvidence
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    import ast

    from gpusync_lint.inference.frame import Frame


def iterated(frame: Frame, value: Value, node: ast.expr) -> Value:
    """What a loop over a value runs over.

    By convention what is named a loader yields batches of host tensors; an instance is asked for its `__iter__`.
    """
    if value.kind is Kind.UNKNOWN:
        path = (dotted_path(node) or "").lower()
        if path.endswith(LOADER_NAMES):
            loader = Value(Kind.LOADER, elem=CPU_TENSOR._replace(certain=False))
            frame.values[node] = loader
            return loader
    if value.kind is Kind.INSTANCE:
        method = frame.analysis.project.classes.method(value.ref, "__iter__")
        if method is not None:
            return frame.analysis.call(frame, method, [value], {})
    return value


def next_item(frame: Frame, iterator: Value) -> Value:
    """What `next` takes out of an iterator; a loop that asks a data loader for batches is a step loop."""
    if iterator.kind is Kind.LOADER:
        frame.record_step_evidence(StepEvidence.MODEL)
    return element(iterator)


def yields_batches(value: Value) -> bool:
    """Whether a value is a data loader, or a list of batches that hold host tensors."""
    if value.kind is Kind.LOADER:
        return True
    if value.kind is not Kind.LIST or value.elem is None or value.elem.kind is not Kind.TUPLE:
        return False
    items: tuple[Value, ...] = value.elem.items or ()
    return any(item.kind is Kind.TENSOR and item.device is Device.CPU and not item.certain for item in items)
