"""Runs the statements of a function, along all paths, and returns the races."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from gpusync_lint.domain.values import Kind
from gpusync_lint.rules.ordering.calls import call
from gpusync_lint.rules.ordering.expressions import Expressions
from gpusync_lint.rules.ordering.memory import NONE
from gpusync_lint.rules.ordering.names import last_name, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpusync_lint.project.symbols import FunctionDef
    from gpusync_lint.rules.base.context import RuleContext
    from gpusync_lint.rules.ordering.state import Race, State

WORDS = re.compile(
    r"non_blocking\s*=\s*True|\.copy_\([^\n]*True|\bStream\(|\.stream\(|async_op\s*=\s*True|\bi(?:send|recv)\("
)
"""What the source of a function contains that can have a race; most functions do not."""
_ITERATIONS = 3
"""How often the body of a loop runs: what one iteration frees, the next but one may be given."""
_MAX_STATEMENTS = 4000
"""How many statements are run for one function, at most."""
_ENTER_STREAM = ("stream", "StreamContext")


def races_of(fn: FunctionDef, context: RuleContext) -> Collection[Race]:
    """The races of a function, or of the body of a module."""
    if not WORDS.search(fn.file.text if fn.is_module else fn.file.source_of(fn.node)):
        return ()
    run = _Statements(fn, context)
    try:
        run.block(fn.node.body)
    except (_TooLongError, RecursionError):
        return ()
    return run.races.values()


class _TooLongError(Exception):
    """The function has too many statements."""


class _Loop:
    """The states in which `break` and `continue` leave the body of a loop."""

    def __init__(self) -> None:
        self.breaks: list[State] = []
        self.continues: list[State] = []


class _Statements(Expressions):
    """Runs the statements of one function."""

    def __init__(self, fn: FunctionDef, context: RuleContext) -> None:
        super().__init__(context, call)
        self._fn = fn
        self._loops: list[_Loop] = []
        self._left = _MAX_STATEMENTS
        self._shared = frozenset(
            name for node in ast.walk(fn.node) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names
        )

    @property
    def shared_names(self) -> Collection[str]:
        """The names that other functions see."""
        return self._shared

    def block(self, body: list[ast.stmt]) -> bool:
        """Run a block; return whether the end is reached."""
        before = len(self.conditions)
        for statement in body:
            if not self._left:
                raise _TooLongError
            self._left -= 1
            self.statement = statement
            if not _RUN.get(statement.__class__, _Statements._other)(self, statement):
                del self.conditions[before:]
                return False
        del self.conditions[before:]
        return True

    # simple statements

    def _expression(self, node: ast.Expr) -> bool:
        self.evaluate(node.value)
        return True

    def _assign(self, node: ast.Assign) -> bool:
        if len(node.targets) == 1 and self._pairs(node.targets[0], node.value):
            return True
        views = self.evaluate(node.value)
        for target in node.targets:
            self.bind(target, views, node.value)
        return True

    def _pairs(self, target: ast.expr, value: ast.expr) -> bool:
        """`a, b = c, d`; returns whether the assignment has this form."""
        if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
            return False
        if len(target.elts) != len(value.elts) or any(isinstance(one, ast.Starred) for one in target.elts):
            return False
        values = [(one, self.evaluate(one)) for one in value.elts]
        for element, (one, views) in zip(target.elts, values, strict=True):
            self.bind(element, views, one)
        return True

    def _annotated(self, node: ast.AnnAssign) -> bool:
        if node.value is not None:
            self.bind(node.target, self.evaluate(node.value), node.value)
        return True

    def _augmented(self, node: ast.AugAssign) -> bool:
        self.reads(self.evaluate(node.value), node.value)
        target = node.target
        base = self.evaluate(target.value if isinstance(target, ast.Subscript) else target)
        self.writes(base, target)
        return True

    def _return(self, node: ast.Return) -> bool:
        self.evaluate(node.value)  # the caller may wait before it reads what is returned
        return False

    def _raise(self, node: ast.Raise) -> bool:
        self.evaluate(node.exc)
        return False

    def _delete(self, node: ast.Delete) -> bool:
        for target in node.targets:
            path = path_of(target)
            if path is not None:
                self.unbind(path)
        return True

    def _assert(self, node: ast.Assert) -> bool:
        self.truth(node.test)
        return True

    def _break(self, node: ast.Break) -> bool:
        if self._loops:
            self._loops[-1].breaks.append(self.state)
        return False

    def _continue(self, node: ast.Continue) -> bool:
        if self._loops:
            self._loops[-1].continues.append(self.state)
        return False

    def _other(self, node: ast.stmt) -> bool:
        """A definition, an import, `pass`, `global`."""
        return True

    # compound statements

    def _branch(self, body: list[ast.stmt], conditions: list[tuple[str, bool]], state: State) -> State | None:
        """Run a block on a path of its own; return the state at its end, None if that is not reached."""
        self.state = state
        before = len(self.conditions)
        self.conditions += conditions
        reached = self.block(body)
        del self.conditions[before:]
        return self.state if reached else None

    def _meet(self, *ends: State | None) -> bool:
        """Paths meet; return whether there is one."""
        states = [end for end in ends if end is not None]
        if not states:
            return False
        self.state = states[0]
        for other in states[1:]:
            if other is not self.state:
                self.state.merge(other)
        return True

    def _if(self, node: ast.If) -> bool:
        self.truth(node.test)
        text, outcome = _condition(node.test)
        other = self.state.copy()
        statement = self.statement
        then = self._branch(node.body, [(text, outcome)], self.state)
        otherwise = self._branch(node.orelse, [(text, not outcome)], other)
        self.statement = statement
        if then is None or otherwise is None:
            self.conditions.append((text, outcome if otherwise is None else not outcome))
        return self._meet(then, otherwise)

    def _for(self, node: ast.For | ast.AsyncFor) -> bool:
        views = self.evaluate(node.iter)
        self.host_reads([view for view in views if view.array], node.iter)

        def bind() -> None:
            self.bind(node.target, NONE, None)

        return self._loop(node, bind, may_skip=True)

    def _while(self, node: ast.While) -> bool:
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)

        def test() -> None:
            self.truth(node.test)

        return self._loop(node, test, may_skip=not endless)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, start: Callable[[], None], may_skip: bool) -> bool:
        loop = _Loop()
        self._loops.append(loop)
        start()
        skipped = self.state.copy() if may_skip else None
        reached = True
        for iteration in range(_ITERATIONS if len(self._loops) <= 2 else _ITERATIONS - 1):
            if iteration:
                self.statement = node
                start()
            reached = self._meet(self._branch(node.body, [], self.state), *loop.continues)
            loop.continues.clear()
            if not reached:
                break
        self._loops.pop()
        end = self.state if reached else None
        if not self._meet(end, skipped if end is None else None, *loop.breaks):
            return False
        return self.block(node.orelse)

    def _with(self, node: ast.With | ast.AsyncWith) -> bool:
        before, captured, depth = self.state.current, self.captured, len(self.entered)
        unknown = False
        graph: str | None = None
        for item in node.items:
            manager = item.context_expr
            stream = self._entered_stream(manager)
            if stream is not None:
                self.state.current = stream
                self.entered.append(node)
            elif _is_capture(manager):
                assert isinstance(manager, ast.Call)
                graph = (path_of(manager.args[0]) if manager.args else None) or ""
                self.captured = []
            else:
                self.evaluate(manager)
                unknown = unknown or self._may_order(manager)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, NONE, None)
        if unknown:
            self.order_everything()
        reached = self.block(node.body)
        if graph is not None:
            self.graphs[graph] = self.captured or []
        self.captured = captured
        del self.entered[depth:]
        self.state.current = before
        if unknown:
            self.order_everything()
        return reached

    def _entered_stream(self, manager: ast.expr) -> str | None:
        """The stream that a context manager makes the current one; None if it is something else."""
        if isinstance(manager, ast.Call):
            if last_name(manager.func) in _ENTER_STREAM and len(manager.args) == 1:
                return self.stream_of(manager.args[0])
            return None
        is_stream = self.value(manager).kind is Kind.STREAM or path_of(manager) in self.state.streams
        return self.stream_of(manager) if is_stream else None

    def _may_order(self, manager: ast.expr) -> bool:
        """Whether a context manager may wait, or change the stream. torch's own do not."""
        called = manager.func if isinstance(manager, ast.Call) else manager
        root = self.context.qualified_name(called).partition(".")[0]
        return root not in ("torch", "builtins", "contextlib", "warnings", "time")

    def _try(self, node: ast.Try) -> bool:
        before = self.state.copy()
        end = self._branch([*node.body, *node.orelse], [], self.state)
        ends = [end]
        for handler in node.handlers:
            start = before.copy()
            if end is not None:
                start.merge(end)
            ends.append(self._branch(handler.body, [(f"except {id(handler)}", True)], start))
        reached = self._meet(*ends)
        if not reached:
            self.state = before
        return self.block(node.finalbody) and reached

    def _match(self, node: ast.Match) -> bool:
        self.evaluate(node.subject)
        before = self.state
        ends: list[State | None] = [before.copy()]
        for case in node.cases:
            ends.append(self._branch(case.body, [], before.copy()))
        return self._meet(*ends)


