"""Which expressions are barriers of frameworks other than torch, by their catalogues."""

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


def found(node: ast.AST, context: RuleContext) -> Iterator[tuple[Barrier, ast.expr, bool]]:
    """The barriers that an expression or the test of a statement is.

    Each comes with the expression to underline, and whether only the last name of that call is to be underlined.
    """
    if isinstance(node, ast.Call):
        yield from _call(node, context)
    elif isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
        yield from _tested([node.test], context)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from _tested([node.operand], context)
    elif isinstance(node, ast.BoolOp):
        yield from _tested(node.values[:-1], context)
    elif isinstance(node, ast.FormattedValue):
        for barrier in _by_builtin("format", context.foreign_value(node.value)):
            yield barrier, node.value, False
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, (ast.Compare, ast.Name)):
        base, index = context.value(node.value), context.value(node.slice)
        if base.kind is Kind.FOREIGN and index == base and isinstance(node.slice, ast.Compare):
            for barrier in foreign.barriers():
                if barrier.masks and barrier.of == base.ref:
                    yield barrier, node, False


def may_wait(node: ast.Call, context: RuleContext) -> bool:
    """Whether a call may wait: all do but those of a framework whose waits are in its catalogue, and that are none."""
    called = context.value(node.func)
    root = called.ref.partition(".")[0] if called.kind is Kind.NAME and isinstance(called.ref, str) else ""
    receiver = _receiver(node.func, context)
    known = root in foreign.modules() or Kind.FOREIGN in (receiver.kind, called.kind)
    return not known or next(found(node, context), None) is not None


def _receiver(func: ast.expr, context: RuleContext) -> Value:
    """What a method is called on; an unknown object is what alone has such a method."""
    if not isinstance(func, ast.Attribute):
        return UNKNOWN
    receiver = context.foreign_value(func.value)
    shown = foreign.only_methods().get(func.attr, "") if receiver.kind is Kind.UNKNOWN else ""
    return foreign_value(shown) if shown.partition(".")[0] in context.foreign_frameworks else receiver


def _call(node: ast.Call, context: RuleContext) -> Iterator[tuple[Barrier, ast.expr, bool]]:
    func = node.func
    called = context.value(func)
    dotted = called.ref if called.kind is Kind.NAME and isinstance(called.ref, str) else ""
    values = [context.foreign_value(arg) for arg in node.args]
    receiver = _receiver(func, context)
    if _tracks(node, context):
        given_to = [*values, *(context.value(keyword.value) for keyword in node.keywords)]
        shown = foreign_inside(tuple_of(given_to))
        for barrier in _by_builtin("tracker", shown) if shown is not None else ():
            yield barrier, node, True
    known = dotted.partition(".")[0] in foreign.modules() or receiver.kind is Kind.FOREIGN
    if not known and all(value.kind is not Kind.FOREIGN for value in values):
        return
    if dotted.startswith("builtins."):
        for arg, value in zip(node.args, values, strict=True):
            for barrier in _by_builtin(dotted.removeprefix("builtins."), value):
                yield barrier, node if len(node.args) == 1 else arg, False
    elif dotted:
        for barrier in foreign.barriers():
            if not foreign.matches(barrier.functions, dotted) or foreign.matches(barrier.not_functions, dotted):
                continue
            if barrier.of and not any(_is(value, barrier.of) for value in values):
                continue
            if waits_if_called_so(barrier, node, context):
                yield barrier, node, False
    elif isinstance(func, ast.Attribute):
        for barrier in foreign.barriers():
            named = func.attr in barrier.methods and _is(receiver, barrier.of)
            if named and waits_if_called_so(barrier, node, context):
                yield barrier, node, True


def _tested(tests: list[ast.expr], context: RuleContext) -> Iterator[tuple[Barrier, ast.expr, bool]]:
    for test in tests:
        value = context.value(test)
        if value.kind is Kind.FOREIGN and isinstance(test, (ast.Compare, ast.Call)):
            for barrier in foreign.barriers():
                if barrier.conditions and barrier.of == value.ref:
                    yield barrier, test, False


def _tracks(node: ast.Call, context: RuleContext) -> bool:
    """Whether a call hands values to an experiment tracker or a progress bar."""
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
