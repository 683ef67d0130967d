"""GS301 to GS305: Python makes a decision that depends on a value on the device."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain import python_api
from gpusync_lint.domain.lattice import element
from gpusync_lint.domain.values import Kind
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.context import Report, Rule, RuleContext, method, positional

if TYPE_CHECKING:
    from collections.abc import Iterator

_OVER_ITEMS = frozenset({"builtins.sorted", "builtins.any", "builtins.all", "builtins.max", "builtins.min"})
_SEQUENCES = (Kind.LIST, Kind.TUPLE)
_SEARCHES = frozenset({"count", "index", "remove"})
"""Methods of lists that compare their argument with the elements."""


class Condition(Rule):
    """`if`, `while`, `a if t else b`, `assert`, and the `if` of a comprehension."""

    nodes = (ast.If, ast.While, ast.IfExp, ast.Assert, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
    barriers = ("branch-on-tensor", "assert-on-tensor")
    VALID: ClassVar = (
        "if s is None: pass",
        "if x.size(0) > 1: pass",
        "assert x.shape == x2.shape",
        "if c.sum() > 0: pass",
    )
    INVALID: ClassVar = (
        "if s > 0: pass", "while s > 1e9: pass", "y = 1 if s > 0 else 2", "assert not torch.isnan(x).any()",
        "if x.any() and True: pass",
    )  # fmt: skip

    def check(self, node: ast.AST, context: RuleContext) -> Iterator[Report]:
        """Check a condition."""
        barrier = "assert-on-tensor" if isinstance(node, ast.Assert) else "branch-on-tensor"
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            for generator in node.generators:
                for condition in generator.ifs:
                    yield from _leaves(condition, context, barrier)
        else:
            yield from _leaves(node.test, context, barrier)  # type: ignore[attr-defined]


def _leaves(node: ast.expr, context: RuleContext, barrier: str) -> Iterator[Report]:
    """The operands of a condition whose truth values Python tests."""
    if isinstance(node, ast.BoolOp):
        yield from _operands(node, node.values, context, barrier)
        return
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from _leaves(node.operand, context, barrier)
        return
    value = context.value(node)
    confidence = context.truth_confidence(value)
    if confidence is not None:
        # A truth test of a tensor with several elements raises an error, so what says that it is one is probably wrong,
        # unless the source shows where it was created.
        whole = (
            isinstance(node, (ast.Name, ast.Attribute))
            and not value.zero_dim
            and not value.boolean
            and confidence is not Confidence.HIGH
        )
        expected = barrier == "assert-on-tensor" and context.in_tests()  # tests are expected to read values
        yield Report(barrier, node, Confidence.LOW if whole or expected else confidence)


def _operands(node: ast.BoolOp, operands: list[ast.expr], context: RuleContext, barrier: str) -> Iterator[Report]:
    """The operands of `and` or `or` that are evaluated: those of `and` up to one that is false by default."""
    for operand in operands:
        yield from _leaves(operand, context, barrier)
        if isinstance(node.op, ast.And) and _is_off(operand, context):
            return


def _is_off(node: ast.expr, context: RuleContext) -> bool:
    """Whether a condition is false for the default settings."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return any(_is_off(operand, context) for operand in node.values)
    return context.value(node).const is False


def _is_inside_call(node: ast.expr, statement: ast.stmt) -> bool:
    """Whether an expression is an element of what a call in the statement is passed: `any(not x for x in xs)`."""
    for call in ast.walk(statement):
        if isinstance(call, ast.Call):
            for arg in call.args:
                if arg is node or (isinstance(arg, (ast.GeneratorExp, ast.ListComp)) and arg.elt is node):
                    return True
    return False


