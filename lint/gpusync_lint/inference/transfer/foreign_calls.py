"""Calls of functions and values of frameworks other than torch, as their catalogues describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusync_lint.catalogue import foreign
from gpusync_lint.domain.values import HOST, UNKNOWN, Gradient, Kind, Value, external_name, foreign_value, with_gradient
from gpusync_lint.inference.tables import Call, calls, methods_of
from gpusync_lint.model.placement import StepEvidence

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame


def call_foreign_function(frame: Frame, dotted: str, call: Call) -> Value | None:
    """The result of a function of another framework; None if no catalogue describes it."""
    module = foreign.module_from().get(dotted)
    if module is not None:
        return external_name(module)
    wrapped = foreign.wrappers().get(dotted)
    if wrapped is not None or dotted.startswith(foreign.tracing_modules()):
        for value in call.values:
            if value.kind is Kind.FUNCTION:
                frame.analysis.tracing.record(value.ref)
    if wrapped is not None:
        return foreign_value(wrapped)
    made = foreign.made_by(dotted)
    if made is None:
        return None
    if dotted.rpartition(".")[2] in made.elementwise and all(value.kind is not Kind.FOREIGN for value in call.args):
        return HOST if all(value.kind is Kind.HOST for value in call.args) else UNKNOWN
    if made.makes_step:
        frame.record_step_evidence(StepEvidence.MODEL)
    return foreign_value(made.name)


@calls(Kind.FOREIGN)
def call_foreign_value(frame: Frame, call: Call) -> Value:
    """Call a value of another framework: a compiled function, a model, a kernel with its grid."""
    return _called(frame, call.callee.ref)


@calls(Kind.FUNCTION)
def call_function(frame: Frame, call: Call) -> Value:
    """Call a function of the project, or the object that a decorator of another framework made of it."""
    wrapper = frame.analysis.tracing.wrapper(call.callee.ref)
    if wrapper:
        return _called(frame, wrapper)
    bound = call.callee.bound
    if bound is not None and call.callee.ref.kind == "class" and bound.definition is not None:
        bound = Value(Kind.CLASS, ref=bound.ref)
    args = call.args if bound is None else [bound, *call.args]
    result = frame.analysis.call(frame, call.callee.ref, args, call.kwargs)
    if bound is not None and call.callee.ref.kind == "static":  # `apply` of a function of autograd, with its context
        flows = frame.tracks_gradients() and any(value.gradient for value in call.values)
        return with_gradient(result, Gradient.FLOWS if flows else Gradient.NONE)
    return result


def _called(frame: Frame, type_name: str) -> Value:
    described = foreign.types()[type_name]
    if described.makes_step:
        frame.record_step_evidence(StepEvidence.MODEL)
    return foreign_value(described.call)


@methods_of(Kind.FOREIGN)
def foreign_method(frame: Frame, call: Call) -> Value:
    """The result of a method of a value of another framework."""
    described = foreign.types()[call.receiver.ref]
    if call.method in described.host_methods:
        return HOST
    if described.makes_step and not described.call:
        frame.record_step_evidence(StepEvidence.MODEL)
    return foreign_value(described.methods.get(call.method, described.attribute))
