"""Calls, by the kind of the callee."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import join_elements
from gpusync_lint.domain.values import GPU_TENSOR, UNKNOWN, Gradient, Kind, Value, alternatives
from gpusync_lint.inference.tables import CALLS, Call, calls
from gpusync_lint.inference.transfer.module_calls import call_module
from gpusync_lint.model.placement import StepEvidence

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame


def call_value(frame: Frame, call: Call) -> Value:
    """The result of a call."""
    handler = CALLS.get(call.callee.kind)
    result = handler(frame, call) if handler is not None else None
    if result is None:
        frame.record_unknown_call(call.args, call.kwargs)
        return UNKNOWN
    return result


@calls(Kind.UNION)
def call_union(frame: Frame, call: Call) -> Value:
    """Call each of several functions, classes or objects."""
    return join_elements([call_value(frame, call._replace(callee=one)) for one in alternatives(call.callee)])


@calls(Kind.PARTIAL)
def call_partial(frame: Frame, call: Call) -> Value:
    """Call a `functools.partial`: what it was made of, with its arguments before those of the call."""
    made = call.callee
    args = [*(made.items or ()), *call.args]
    return call_value(
        frame, call._replace(callee=made.elem or UNKNOWN, args=args, kwargs=dict(made.made_with or ()) | call.kwargs)
    )


@calls(Kind.INSTANCE)
def call_instance(frame: Frame, call: Call) -> Value | None:
    """Call an instance of a project class: its `__call__`."""
    method = frame.analysis.project.classes.method(call.callee.ref, "__call__")
    if method is not None:
        return frame.analysis.call(frame, method, [call.callee, *call.args], call.kwargs)
    if isinstance(call.node.func, ast.Name) and call.node.func.id == "self":  # a mixin class for modules
        return call_module(frame, call._replace(callee=Value(Kind.MODULE, frame.assumed_device())))
    return None


@calls(Kind.MOVED)
def call_moved(frame: Frame, call: Call) -> Value:
    """Call an unknown object that was moved to a device: a model."""
    frame.record_step_evidence(StepEvidence.MODEL)
    gradient = Gradient.FLOWS if frame.tracks_gradients() else Gradient.NONE
    return GPU_TENSOR._replace(certain=False, gradient=gradient)