class BooleanOperator(Rule):
    """`and`, `or`, `not` outside of a condition."""

    nodes = (ast.BoolOp, ast.UnaryOp)
    barriers = ("boolean-operator-on-tensor",)
    VALID: ClassVar = ("y = m & m", "y = ~m", "y = s is None or 1")
    INVALID: ClassVar = ("y = not s", "y = s and 1", "y = s or 1", "any(not p.isfinite().all() for p in [x, x2])")

    def check(self, node: ast.AST, context: RuleContext) -> Iterator[Report]:
        """Check an expression that a statement evaluates."""
        statement = context.statement
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            is_scalar = context.value(node.operand).zero_dim is True
            if is_scalar and _is_inside_call(node, statement):
                yield from _leaves(node.operand, context, "boolean-operator-on-tensor")
                return
        if not isinstance(statement, (ast.Assign, ast.AugAssign, ast.Return, ast.Expr)) or statement.value is not node:
            return
        if isinstance(node, ast.BoolOp):
            yield from _operands(node, node.values[:-1], context, "boolean-operator-on-tensor")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield from _leaves(node.operand, context, "boolean-operator-on-tensor")


class BuiltinComparison(Rule):
    """`max(a, b)`, `sorted(tensors)`, `any(...)`, `t in items`, `a < t < b`, `items.index(t)`."""

    nodes = (ast.Call, ast.Compare)
    calls = _OVER_ITEMS | python_api.ORDERING | _SEARCHES
    barriers = ("builtin-comparison",)
    VALID: ClassVar = ("max(1, 2)", "sum([s, s2])", "x.max()", "1 in lst", "s < s2", "si in {1, 2}", "lst.index(1)")
    INVALID: ClassVar = ("max(s, s2)", "sorted([s, s2])", "any([s > 0])", "0 < s < 1", "max(v)", "[s, s2].index(s2)")

    def check(self, node: ast.AST, context: RuleContext) -> Iterator[Report]:
        """Check a call or a comparison."""
        if isinstance(node, ast.Compare):
            yield from self._comparison(node, context)
            return
        assert isinstance(node, ast.Call)
        dotted = context.qualified_name(node.func)
        args = positional(node)
        if isinstance(node.func, ast.Attribute) and method(node) in _SEARCHES:
            inside = context.value(node.func.value)
            if inside.kind not in _SEQUENCES:
                return
            found = [context.truth_confidence(value) for value in (element(inside), *map(context.value, args))]
            confidence = min((one for one in found if one is not None), key=lambda one: one.rank, default=None)
        elif dotted not in _OVER_ITEMS and dotted not in python_api.ORDERING:
            return
        elif len(args) == 1:
            inside = context.value(args[0])
            if inside.kind not in (*_SEQUENCES, Kind.TENSOR):
                return
            confidence = context.truth_confidence(element(inside))
        elif dotted in python_api.ORDERING:
            found = [context.truth_confidence(element(context.value(arg))) for arg in args]
            confidence = min((one for one in found if one is not None), key=lambda one: one.rank, default=None)
        elif dotted in ("builtins.max", "builtins.min"):
            found = [context.truth_confidence(context.value(arg)) for arg in args]
            sure = [item for item in found if item is not None]
            confidence = min(sure, key=lambda item: item.rank) if sure else None
        else:
            return
        if confidence is not None:
            yield Report("builtin-comparison", node, confidence)

    def _comparison(self, node: ast.Compare, context: RuleContext) -> Iterator[Report]:
        operands = [context.value(node.left), *map(context.value, node.comparators)]
        operator = node.ops[0]
        if any(isinstance(value.const, str) for value in operands):
            return
        if isinstance(node.comparators[0], (ast.Set, ast.Dict)):
            return  # tensors are hashed by identity
        if isinstance(operator, (ast.In, ast.NotIn)):
            inside = operands[1]
            values = [operands[0], element(inside) if inside.kind in (Kind.LIST, Kind.TUPLE) else inside]
            if inside.kind not in (Kind.LIST, Kind.TUPLE, Kind.TENSOR):
                return
        elif len(operands) > 2 and not isinstance(operator, (ast.Is, ast.IsNot)):
            values = operands
        else:
            return
        found = [context.truth_confidence(value) for value in values]
        sure = [item for item in found if item is not None]
        if sure:
            yield Report("builtin-comparison", node, min(sure, key=lambda item: item.rank))
