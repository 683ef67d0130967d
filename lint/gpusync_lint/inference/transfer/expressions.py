"""Constants, strings, lambdas, `:=`, `await` and `yield`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import element
from gpusync_lint.domain.values import CONSTANTS, HOST, NONE, UNKNOWN, Device, Kind, Value, host_constant, list_of
from gpusync_lint.inference.tables import EXPRESSIONS, Call, calls, evaluates
from gpusync_lint.inference.transfer.assignments import bind
from gpusync_lint.inference.transfer.builtin_calls import as_text
from gpusync_lint.inference.transfer.iteration import iterated

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame


@evaluates(ast.Constant)
def constant(frame: Frame, node: ast.Constant) -> Value:
    """A literal."""
    const = node.value
    return NONE if const is None else CONSTANTS.get((const.__class__, const)) or host_constant(const)


@evaluates(ast.JoinedStr)
def joined_string(frame: Frame, node: ast.JoinedStr) -> Value:
    """An f-string."""
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            frame.eval(part)
    return HOST


@evaluates(ast.FormattedValue)
def formatted_value(frame: Frame, node: ast.FormattedValue) -> Value:
    """A replacement field of an f-string."""
    value = frame.eval(node.value)
    if value.kind is Kind.INSTANCE:
        as_text(frame, value)
    if node.format_spec is not None:
        frame.eval(node.format_spec)
    return HOST


_MAX_NESTED_LAMBDAS = 100
"""The maximum number of calls of lambdas, at any depth, that are followed in the call of a lambda."""
_TOO_MANY_LAMBDAS = "lambdas call each other more often than is followed; some calls are left out"


@evaluates(ast.Lambda)
def lambda_function(frame: Frame, node: ast.Lambda) -> Value:
    """A lambda. Its body is evaluated with unknown parameters."""
    mark = frame.store.mark()
    for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        frame.store.set(arg.arg, UNKNOWN)
    frame.eval(node.body)
    frame.store.rollback(mark)
    return Value(Kind.LAMBDA, ref=(node, frame.fn))


@calls(Kind.LAMBDA)
def call_lambda(frame: Frame, call: Call) -> Value:
    """Call a lambda. The names around it are those of the function that contains it."""
    node, fn = call.callee.ref
    if node in frame.lambdas:
        return UNKNOWN
    frame.nested_lambdas = frame.nested_lambdas + 1 if frame.lambdas else 0
    if frame.nested_lambdas > _MAX_NESTED_LAMBDAS:
        frame.fn.file.limits.setdefault(_TOO_MANY_LAMBDAS, frame.statement.lineno)
        return UNKNOWN
    frame.analysis.record_lambda(node, frame.fn, frame.statement)
    frame.lambdas.append(node)
    mark = frame.store.mark()
    is_elsewhere = not (fn is frame.fn or (fn.is_module and fn.file is frame.fn.file))
    effects = frame.summary.effects
    called, evidence = len(effects.calls), len(effects.step_evidence)
    if is_elsewhere:
        summary = frame.analysis.summary(fn)
        frame.reader.dependencies.setdefault(fn, summary.revision)
        for name in {inner.id for inner in ast.walk(node.body) if isinstance(inner, ast.Name)}:
            around = summary.scope.get(name) or summary.entry.get(name)
            around = around or frame.analysis.scopes.outer_name(summary.reader, name)
            if around is not None or name in frame.names:
                frame.store.set(name, around or UNKNOWN)
    for position, arg in enumerate((*node.args.posonlyargs, *node.args.args)):
        frame.store.set(arg.arg, call.args[position] if position < len(call.args) else UNKNOWN)
    value = frame.eval(node.body)
    frame.store.rollback(mark)
    frame.lambdas.pop()
    if is_elsewhere:  # how often its body runs is judged where it is written
        del effects.calls[called:]
        del effects.step_evidence[evidence:]
    return value


@evaluates(ast.NamedExpr)
def named_expression(frame: Frame, node: ast.NamedExpr) -> Value:
    """`target := value`."""
    value = frame.eval(node.value)
    bind(frame, node.target, value)
    return value


@evaluates(ast.Await)
def awaited(frame: Frame, node: ast.Await) -> Value:
    """`await value`."""
    return frame.eval(node.value)


@evaluates(ast.YieldFrom)
def yield_from(frame: Frame, node: ast.YieldFrom) -> Value:
    """`yield from iterable`: the function returns an iterator."""
    value = iterated(frame, frame.eval(node.value), node.value)
    frame.record_return(value if value.kind is Kind.LOADER else list_of(element(value)))
    return UNKNOWN


@evaluates(ast.Yield)
def yielded(frame: Frame, node: ast.Yield) -> Value:
    """`yield value`: the function returns an iterator. In a loop over batches, it yields batches too."""
    if node.value is not None:
        value = frame.eval(node.value)
        frame.record_return(Value(Kind.LOADER, Device.CPU, elem=value) if frame.is_in_batch_loop() else list_of(value))
    return UNKNOWN


def unknown_expression(frame: Frame, node: ast.expr) -> Value:
    """Syntax of newer versions of Python: unknown, but its parts are evaluated."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            frame.eval(child)
    return UNKNOWN


EXPRESSIONS.default = unknown_expression
