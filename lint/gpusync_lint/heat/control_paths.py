"""The path from a function's entry to a statement: the loops, guards, exits and errors on it.

Each statement is found by its line. Blocks without such a statement are not visited,
and whether an `if` is a guard is decided only if it contains one.
"""

from __future__ import annotations

import ast
from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING

from gpusync_lint.heat.default_periods import is_one
from gpusync_lint.heat.guards import Conditions, clears_its_flag, evaluates
from gpusync_lint.heat.left_out import contradicts
from gpusync_lint.heat.loop_forms import form_of
from gpusync_lint.heat.memoization import (
    Assignments,
    KeptNames,
    assigns_what_is_missing,
    moves_what_was_kept,
    returns_what_was_kept,
)
from gpusync_lint.heat.optional_arguments import stands_in
from gpusync_lint.model.placement import PathKind, PathNode
from gpusync_lint.syntax.blocks import blocks
from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusync_lint.heat.left_out import Defaults
    from gpusync_lint.heat.loop_forms import Loop
    from gpusync_lint.heat.memoization import Methods
    from gpusync_lint.model.placement import LoopForm, Path

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_TRY = (ast.Try, ast.TryStar) if hasattr(ast, "TryStar") else (ast.Try,)


_GUARD = PathNode(PathKind.GUARD)
_FEW = PathNode(PathKind.FEW)
_EAGER = PathNode(PathKind.EAGER)
_EXIT = PathNode(PathKind.EXIT)
_ERROR = PathNode(PathKind.ERROR)
_EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit"})
"""Functions that end the program."""


class ControlPaths:
    """The paths through one function."""

    def __init__(
        self,
        body: list[ast.stmt],
        methods: Methods,
        is_optional: Callable[[str], bool] = lambda name: False,
        defaults: Defaults | None = None,
        text: str = "",
    ) -> None:
        """`methods` are those of the class of the function, `is_optional` its `OptionalArguments.is_tested`.

        `defaults` are the parameters that every call leaves out, `text` the text of the file.
        """
        self._known: dict[ast.stmt, Path] = {}
        self._function = _Function(body, methods, is_optional, defaults or {}, text)
        self._last = [_Block(body, (), False, self._function)]
        """The block of the last statement, after the blocks around it. The next statement is often near it."""

    def to(self, statement: ast.stmt) -> Path:
        """The path to a statement; empty for a statement of another function."""
        path = self._known.get(statement)
        if path is None:
            found = self._find(statement)
            path = self._known[statement] = () if found is None else found[0].path_to(found[1])
        return path

    def forms(self) -> tuple[tuple[int, LoopForm], ...]:
        """The forms of the loops on the paths that have been asked for, by their lines, as far as they are known."""
        forms = ((line, form_of(loop)) for line, loop in self._function.loops.items())
        return tuple((line, form) for line, form in forms if form is not None)

    def loops(self, wanted: set[ast.stmt]) -> list[Path]:
        """The paths into the given loops of the function."""
        found: list[Path] = []
        stack = [self._last[0]]
        while stack:
            block = stack.pop()
            for index, statement in enumerate(block.body):
                if statement in wanted:
                    found.append(block.path_into_loop(index))
                stack += (block.inner(index, number) for number in range(len(_parts(statement))))
        return found

    def _find(self, statement: ast.stmt) -> tuple[_Block, int] | None:
        """The block that contains a statement, and the index of the statement in it."""
        line, position = statement.lineno, (statement.lineno, statement.col_offset)
        for length in range(len(self._last), 0, -1):
            stack = [self._last[:length]]
            while stack:
                nested = stack.pop()
                block = nested[-1]
                index = bisect_right(block.positions, position) - 1
                if index < 0:
                    continue
                candidate = block.body[index]
                if candidate is statement:
                    self._last = nested
                    return block, index
                for number, part in enumerate(_parts(candidate)):
                    if part[0].lineno <= line <= _last_line(part[-1]):
                        stack.append([*nested, block.inner(index, number)])
        return None


class _Function:
    """What the conditions in a function are judged by."""

    def __init__(
        self, body: list[ast.stmt], methods: Methods, is_optional: Callable[[str], bool], defaults: Defaults, text: str
    ) -> None:
        self.conditions = Conditions(body, lambda name: is_one(name, text))
        self.methods = methods
        self.is_optional = is_optional
        self.defaults = defaults
        self.loops: dict[int, Loop] = {}
        """The loops on the paths so far, by their lines."""
        self._body = body

    @cached_property
    def shared(self) -> frozenset[str]:
        """The names that the function declares as global or nonlocal, which outlive its call."""
        names: set[str] = set()
        stack = list(self._body)
        while stack:
            statement = stack.pop()
            if isinstance(statement, (ast.Global, ast.Nonlocal)):
                names.update(statement.names)
            elif not isinstance(statement, ast.ClassDef):
                for part in _parts(statement):
                    stack += part
        return frozenset(names)

    def guard(self, statement: ast.If, path: Path) -> PathNode:
        """The guard that a condition is at the end of a path, if it seldom holds."""
        may_train = self.conditions.periodic(statement.test) and not evaluates(statement.test)
        line = statement.lineno if may_train else 0
        loop = next((self.loops[node.line] for node in reversed(path) if node.kind is PathKind.LOOP), None)
        if isinstance(loop, (ast.For, ast.AsyncFor)):
            targets = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
            if self.conditions.counts_with(statement.test, targets):
                return PathNode(PathKind.FEW, line)
        return PathNode(PathKind.GUARD, line)


