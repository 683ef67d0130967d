"""Runs the statements of a function, along all paths, and returns the races."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from gpusync_lint.domain.values import Kind
from gpusync_lint.rules.ordering.calls import call
from gpusync_lint.rules.ordering.expressions import Expressions
from gpusync_lint.rules.ordering.memory import NONE
from gpusync_lint.rules.ordering.names import ORDERS, last_name
from gpusync_lint.rules.ordering.state import escape
from gpusync_lint.syntax.traversal import walk, walk_block

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpusync_lint.project.symbols import FunctionDef, ModuleDef
    from gpusync_lint.rules.base.context import RuleContext
    from gpusync_lint.rules.ordering.memory import Views
    from gpusync_lint.rules.ordering.state import Race, State

_T = TypeVar("_T")

_WORDS = {
    "non_blocking": re.compile(r"non_blocking\s*=\s*True"),
    ".copy_(": re.compile(r"\.copy_\([^\n]*True"),
    "Stream(": re.compile(r"Stream\((?<!\wStream\()"),
    ".stream(": re.compile(r"\.stream\((?!\s*[\"'])"),
    "async_op": re.compile(r"async_op\s*=\s*True"),
    "isend(": re.compile(r"isend\((?<!\wisend\()"),
    "irecv(": re.compile(r"irecv\((?<!\wirecv\()"),
}
"""What the source of a function contains that can have a race; most functions do not. Each is searched for by the text
in it first. Each pattern begins with text, for which the search is fast."""
_ITERATIONS = 3
"""How often the body of a loop runs: what one iteration frees, the next but one may be given."""
_MAX_ITERATIONS = 6
"""The most iterations of a loop with indices such as `step % 4`."""
_MAX_CALLS = 3
"""The most calls that are followed into each other."""
_MAX_STATEMENTS = 4000
"""How many statements are run for one function, at most."""
_ENTER_STREAM = ("stream", "StreamContext")


@lru_cache(maxsize=1)  # five rules ask in turn
def may_race(text: str) -> bool:
    """Whether the source of a file contains what can have a race."""
    return has_words(text)


def has_words(source: str) -> bool:
    """Whether a source contains a word of what can have a race."""
    return any(text in source and pattern.search(source) is not None for text, pattern in _WORDS.items())


def functions_of(file: ModuleDef) -> list[FunctionDef]:
    """The functions of a file that may have a race: those with such words, those that call one, and the file itself."""
    sources = {fn: fn.file.source_of(fn.node) for fn in file.all_functions if not fn.is_module}
    with_words = [fn for fn, source in sources.items() if has_words(source)]
    names = sorted({fn.name for fn in with_words if not fn.name.startswith("__")})
    calls = re.compile(rf"\b(?:{'|'.join(names)})\(") if names else None
    return [
        fn
        for fn in file.all_functions
        if fn.is_module or fn in with_words or (calls is not None and calls.search(sources[fn]))
    ]


def races_of(fn: FunctionDef, context: RuleContext) -> Collection[Race]:
    """The races of a function, or of the body of a module."""
    run = _Statements(fn, context)
    try:
        run.block(fn.node.body)
    except (_TooLongError, RecursionError):
        return ()
    return run.races.values()


def _declared(fn: FunctionDef) -> frozenset[str]:
    """The names that a function, or one inside it, declares as global or nonlocal."""
    source = fn.file.source_of(fn.node)
    if "global" not in source and "nonlocal" not in source:
        return frozenset()
    declarations = (node for node in walk(fn.node) if isinstance(node, (ast.Global, ast.Nonlocal)))
    return frozenset(name for node in declarations for name in node.names)


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
        self._stack = [fn]
        """The functions that are being run."""
        self._calls: list[list[tuple[State, Views]]] = []
        """By call that is being run, the states in which it returns, with what it returns."""
        self._left = _MAX_STATEMENTS
        self._shared = _declared(fn)

    @property
    def function(self) -> FunctionDef:
        """The function that is being run."""
        return self._stack[-1]

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
        target = node.targets[0]
        if len(node.targets) == 1 and (self._pairs(target, node.value) or self._list(target, node.value)):
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

    def _list(self, target: ast.expr, value: ast.expr) -> bool:
        """`a = [b, c]`; returns whether the assignment has this form."""
        if not isinstance(value, (ast.List, ast.Tuple)) or not isinstance(target, (ast.Name, ast.Attribute)):
            return False
        path = self.path(target)
        values = [(one, self.evaluate(one)) for one in value.elts]
        self.bind(target, NONE, None)
        for index, (one, views) in enumerate(values):
            element = ast.Subscript(target, ast.Constant(index), ast.Load())
            escape(views)
            if path is not None and not isinstance(one, ast.Starred):
                self.bind_path(element, f"{path}[{index}]", views, one)
        return True

    def _annotated(self, node: ast.AnnAssign) -> bool:
        if node.value is not None:
            self.bind(node.target, self.evaluate(node.value), node.value)
        return True

    def _augmented(self, node: ast.AugAssign) -> bool:
        self.reads(self.evaluate(node.value), node.value)
        target = node.target
        self.writes(self.evaluate(target), target)
        if isinstance(target, ast.Name):
            number = self.indices.number(ast.BinOp(target, node.op, node.value))
            self.bound[target.id] += 1
            self.state.numbers.pop(target.id, None)
            if number is not None:
                self.state.numbers[target.id] = number
        return True

    def _return(self, node: ast.Return) -> bool:
        views = self.evaluate(node.value)  # the caller may wait before it reads what is returned
        if self._calls:
            self._calls[-1].append((self.state, views))
        return False

    # calls

    def inline(self, fn: FunctionDef, node: ast.Call) -> Views | None:
        """Run the body of a function of the same file for a call; None if that is not possible."""
        parameters = getattr(fn.node, "args", None)
        if fn.file is not self._fn.file or parameters is None or fn in self._stack or len(self._stack) > _MAX_CALLS:
            return None
        source = fn.file.source_of(fn.node)
        if isinstance(fn.node, ast.AsyncFunctionDef) or not (has_words(source) or ORDERS.search(source)):
            return None
        if "yield" in source or any(isinstance(one, ast.Starred) for one in node.args):
            return None
        names = [one.arg for one in (*parameters.posonlyargs, *parameters.args)]
        owner, prefix = None, ""
        if fn.cls is not None and fn.kind == "function":
            owner = self.path(node.func.value) if isinstance(node.func, ast.Attribute) else None
            if owner is None or not names:
                return None
            prefix = names.pop(0)
        given = {
            **dict(zip(names, node.args, strict=False)),
            **{one.arg: one.value for one in node.keywords if one.arg},
        }
        inside = self._seen_in(fn, owner, prefix)
        for name, argument in given.items():
            self._hand_over(inside, name, argument)
        return self._run_call(fn, inside, owner, prefix)

    def _seen_in(self, fn: FunctionDef, owner: str | None, prefix: str) -> State:
        """The state in which a function is called: of names, it sees those around it, and what its object holds."""
        sees_all = fn.outer is not None and fn.outer in self._stack
        inside = self.state.copy()
        for known in (inside.views, inside.streams, inside.events, inside.numbers):
            before = dict(known)
            if not sees_all:
                known.clear()
            if owner is not None:
                for path, one in before.items():
                    if path.startswith(f"{owner}."):
                        known[f"{prefix}{path[len(owner) :]}"] = one  # type: ignore[assignment]
        return inside

    def _hand_over(self, inside: State, name: str, argument: ast.expr) -> None:
        """Bind a parameter."""
        inside.forget(name)
        views = self.operands(argument)
        if views:
            inside.views[name] = views
        stream = self.stream_value(argument)
        if stream is not None:
            inside.streams[name] = stream
        event = self.event_at(self.path(argument))
        if event is not None:
            inside.events[name] = event
        number = self.indices.number(argument)
        if number is not None:
            inside.numbers[name] = number

    def _run_call(self, fn: FunctionDef, inside: State, owner: str | None, prefix: str) -> Views:
        """Run the body of a function; return what it returns."""
        outside, statement, loops = self.state, self.statement, self._loops
        self.state, self._loops = inside, []
        self._stack.append(fn)
        self._calls.append([])
        reached = self.block(fn.node.body)
        returned = self._calls.pop()
        self._stack.pop()
        self._meet(self.state if reached else None, *(state for state, _ in returned))
        end = self.state
        self.state, self.statement, self._loops = outside, statement, loops
        outside.clocks, outside.freed = end.clocks, end.freed
        if owner is not None:
            _take_back(outside.views, end.views, owner, prefix)
            _take_back(outside.streams, end.streams, owner, prefix)
            _take_back(outside.events, end.events, owner, prefix)
        return NONE.union(*(views for _, views in returned))

    def _raise(self, node: ast.Raise) -> bool:
        self.evaluate(node.exc)
        return False

    def _delete(self, node: ast.Delete) -> bool:
        for target in node.targets:
            path = self.path(target)
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
        known = self.indices.outcome(node.test)
        if known is not None:
            return self.block(node.body if known else node.orelse)
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
        counted = self._counted(node)

        def bind(iteration: int) -> None:
            self.bind(node.target, NONE, None)
            for name, start in counted:
                self.state.numbers[name] = start + iteration
            for target, several in self._elements_of(node):
                index = ast.Constant(iteration)
                self.bind(target, self.select(several, index), None)

        return self._loop(node, bind, self._length(node), may_skip=True)

    def _counted(self, node: ast.For | ast.AsyncFor) -> list[tuple[str, int]]:
        """The counters of a loop, each with its first value: of `range(n)`, and of `enumerate(...)`."""
        called = node.iter
        if not isinstance(called, ast.Call):
            return []
        name, target = last_name(called.func), node.target
        if name == "range" and isinstance(target, ast.Name) and 1 <= len(called.args) <= 2:
            start = self.indices.number(called.args[0]) if len(called.args) == 2 else 0
            return [] if start is None else [(target.id, start)]
        if name == "enumerate" and isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name):
            return [(target.elts[0].id, 0)] if len(called.args) == 1 and not called.keywords else []
        return []

    def _elements_of(self, node: ast.For | ast.AsyncFor) -> list[tuple[ast.expr, Views]]:
        """The targets of a loop over lists of tensors, each with its list."""
        called, target = node.iter, node.target
        if not isinstance(called, ast.Call):
            return [(target, self.evaluate(called))] if isinstance(called, ast.Name) else []
        name = last_name(called.func)
        if name not in ("zip", "enumerate") or not isinstance(target, ast.Tuple):
            return []
        targets = target.elts[1:] if name == "enumerate" else target.elts
        return [
            (one, self.evaluate(given))
            for one, given in zip(targets, called.args, strict=False)
            if isinstance(given, ast.Name)
        ]

    def _length(self, node: ast.For | ast.AsyncFor) -> int:
        """How often a loop is run: as often as it runs, if that is known, but not too often."""
        most = _ITERATIONS if len(self._loops) < 2 else _ITERATIONS - 1
        moduli = [
            self.indices.number(one.right)
            for one in walk_block(node.body)
            if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod)
        ]
        most = min(max([most, *(modulus + 2 for modulus in moduli if modulus is not None)]), _MAX_ITERATIONS)
        length: int | None = None
        if isinstance(node.iter, (ast.List, ast.Tuple)):
            length = len(node.iter.elts)
        elif isinstance(node.iter, ast.Call) and last_name(node.iter.func) == "range" and len(node.iter.args) == 1:
            length = self.indices.number(node.iter.args[0])
        return most if length is None else min(most, length)

    def _while(self, node: ast.While) -> bool:
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)

        def test(iteration: int) -> None:
            self.truth(node.test)

        return self._loop(node, test, _ITERATIONS if len(self._loops) < 2 else _ITERATIONS - 1, may_skip=not endless)

    def _loop(
        self, node: ast.For | ast.AsyncFor | ast.While, start: Callable[[int], None], length: int, may_skip: bool
    ) -> bool:
        loop = _Loop()
        self._loops.append(loop)
        skipped = self.state.copy() if may_skip else None
        reached = True
        for iteration in range(length):
            self.statement = node
            start(iteration)
            reached = self._meet(self._branch(node.body, [], self.state), *loop.continues)
            loop.continues.clear()
            if not reached:
                break
        self._loops.pop()
        end = self.state if reached else None
        if not self._meet(end, skipped if end is None else None, *loop.breaks):
            return False
        for target in ast.walk(node.target) if not isinstance(node, ast.While) else ():
            if isinstance(target, ast.Name):
                self.state.numbers.pop(target.id, None)  # the loop may go on
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
                graph = (self.path(manager.args[0]) if manager.args else None) or ""
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
        is_stream = self.value(manager).kind is Kind.STREAM or self.path(manager) in self.state.streams
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


def _take_back(known: dict[str, _T], inside: dict[str, _T], owner: str, prefix: str) -> None:
    """Keep what a method has assigned to its object."""
    for path, one in inside.items():
        if path.startswith(f"{prefix}."):
            known[f"{owner}{path[len(prefix) :]}"] = one


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