def _condition(test: ast.expr) -> tuple[str, bool]:
    """A test as source, and the outcome with which the first branch is taken."""
    outcome = True
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, outcome = test.operand, not outcome
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.IsNot, ast.NotEq)):
        positive = ast.Is() if isinstance(test.ops[0], ast.IsNot) else ast.Eq()
        test, outcome = ast.Compare(test.left, [positive], test.comparators), not outcome
    return ast.unparse(test), outcome


def _is_capture(manager: ast.expr) -> bool:
    """`torch.cuda.graph(g)`."""
    return isinstance(manager, ast.Call) and last_name(manager.func) == "graph"


_RUN: dict[type, Callable[[_Statements, Any], bool]] = {
    ast.Expr: _Statements._expression,
    ast.Assign: _Statements._assign,
    ast.AnnAssign: _Statements._annotated,
    ast.AugAssign: _Statements._augmented,
    ast.Return: _Statements._return,
    ast.Raise: _Statements._raise,
    ast.Delete: _Statements._delete,
    ast.Assert: _Statements._assert,
    ast.Break: _Statements._break,
    ast.Continue: _Statements._continue,
    ast.If: _Statements._if,
    ast.For: _Statements._for,
    ast.AsyncFor: _Statements._for,
    ast.While: _Statements._while,
    ast.With: _Statements._with,
    ast.AsyncWith: _Statements._with,
    ast.Try: _Statements._try,
    getattr(ast, "TryStar", ast.Try): _Statements._try,
    ast.Match: _Statements._match,
}