class _Block:
    """A list of statements, and the path to each of them."""

    __slots__ = ("_assignments", "_function", "_in_loop", "_inner", "_kept", "_paths", "_positions", "body")

    def __init__(self, body: list[ast.stmt], path: Path, in_loop: bool, function: _Function) -> None:
        last = body[-1] if body else None
        if _ends_run(last) and not any(_leaves(statement) for statement in body):
            path = (*path, _ERROR)
        elif in_loop and isinstance(last, (ast.Return, ast.Break)):
            path = (*path, _EXIT)
        self.body = body
        self._positions: list[tuple[int, int]] | None = None
        self._in_loop = in_loop
        """Whether a return or break in the block leaves a loop."""
        self._function = function
        self._assignments: Assignments | None = None
        self._kept: KeptNames | None = None
        self._paths = [path]
        """The paths to its first statements."""
        self._inner: dict[tuple[int, int], _Block] = {}

    @property
    def positions(self) -> list[tuple[int, int]]:
        """The line and column at which each statement starts."""
        if self._positions is None:
            self._positions = [(statement.lineno, statement.col_offset) for statement in self.body]
        return self._positions

    def path_to(self, index: int) -> Path:
        """The path to a statement. The test of a `while` runs as often as its body."""
        if isinstance(self.body[index], ast.While):
            return self.path_into_loop(index)
        path = self._path(index)
        if moves_what_was_kept(self.body, index, self._function.methods):
            return (*path, _GUARD, _EAGER)
        is_error = isinstance(self.body[index], ast.Raise) and path[-1:] != (_ERROR,)
        return (*path, _ERROR) if is_error else path

    def path_into_loop(self, index: int) -> Path:
        """The path to the body of a loop."""
        loop = self.body[index]
        assert isinstance(loop, _LOOPS)
        self._function.loops[loop.lineno] = loop
        return (*self._path(index), PathNode(PathKind.LOOP, loop.lineno))

    def inner(self, index: int, number: int) -> _Block:
        """One of the blocks of a statement, in the order of `_parts`."""
        found = self._inner.get((index, number))
        if found is None:
            part = _parts(self.body[index])[number]
            path, in_loop = self._enter(index, part)
            found = self._inner[index, number] = _Block(part, path, in_loop, self._function)
        return found

    def _enter(self, index: int, part: list[ast.stmt]) -> tuple[Path, bool]:
        """The path into a block of a statement, and whether a return or break there leaves a loop."""
        statement = self.body[index]
        if isinstance(statement, _LOOPS):
            return (self.path_into_loop(index), True) if part is statement.body else (self._path(index), False)
        path = self._path(index)
        if isinstance(statement, ast.If):
            holds = part is statement.body
            if holds and (
                clears_its_flag(statement)
                or self._function.conditions.fills(statement)
                or assigns_what_is_missing(statement, self._function.methods, self.body[:index], self._function.shared)
            ):
                path = (*path, _GUARD, _EAGER)
            elif self._function.conditions.rarely(statement.test, holds):
                path = (*path, self._function.guard(statement, path))
            elif self._in_loop and self._function.conditions.makes_once(statement, holds):
                path = (*path, _FEW)
            elif self._function.defaults and contradicts(statement.test, holds, self._function.defaults):
                path = (*path, _GUARD)
            for name in stands_in(statement.test, holds):
                if self._function.is_optional(name):
                    path = (*path, PathNode(PathKind.DEFAULT, parameter=name))
        elif isinstance(statement, _TRY):
            if part is not statement.body and part is not statement.orelse and part is not statement.finalbody:
                path = (*path, _GUARD)  # an exception in every step would have been avoided
        elif isinstance(statement, ast.ClassDef):
            return path, False
        return path, self._in_loop

    def _path(self, index: int) -> Path:
        paths = self._paths
        while len(paths) <= index:
            before = len(paths) - 1
            statement, path = self.body[before], paths[-1]
            if isinstance(statement, (ast.Raise, ast.Return, ast.Continue, ast.Break)):
                path = (*path, _ERROR)  # what follows never runs
            elif isinstance(statement, ast.If):
                if self._function.conditions.guards_the_rest(statement):
                    path = (*path, self._function.guard(statement, path))
                elif self._returns_kept(statement, before):
                    path = (*path, _GUARD, _EAGER)
            paths.append(path)
        return paths[index]

    def _returns_kept(self, statement: ast.If, index: int) -> bool:
        if self._assignments is None or self._kept is None:
            self._assignments, self._kept = Assignments(self.body, self._function.methods), KeptNames(self.body)
        return returns_what_was_kept(statement, index, self._assignments, self._kept)


def _ends_run(statement: ast.stmt | None) -> bool:
    """Whether a statement ends the program, or raises: `raise ValueError`, `sys.exit(0)`."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return dotted_path(statement.value.func) in _EXITS
    return isinstance(statement, ast.Raise)


def _leaves(statement: ast.stmt) -> bool:
    """Whether a function or an iteration may end in a statement, so that what follows it does not run."""
    return any(isinstance(node, (ast.Return, ast.Continue, ast.Break)) for node in walk_block([statement]))


def _parts(statement: ast.stmt) -> Sequence[list[ast.stmt]]:
    """The blocks of a statement that run when its function runs."""
    return () if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) else blocks(statement)


def _last_line(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno
