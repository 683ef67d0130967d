"""Barriers of frameworks other than torch, by the types of values that their catalogues describe."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.catalogue import foreign
from gpusync_lint.domain import python_api
from gpusync_lint.domain.values import UNKNOWN, Kind, Value, foreign_inside, tuple_of
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.blocks import LOOPS, around
from gpusync_lint.rules.base.context import Report, Rule, RuleContext, method
from gpusync_lint.rules.base.entries import is_meant, waits_if_called_so
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.catalogue.schema import Barrier

    _Found = tuple[Barrier, ast.expr, bool]


class ForeignBarrier(Rule):
    """Calls, conversions, conditions, text and masks that read a value of another framework.

    Functions that the framework traces or compiles are skipped: to read a value there is an error, and not a wait.
    """

    nodes = (ast.Call, ast.If, ast.While, ast.IfExp, ast.Assert, ast.UnaryOp, ast.BoolOp,
             ast.FormattedValue, ast.Subscript)  # fmt: skip
    barriers = tuple(barrier.id for barrier in foreign.barriers())
    VALID: ClassVar = ("float(np.ones(3).sum())", "if np.any([1]): pass")
    INVALID: ClassVar = ()

    def applies_to(self, context: RuleContext) -> bool:
        """Whether the file uses another framework, or contains values of one."""
        return context.uses_foreign_values

    def check(self, node: ast.AST, context: RuleContext) -> Iterator[Report]:
        """Check a node."""
        for barrier, mark, tail in self._found(node, context):
            if barrier.framework in foreign.allowing_one_wait() and self._is_first(node, context):
                return
            if not context.is_traced():
                confidence = Confidence.LOW if is_meant(barrier, context) else Confidence.MEDIUM
                yield Report(barrier.id, mark, confidence, highlight_name=tail)
                return

    def _is_first(self, wanted: ast.AST, context: RuleContext) -> bool:
        """Whether nothing waits before a node in the same iteration of the innermost loop, or in the same call."""
        holders = around(context.function, context.statement)
        loops = [block[at] for block, at in holders if isinstance(block[at], LOOPS)]
        body = loops[-1].body if loops else context.function.node.body  # type: ignore[attr-defined]
        place = (wanted.lineno, wanted.col_offset)  # type: ignore[attr-defined]
        for node in walk_block(body):
            before = isinstance(node, (ast.expr, ast.stmt)) and (node.lineno, node.col_offset) < place
            if before and any(
                barrier.framework in foreign.allowing_one_wait() for barrier, _, _ in self._found(node, context)
            ):
                return False
        return True

    def _found(self, node: ast.AST, context: RuleContext) -> Iterator[_Found]:
        """The barriers that a node may be, each with the expression to underline and `highlight_name`."""
        if isinstance(node, ast.Call):
            return self._call(node, context)
        if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
            return self._tested([node.test], context)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self._tested([node.operand], context)
        if isinstance(node, ast.BoolOp):
            return self._tested(node.values[:-1], context)
        if isinstance(node, ast.FormattedValue):
            formatted = node.value
            return ((barrier, formatted, False) for barrier in _by_builtin("format", context.value(formatted)))
        return self._masked(node, context) if isinstance(node, ast.Subscript) else iter(())

    def _call(self, node: ast.Call, context: RuleContext) -> Iterator[_Found]:
        func = node.func
        dotted = context.qualified_name(func)
        values = [context.value(arg) for arg in node.args]
        receiver = context.value(func.value) if isinstance(func, ast.Attribute) else UNKNOWN
        if _tracks(node, context):
            yield from self._tracked(node, values, context)
        is_foreign = dotted.partition(".")[0] in foreign.modules() or receiver.kind is Kind.FOREIGN
        if not is_foreign and all(value.kind is not Kind.FOREIGN for value in values):
            return
        if dotted.startswith("builtins."):
            for arg, value in zip(node.args, values, strict=True):
                for barrier in _by_builtin(dotted.removeprefix("builtins."), value):
                    yield barrier, node if len(node.args) == 1 else arg, False
            return
        found = _of_function(dotted, values) if dotted else _of_method(method(node), receiver)
        for barrier in found:
            if waits_if_called_so(barrier, node, context):
                yield barrier, node, not dotted

    def _tracked(self, node: ast.Call, values: list[Value], context: RuleContext) -> Iterator[_Found]:
        keywords = [context.value(keyword.value) for keyword in node.keywords]
        shown = foreign_inside(tuple_of([*values, *keywords]))
        for barrier in _by_builtin("tracker", shown) if shown is not None else ():
            yield barrier, node, True

    def _tested(self, tests: list[ast.expr], context: RuleContext) -> Iterator[_Found]:
        for test in tests:
            value = context.value(test)
            if value.kind is Kind.FOREIGN and isinstance(test, (ast.Compare, ast.Call)):
                for barrier in foreign.barriers():
                    if barrier.conditions and barrier.of == value.ref:
                        yield barrier, test, False

    def _masked(self, node: ast.Subscript, context: RuleContext) -> Iterator[_Found]:
        base = context.value(node.value)
        if base.kind is Kind.FOREIGN and isinstance(node.slice, ast.Compare) and context.value(node.slice) == base:
            for barrier in foreign.barriers():
                if barrier.masks and barrier.of == base.ref:
                    yield barrier, node, False


def _of_function(dotted: str, values: list[Value]) -> Iterator[Barrier]:
    """The barriers with a function, if they are for arguments of any type or of that of a value."""
    for barrier in foreign.barriers():
        is_function = foreign.matches(barrier.functions, dotted) and not foreign.matches(barrier.not_functions, dotted)
        if is_function and (not barrier.of or any(_is(value, barrier.of) for value in values)):
            yield barrier


def _of_method(name: str, receiver: Value) -> Iterator[Barrier]:
    """The barriers with a method of the type of a receiver."""
    return (barrier for barrier in foreign.barriers() if name in barrier.methods and _is(receiver, barrier.of))


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
