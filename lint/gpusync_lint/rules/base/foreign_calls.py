"""The expressions that are barriers of frameworks other than torch, by their catalogues."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import foreign
from gpusync_lint.domain import python_api
from gpusync_lint.domain.values import UNKNOWN, Kind, Value, foreign_inside, foreign_value, tuple_of
from gpusync_lint.rules.base.entries import waits_if_called_so

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.catalogue.schema import Barrier
    from gpusync_lint.rules.base.context import RuleContext

    Found = tuple[Barrier, ast.expr, bool]


def found(node: ast.AST, context: RuleContext) -> Iterator[Found]:
    """The barriers that an expression, or the test of a statement, may be.

    Each comes with the expression to underline, and whether to underline only the last name of its callee.
    """
    if isinstance(node, ast.Call):
        return _call(node, context)
    if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
        return _tested([node.test], context)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _tested([node.operand], context)
    if isinstance(node, ast.BoolOp):
        return _tested(node.values[:-1], context)
    if isinstance(node, ast.FormattedValue):
        formatted = node.value
        return ((barrier, formatted, False) for barrier in _by_builtin("format", context.foreign_value(formatted)))
    return _masked(node, context) if isinstance(node, ast.Subscript) else iter(())


def may_wait(node: ast.Call, context: RuleContext) -> bool:
    """Whether a call may wait. Only calls of a framework whose catalogue describes all waits are known not to."""
    called = context.value(node.func)
    root = called.dotted_name.partition(".")[0]
    receiver = _receiver(node.func, context)
    is_described = root in foreign.modules() or Kind.FOREIGN in (receiver.kind, called.kind)
    return not is_described or next(found(node, context), None) is not None


def _receiver(func: ast.expr, context: RuleContext) -> Value:
    """The object whose method is called. An unknown object has the only type with such a method."""
    if not isinstance(func, ast.Attribute):
        return UNKNOWN
    receiver = context.foreign_value(func.value)
    shown = foreign.only_methods().get(func.attr, "") if receiver.kind is Kind.UNKNOWN else ""
    return foreign_value(shown) if shown.partition(".")[0] in context.foreign_frameworks else receiver


def _call(node: ast.Call, context: RuleContext) -> Iterator[Found]:
    func = node.func
    dotted = context.qualified_name(func)
    values = [context.foreign_value(arg) for arg in node.args]
    receiver = _receiver(func, context)
    if _tracks(node, context):
        yield from _tracked(node, values, context)
    is_foreign = dotted.partition(".")[0] in foreign.modules() or receiver.kind is Kind.FOREIGN
    if not is_foreign and all(value.kind is not Kind.FOREIGN for value in values):
        return
    if dotted.startswith("builtins."):
        for arg, value in zip(node.args, values, strict=True):
            for barrier in _by_builtin(dotted.removeprefix("builtins."), value):
                yield barrier, node if len(node.args) == 1 else arg, False
        return
    name = func.attr if isinstance(func, ast.Attribute) else ""
    for barrier in _of_function(dotted, values) if dotted else _of_method(name, receiver):
        if waits_if_called_so(barrier, node, context):
            yield barrier, node, not dotted


def _tracked(node: ast.Call, values: list[Value], context: RuleContext) -> Iterator[Found]:
    keywords = [context.value(keyword.value) for keyword in node.keywords]
    shown = foreign_inside(tuple_of([*values, *keywords]))
    for barrier in _by_builtin("tracker", shown) if shown is not None else ():
        yield barrier, node, True


def _of_function(dotted: str, values: list[Value]) -> Iterator[Barrier]:
    """The barriers with a function, if they are for arguments of any type or of that of a value."""
    for barrier in foreign.barriers():
        is_function = foreign.matches(barrier.functions, dotted) and not foreign.matches(barrier.not_functions, dotted)
        if is_function and (not barrier.of or any(_is(value, barrier.of) for value in values)):
            yield barrier


def _of_method(name: str, receiver: Value) -> Iterator[Barrier]:
    """The barriers with a method of the type of a receiver."""
    return (barrier for barrier in foreign.barriers() if name in barrier.methods and _is(receiver, barrier.of))


def _masked(node: ast.Subscript, context: RuleContext) -> Iterator[Found]:
    base = context.value(node.value)
    if base.kind is Kind.FOREIGN and isinstance(node.slice, ast.Compare) and context.value(node.slice) == base:
        for barrier in foreign.barriers():
            if barrier.masks and barrier.of == base.ref:
                yield barrier, node, False


def _tested(tests: list[ast.expr], context: RuleContext) -> Iterator[Found]:
    for test in tests:
        value = context.value(test)
        if value.kind is Kind.FOREIGN and isinstance(test, (ast.Compare, ast.Call)):
            for barrier in foreign.barriers():
                if barrier.conditions and barrier.of == value.ref:
                    yield barrier, test, False


def _tracks(node: ast.Call, context: RuleContext) -> bool:
    """Whether a call passes values to an experiment tracker or a progress bar."""
    if isinstance(node.func, ast.Attribute) and node.func.attr in python_api.TRACKERS:
        return True
    return any(barrier.framework == "trackers" for barrier in context.barriers_by_name(node))


def _is(value: Value, of: str) -> bool:
    return value.kind is Kind.FOREIGN and value.ref == of


def _by_builtin(label: str, value: Value) -> Iterator[Barrier]:
    if value.kind is Kind.FOREIGN:
        for barrier in foreign.barriers():
            if label in barrier.builtins and barrier.of == value.ref:
                yield barrier
