"""The traversal that finds the nodes that rules check, each with its position.

A table has the function that traverses each type of node. Of a compound statement, only the header is traversed, since
its blocks contain statements of their own. A statement with expressions nested deeper than `MAX_DEPTH` is skipped.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpusync_lint.domain.training_idioms import tests_for_tensor
from gpusync_lint.project.symbols import TOO_DEEP
from gpusync_lint.rewrite.layout import MAX_DEPTH
from gpusync_lint.syntax.blocks import blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    from gpusync_lint.project.symbols import FunctionDef

_Rules = TypeVar("_Rules")
"""The rules that check a node."""

_CALL_IMMEDIATELY = frozenset(
    {
        "map", "filter", "sorted", "sort", "min", "max", "reduce", "apply", "apply_", "step", "apply_to_collection",
        "groupby",
    }
)  # fmt: skip
"""Functions that call their arguments immediately."""
_MAPS = re.compile(r"(^|_)map(_|$)")
"""What the names of functions contain that do so with each part of a batch: `_nested_map`, `map_structure`."""

_LEAVES = frozenset({ast.Name, ast.Constant})


@dataclass(eq=False, slots=True)
class Occurrence:
    """A node that a rule checks, and its position."""

    node: ast.AST
    statement: ast.stmt
    fn: FunctionDef
    repeated: bool
    """Whether it is inside a comprehension."""
    deferred: bool
    """Whether it may run later or seldom: inside a lambda, in the message of an assertion, or where an argument of
    another type is converted to a tensor."""
    within: ast.Lambda | None
    """The lambda around it, unless the call that it is passed to calls it at once."""
    string: ast.expr | None
    """The f-string around it. Some versions of Python report wrong positions inside f-strings."""


def statements(fn: FunctionDef, dead: Container[ast.stmt] = ()) -> Iterator[ast.stmt]:
    """The statements of a function or module body, in no particular order, without those of nested functions.

    Statements in `dead`, and those inside them, are skipped.
    """
    stack = list(fn.node.body)
    while stack:
        statement = stack.pop()
        if dead and statement in dead:
            continue
        yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for block in blocks(statement):
                stack += block


def occurrences(
    fn: FunctionDef, select: Callable[[ast.AST], _Rules | None], judged: frozenset[type], dead: Container[ast.stmt] = ()
) -> list[tuple[Occurrence, _Rules]]:
    """The nodes of a function that rules check, each with these rules. Those of one statement are in source order.

    Args:
        fn: the function.
        select: returns the rules that check a node; None or an empty collection if there are none.
        judged: the types of nodes that rules declare.
        dead: statements that run only if there is no GPU.
    """
    walk = _Walk(fn, select, judged)
    for statement in statements(fn, dead):
        walk.visit(statement)
    return walk.found


class _TooDeepError(Exception):
    """An expression is nested deeper than `MAX_DEPTH`."""


class _Walk(Generic[_Rules]):
    """Traverses the statements of one function."""

    def __init__(self, fn: FunctionDef, select: Callable[[ast.AST], _Rules | None], judged: frozenset[type]) -> None:
        self.found: list[tuple[Occurrence, _Rules]] = []
        self._fn = fn
        self._select = select
        self._judged = judged
        self._ignored = _LEAVES - judged
        self._statement: ast.stmt
        self._depth = 0
        self._repeated = 0
        self._deferred = 0
        self._lambda: ast.Lambda | None = None
        self._callee = ""
        """The last name of the function whose arguments are being traversed."""
        self._string: ast.expr | None = None

    def visit(self, statement: ast.stmt) -> None:
        """Traverse the expressions of a statement. A statement that is nested too deeply is skipped, which is said."""
        handler = STATEMENTS.get(statement.__class__)
        if handler is None:
            return
        self._statement = statement
        before = len(self.found)
        if statement.__class__ in self._judged:
            self._record(statement)
        try:
            handler(self, statement)
        except (_TooDeepError, RecursionError):
            del self.found[before:]
            self._fn.file.limits.setdefault(TOO_DEEP, statement.lineno)
            self._depth = self._repeated = self._deferred = 0
            self._callee, self._string, self._lambda = "", None, None

    def _record(self, node: ast.AST) -> None:
        """Record a node if a rule checks it."""
        rules = self._select(node)
        if rules:
            occurrence = Occurrence(
                node, self._statement, self._fn, self._repeated > 0, self._deferred > 0, self._lambda, self._string
            )
            self.found.append((occurrence, rules))

    def expression(self, node: ast.expr | None) -> None:
        """Traverse an expression, if there is one."""
        kind = node.__class__
        if kind in self._ignored:
            return
        handler = EXPRESSIONS.get(kind)
        if handler is None:
            return
        assert node is not None
        if self._depth == MAX_DEPTH:
            raise _TooDeepError
        self._depth += 1
        if kind in self._judged:
            self._record(node)
        handler(self, node)
        self._depth -= 1

    def _each(self, nodes: Iterable[ast.expr | None]) -> None:
        """Traverse expressions. Most are names and constants, which are passed over here."""
        for node in nodes:
            if node.__class__ not in self._ignored:
                self.expression(node)

    # statements

    def _value(self, node: Any) -> None:
        self.expression(node.value)

    def _assign(self, node: ast.Assign) -> None:
        self._each(node.targets)
        self.expression(node.value)

    def _target_and_value(self, node: ast.AnnAssign | ast.AugAssign | ast.NamedExpr) -> None:
        self.expression(node.target)
        self.expression(node.value)

    def _test(self, node: ast.If | ast.While) -> None:
        self.expression(node.test)

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        self.expression(node.target)
        self.expression(node.iter)

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self.expression(item.context_expr)

    def _assert(self, node: ast.Assert) -> None:
        self.expression(node.test)
        self._deferred += 1  # the message is evaluated only if the assertion fails
        self.expression(node.msg)
        self._deferred -= 1

    def _raise(self, node: ast.Raise) -> None:
        self.expression(node.exc)

    def _match(self, node: ast.Match) -> None:
        self.expression(node.subject)
        for case in node.cases:
            self.expression(case.guard)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """A function; its decorators and defaults are not traversed."""

    # expressions

    def _leaf(self, node: ast.expr) -> None:
        """A name or a literal."""

    def _call(self, node: ast.Call) -> None:
        self.expression(node.func)
        before, self._callee = self._callee, _last_name(node.func)
        self._each(node.args)
        for keyword in node.keywords:
            self.expression(keyword.value)
        self._callee = before

    def _subscript(self, node: ast.Subscript) -> None:
        self.expression(node.value)
        self.expression(node.slice)

    def _slice(self, node: ast.Slice) -> None:
        self.expression(node.lower)
        self.expression(node.upper)
        self.expression(node.step)

    def _binary(self, node: ast.BinOp) -> None:
        self.expression(node.left)
        self.expression(node.right)

    def _boolean(self, node: ast.BoolOp) -> None:
        self._each(node.values)

    def _unary(self, node: ast.UnaryOp) -> None:
        self.expression(node.operand)

    def _comparison(self, node: ast.Compare) -> None:
        self.expression(node.left)
        self._each(node.comparators)

    def _if_exp(self, node: ast.IfExp) -> None:
        # `x if isinstance(x, torch.Tensor) else torch.tensor(x)` converts what is seldom given.
        converts = isinstance(node.test, ast.Call) and tests_for_tensor(node.test) and node.body.__class__ in _LEAVES
        self.expression(node.body)
        self.expression(node.test)
        self._deferred += converts
        self.expression(node.orelse)
        self._deferred -= converts

    def _elements(self, node: ast.Tuple | ast.List | ast.Set) -> None:
        self._each(node.elts)

    def _dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            self.expression(key)
            self.expression(value)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> None:
        self._repeated += 1
        self.expression(node.elt)
        self._generators(node.generators)
        self._repeated -= 1

    def _dict_comp(self, node: ast.DictComp) -> None:
        self._repeated += 1
        self.expression(node.key)
        self.expression(node.value)
        self._generators(node.generators)
        self._repeated -= 1

    def _generators(self, generators: list[ast.comprehension]) -> None:
        for generator in generators:
            self.expression(generator.target)
            self.expression(generator.iter)
            for condition in generator.ifs:
                self.expression(condition)

    def _function(self, node: ast.Lambda) -> None:
        if self._callee in _CALL_IMMEDIATELY or _MAPS.search(self._callee) is not None:
            self.expression(node.body)
            return
        before, self._lambda = self._lambda, node
        self._deferred += 1
        self.expression(node.body)
        self._deferred -= 1
        self._lambda = before

    def _joined(self, node: ast.JoinedStr) -> None:
        before = self._string
        if before is None:
            self._string = node
        self._each(node.values)
        self._string = before

    def _hole(self, node: ast.FormattedValue) -> None:
        self.expression(node.value)
        self.expression(node.format_spec)


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


STATEMENTS: dict[type, Callable[[_Walk[Any], Any], None]] = {
    ast.Expr: _Walk._value,
    ast.Assign: _Walk._assign,
    ast.AnnAssign: _Walk._target_and_value,
    ast.AugAssign: _Walk._target_and_value,
    ast.Return: _Walk._value,
    ast.If: _Walk._test,
    ast.For: _Walk._for,
    ast.AsyncFor: _Walk._for,
    ast.While: _Walk._test,
    ast.With: _Walk._with,
    ast.AsyncWith: _Walk._with,
    ast.Assert: _Walk._assert,
    ast.Raise: _Walk._raise,
    ast.Match: _Walk._match,
    ast.FunctionDef: _Walk._definition,
    ast.AsyncFunctionDef: _Walk._definition,
}
"""How the statements are traversed. Others contain no expressions that a rule judges: classes, imports, `try`, `del`,
and those that are a keyword alone."""

EXPRESSIONS: dict[type, Callable[[_Walk[Any], Any], None]] = {
    ast.Name: _Walk._leaf,
    ast.Constant: _Walk._leaf,
    ast.JoinedStr: _Walk._joined,
    ast.FormattedValue: _Walk._hole,
    ast.Attribute: _Walk._value,
    ast.Call: _Walk._call,
    ast.Subscript: _Walk._subscript,
    ast.Slice: _Walk._slice,
    ast.BinOp: _Walk._binary,
    ast.BoolOp: _Walk._boolean,
    ast.UnaryOp: _Walk._unary,
    ast.Compare: _Walk._comparison,
    ast.IfExp: _Walk._if_exp,
    ast.Tuple: _Walk._elements,
    ast.List: _Walk._elements,
    ast.Set: _Walk._elements,
    ast.Dict: _Walk._dict,
    ast.ListComp: _Walk._comprehension,
    ast.SetComp: _Walk._comprehension,
    ast.GeneratorExp: _Walk._comprehension,
    ast.DictComp: _Walk._dict_comp,
    ast.Lambda: _Walk._function,
    ast.Await: _Walk._value,
    ast.Yield: _Walk._value,
    ast.YieldFrom: _Walk._value,
    ast.NamedExpr: _Walk._target_and_value,
    ast.Starred: _Walk._value,
}
"""By type of expression, the function that traverses it."""
