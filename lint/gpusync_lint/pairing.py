"""Walks a statement as libcst and as `ast` side by side, so that every libcst node knows its `ast` twin.

The inference works on `ast`; the rules work on libcst, which keeps the text that a fix must not lose. A table with one
entry per node type keeps the two walks in step, with no metadata provider and no visitor. Of a compound statement only
the header is walked; what stands in its blocks are statements of their own. Where the trees differ (they should not)
the subtree is left out, which costs findings, never correctness.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libcst as cst

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusync_lint.summaries import FunctionInfo

_CALL_BACK = frozenset(
    {
        "map", "filter", "sorted", "sort", "min", "max", "reduce", "apply", "apply_", "map_", "tree_map", "step",
        "apply_to_collection", "groupby",
    }
)  # fmt: skip
"""Functions that call a function they are given at once."""


@dataclass(eq=False, slots=True)
class Pair:
    """A libcst node, its twin, and where it stands."""

    node: cst.CSTNode
    twin: ast.AST
    statement: ast.stmt
    fn: FunctionInfo
    repeated: bool
    """In a comprehension."""
    deferred: bool
    """In a lambda that something else may call, or not, or in the message of an assertion."""
    string: ast.expr | None
    """The f-string around it, whose position is the only one that every Python version reports rightly."""


class Pairing:
    """The pairs of a few statements, in the order in which they were added."""

    def __init__(self) -> None:
        self.pairs: list[Pair] = []
        self.twins: dict[int, ast.AST] = {}
        self._fn: FunctionInfo
        self._statement: ast.stmt
        self._repeated = 0
        self._deferred = 0
        self._calls_back = False
        self._string: ast.expr | None = None

    def add(self, node: cst.CSTNode, twin: ast.stmt, fn: FunctionInfo) -> None:
        """Pair one statement of a function, or its header."""
        handler = STATEMENTS.get(type(twin))
        if handler is not None and isinstance(node, handler[0]):
            self._fn, self._statement = fn, twin
            self._note(node, twin)
            handler[1](self, node, twin)

    def expression(self, node: Any, twin: Any) -> None:
        """Pair two expressions; either may be absent."""
        if node is None or twin is None:
            return
        handler = EXPRESSIONS.get(type(node))
        if handler is None or not isinstance(twin, handler[0]):
            if isinstance(node, cst.BaseExpression):
                self.twins[id(node)] = twin
            return
        self._note(node, twin)
        handler[1](self, node, twin)

    def _note(self, node: cst.CSTNode, twin: ast.AST) -> None:
        self.twins[id(node)] = twin
        self.pairs.append(
            Pair(node, twin, self._statement, self._fn, self._repeated > 0, self._deferred > 0, self._string)
        )

    # statements

    def _expr(self, node: cst.Expr, twin: ast.Expr) -> None:
        self.expression(node.value, twin.value)

    def _assign(self, node: cst.Assign, twin: ast.Assign) -> None:
        for target, other in zip(node.targets, twin.targets, strict=False):
            self.expression(target.target, other)
        self.expression(node.value, twin.value)

    def _ann_assign(self, node: cst.AnnAssign, twin: ast.AnnAssign) -> None:
        self.expression(node.target, twin.target)
        self.expression(node.value, twin.value)

    def _aug_assign(self, node: cst.AugAssign, twin: ast.AugAssign) -> None:
        self.expression(node.target, twin.target)
        self.expression(node.value, twin.value)

    def _return(self, node: cst.Return, twin: ast.Return) -> None:
        self.expression(node.value, twin.value)

    def _test(self, node: cst.If | cst.While, twin: ast.If | ast.While) -> None:
        self.expression(node.test, twin.test)

    def _for(self, node: cst.For, twin: ast.For | ast.AsyncFor) -> None:
        self.expression(node.target, twin.target)
        self.expression(node.iter, twin.iter)

    def _with(self, node: cst.With, twin: ast.With | ast.AsyncWith) -> None:
        for item, other in zip(node.items, twin.items, strict=False):
            self.expression(item.item, other.context_expr)

    def _assert(self, node: cst.Assert, twin: ast.Assert) -> None:
        self.expression(node.test, twin.test)
        self._deferred += 1  # the message is made when the assertion fails
        self.expression(node.msg, twin.msg)
        self._deferred -= 1

    def _raise(self, node: cst.Raise, twin: ast.Raise) -> None:
        self.expression(node.exc, twin.exc)

    def _match(self, node: cst.Match, twin: ast.Match) -> None:
        self.expression(node.subject, twin.subject)
        for case, other in zip(node.cases, twin.cases, strict=False):
            self.expression(case.guard, other.guard)

    # expressions

    def _leaf(self, node: Any, twin: Any) -> None:
        """A name or a literal."""

    def _attribute(self, node: cst.Attribute, twin: ast.Attribute) -> None:
        self.expression(node.value, twin.value)

    def _call(self, node: cst.Call, twin: ast.Call) -> None:
        self.expression(node.func, twin.func)
        positional, keywords = iter(twin.args), iter(twin.keywords)
        before, self._calls_back = self._calls_back, _last_name(twin.func) in _CALL_BACK
        for arg in node.args:
            if arg.keyword is not None or arg.star == "**":
                keyword = next(keywords, None)
                self.expression(arg.value, keyword.value if keyword is not None else None)
            else:
                other = next(positional, None)
                self.expression(arg.value, other.value if isinstance(other, ast.Starred) and arg.star else other)
        self._calls_back = before

    def _subscript(self, node: cst.Subscript, twin: ast.Subscript) -> None:
        self.expression(node.value, twin.value)
        elements = node.slice
        several = len(elements) > 1 or not isinstance(elements[0].comma, cst.MaybeSentinel)
        others = twin.slice.elts if several and isinstance(twin.slice, ast.Tuple) else [twin.slice]
        for element, other in zip(elements, others, strict=False):
            part = element.slice
            if isinstance(part, cst.Slice) and isinstance(other, ast.Slice):
                self.expression(part.lower, other.lower)
                self.expression(part.upper, other.upper)
                self.expression(part.step, other.step)
            elif isinstance(part, cst.Index):
                self.expression(part.value, other.value if isinstance(other, ast.Starred) else other)

    def _binary(self, node: cst.BinaryOperation, twin: ast.BinOp) -> None:
        self.expression(node.left, twin.left)
        self.expression(node.right, twin.right)

    def _boolean(self, node: cst.BooleanOperation, twin: ast.BoolOp) -> None:
        operands: list[cst.BaseExpression] = [node.right]
        left = node.left
        while isinstance(left, cst.BooleanOperation) and type(left.operator) is type(node.operator) and not left.lpar:
            operands.append(left.right)
            left = left.left
        operands.append(left)
        operands.reverse()
        if len(operands) == len(twin.values):
            for operand, other in zip(operands, twin.values, strict=True):
                self.expression(operand, other)

    def _unary(self, node: cst.UnaryOperation, twin: ast.UnaryOp) -> None:
        self.expression(node.expression, twin.operand)

    def _comparison(self, node: cst.Comparison, twin: ast.Compare) -> None:
        self.expression(node.left, twin.left)
        for target, other in zip(node.comparisons, twin.comparators, strict=False):
            self.expression(target.comparator, other)

    def _if_exp(self, node: cst.IfExp, twin: ast.IfExp) -> None:
        self.expression(node.body, twin.body)
        self.expression(node.test, twin.test)
        self.expression(node.orelse, twin.orelse)

    def _elements(self, node: Any, twin: Any) -> None:
        for element, other in zip(node.elements, twin.elts, strict=False):
            self.expression(element.value, other.value if isinstance(other, ast.Starred) else other)

    def _dict(self, node: cst.Dict, twin: ast.Dict) -> None:
        for element, key, value in zip(node.elements, twin.keys, twin.values, strict=False):
            if isinstance(element, cst.DictElement):
                self.expression(element.key, key)
            self.expression(element.value, value)

    def _comprehension(self, node: Any, twin: Any) -> None:
        self._repeated += 1
        self.expression(node.elt, twin.elt)
        self._generators(node.for_in, twin.generators)
        self._repeated -= 1

    def _dict_comp(self, node: cst.DictComp, twin: ast.DictComp) -> None:
        self._repeated += 1
        self.expression(node.key, twin.key)
        self.expression(node.value, twin.value)
        self._generators(node.for_in, twin.generators)
        self._repeated -= 1

    def _generators(self, node: cst.CompFor | None, twins: list[ast.comprehension]) -> None:
        for twin in twins:
            if node is None:
                return
            self.expression(node.target, twin.target)
            self.expression(node.iter, twin.iter)
            for condition, other in zip(node.ifs, twin.ifs, strict=False):
                self.expression(condition.test, other)
            node = node.inner_for_in

    def _lambda(self, node: cst.Lambda, twin: ast.Lambda) -> None:
        later = 0 if self._calls_back else 1
        self._deferred += later
        self.expression(node.body, twin.body)
        self._deferred -= later

    def _inner(self, node: Any, twin: Any) -> None:
        self.expression(node.expression, twin.value)

    def _yield(self, node: cst.Yield, twin: Any) -> None:
        value = node.value
        self.expression(value.item if isinstance(value, cst.From) else value, twin.value)

    def _named(self, node: cst.NamedExpr, twin: ast.NamedExpr) -> None:
        self.expression(node.target, twin.target)
        self.expression(node.value, twin.value)

    def _string_parts(self, node: Any, twin: Any) -> None:
        if not isinstance(twin, ast.JoinedStr):
            return
        before = self._string
        if before is None:
            self._string = twin
        holes: list[cst.FormattedStringExpression] = []
        _holes(node, holes)
        self._holes(holes, twin)
        self._string = before

    def _holes(self, holes: list[cst.FormattedStringExpression], twin: ast.JoinedStr) -> None:
        values = [part for part in twin.values if isinstance(part, ast.FormattedValue)]
        if len(values) != len(holes):
            return
        for hole, value in zip(holes, values, strict=True):
            self._note(hole, value)
            self.expression(hole.expression, value.value)
            if hole.format_spec and isinstance(value.format_spec, ast.JoinedStr):
                inner = [part for part in hole.format_spec if isinstance(part, cst.FormattedStringExpression)]
                self._holes(inner, value.format_spec)


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _holes(node: Any, found: list[cst.FormattedStringExpression]) -> None:
    if isinstance(node, cst.ConcatenatedString):
        _holes(node.left, found)
        _holes(node.right, found)
    elif isinstance(node, cst.FormattedString):
        found.extend(part for part in node.parts if isinstance(part, cst.FormattedStringExpression))


STATEMENTS: dict[type, tuple[type, Callable[[Pairing, Any, Any], None]]] = {
    ast.Expr: (cst.Expr, Pairing._expr),
    ast.Assign: (cst.Assign, Pairing._assign),
    ast.AnnAssign: (cst.AnnAssign, Pairing._ann_assign),
    ast.AugAssign: (cst.AugAssign, Pairing._aug_assign),
    ast.Return: (cst.Return, Pairing._return),
    ast.If: (cst.If, Pairing._test),
    ast.For: (cst.For, Pairing._for),
    ast.AsyncFor: (cst.For, Pairing._for),
    ast.While: (cst.While, Pairing._test),
    ast.With: (cst.With, Pairing._with),
    ast.AsyncWith: (cst.With, Pairing._with),
    ast.Assert: (cst.Assert, Pairing._assert),
    ast.Raise: (cst.Raise, Pairing._raise),
    ast.Match: (cst.Match, Pairing._match),
}
"""By `ast` type: the libcst type of the same statement, and how the two are walked. Others hold no expressions that
a rule looks at: definitions, imports, `try`, `del`, and the keywords alone."""

EXPRESSIONS: dict[type, tuple[Any, Callable[[Pairing, Any, Any], None]]] = {
    cst.Name: ((ast.Name, ast.Constant), Pairing._leaf),
    cst.Integer: (ast.Constant, Pairing._leaf),
    cst.Float: (ast.Constant, Pairing._leaf),
    cst.Imaginary: (ast.Constant, Pairing._leaf),
    cst.Ellipsis: (ast.Constant, Pairing._leaf),
    cst.SimpleString: (ast.Constant, Pairing._leaf),
    cst.ConcatenatedString: ((ast.Constant, ast.JoinedStr), Pairing._string_parts),
    cst.FormattedString: (ast.JoinedStr, Pairing._string_parts),
    cst.Attribute: (ast.Attribute, Pairing._attribute),
    cst.Call: (ast.Call, Pairing._call),
    cst.Subscript: (ast.Subscript, Pairing._subscript),
    cst.BinaryOperation: (ast.BinOp, Pairing._binary),
    cst.BooleanOperation: (ast.BoolOp, Pairing._boolean),
    cst.UnaryOperation: (ast.UnaryOp, Pairing._unary),
    cst.Comparison: (ast.Compare, Pairing._comparison),
    cst.IfExp: (ast.IfExp, Pairing._if_exp),
    cst.Tuple: (ast.Tuple, Pairing._elements),
    cst.List: (ast.List, Pairing._elements),
    cst.Set: (ast.Set, Pairing._elements),
    cst.Dict: (ast.Dict, Pairing._dict),
    cst.ListComp: (ast.ListComp, Pairing._comprehension),
    cst.SetComp: (ast.SetComp, Pairing._comprehension),
    cst.GeneratorExp: (ast.GeneratorExp, Pairing._comprehension),
    cst.DictComp: (ast.DictComp, Pairing._dict_comp),
    cst.Lambda: (ast.Lambda, Pairing._lambda),
    cst.Await: (ast.Await, Pairing._inner),
    cst.Yield: ((ast.Yield, ast.YieldFrom), Pairing._yield),
    cst.NamedExpr: (ast.NamedExpr, Pairing._named),
}
