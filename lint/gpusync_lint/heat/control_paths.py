"""The path from a function's entry to a statement: the loops, guards, exits and errors on it.

Each statement is found by its line. Blocks without such a statement are not visited,
and whether an `if` is a guard is decided only if it contains one.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from gpusync_lint.heat.memoization import Assignments, KeptNames, assigns_what_is_missing, returns_what_was_kept
from gpusync_lint.model.placement import PathKind, PathNode
from gpusync_lint.syntax.blocks import blocks
from gpusync_lint.syntax.traversal import children

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusync_lint.heat.memoization import Methods
    from gpusync_lint.model.placement import Path

_GUARD_WORDS = re.compile(
    r"(?<![a-z])(log(s|ger|gers|ged|ging)?|print|report|verbose|every|interval|freq(uency)?|debug|eval(uate)?|sav(e|ing)"
    r"|checkpoint|ckpt|viz|vis|visuali[sz]e|plot)(?![a-z])",
    re.I,
)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_TRY = (ast.Try, ast.TryStar) if hasattr(ast, "TryStar") else (ast.Try,)


_GUARD = PathNode(PathKind.GUARD)
_EXIT = PathNode(PathKind.EXIT)
_ERROR = PathNode(PathKind.ERROR)


class ControlPaths:
    """The paths through one function."""

    def __init__(self, body: list[ast.stmt], methods: Methods) -> None:
        """`methods` are those of the class of the function."""
        self._known: dict[ast.stmt, Path] = {}
        self._last = [_Block(body, (), False, methods)]
        """The block of the last statement, after the blocks around it. The next statement is often near it."""

    def to(self, statement: ast.stmt) -> Path:
        """The path to a statement; empty for a statement of another function."""
        path = self._known.get(statement)
        if path is None:
            found = self._find(statement)
            path = self._known[statement] = () if found is None else found[0].path_to(found[1])
        return path

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
        line = statement.lineno
        for length in range(len(self._last), 0, -1):
            stack = [self._last[:length]]
            while stack:
                nested = stack.pop()
                block = nested[-1]
                index = bisect_right(block.lines, line)
                while index:  # several statements may be on one line
                    index -= 1
                    candidate = block.body[index]
                    if candidate is statement:
                        self._last = nested
                        return block, index
                    if _last_line(candidate) < line:
                        break
                    for number, part in enumerate(_parts(candidate)):
                        if part[0].lineno <= line <= _last_line(part[-1]):
                            stack.append([*nested, block.inner(index, number)])
        return None


class _Block:
    """A list of statements, and the path to each of them."""

    __slots__ = ("_assignments", "_in_loop", "_inner", "_kept", "_lines", "_methods", "_paths", "body")

    def __init__(self, body: list[ast.stmt], path: Path, in_loop: bool, methods: Methods) -> None:
        last = body[-1] if body else None
        if isinstance(last, ast.Raise):
            path = (*path, _ERROR)
        elif in_loop and isinstance(last, (ast.Return, ast.Break)):
            path = (*path, _EXIT)
        self.body = body
        self._lines: list[int] | None = None
        self._in_loop = in_loop
        """Whether a return or break in the block leaves a loop."""
        self._methods = methods
        self._assignments: Assignments | None = None
        self._kept: KeptNames | None = None
        self._paths = [path]
        """The paths to its first statements."""
        self._inner: dict[tuple[int, int], _Block] = {}

    @property
    def lines(self) -> list[int]:
        """The first line of each statement."""
        if self._lines is None:
            self._lines = [statement.lineno for statement in self.body]
        return self._lines

    def path_to(self, index: int) -> Path:
        """The path to a statement. The test of a `while` runs as often as its body."""
        return self.path_into_loop(index) if isinstance(self.body[index], ast.While) else self._path(index)

    def path_into_loop(self, index: int) -> Path:
        """The path to the body of a loop."""
        return (*self._path(index), PathNode(PathKind.LOOP, self.body[index].lineno))

    def inner(self, index: int, number: int) -> _Block:
        """One of the blocks of a statement, in the order of `_parts`."""
        found = self._inner.get((index, number))
        if found is None:
            part = _parts(self.body[index])[number]
            path, in_loop = self._enter(index, part)
            found = self._inner[index, number] = _Block(part, path, in_loop, self._methods)
        return found

    def _enter(self, index: int, part: list[ast.stmt]) -> tuple[Path, bool]:
        """The path into a block of a statement, and whether a return or break there leaves a loop."""
        statement = self.body[index]
        if isinstance(statement, _LOOPS):
            return (self.path_into_loop(index), True) if part is statement.body else (self._path(index), False)
        path = self._path(index)
        if isinstance(statement, ast.If):
            if part is statement.body and (
                _is_guard(statement.test) or assigns_what_is_missing(statement, self._methods)
            ):
                path = (*path, _GUARD)
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
            if isinstance(statement, ast.If) and (_guards_the_rest(statement) or self._returns_kept(statement, before)):
                path = (*path, _GUARD)
            paths.append(path)
        return paths[index]

    def _returns_kept(self, statement: ast.If, index: int) -> bool:
        if self._assignments is None or self._kept is None:
            self._assignments, self._kept = Assignments(self.body, self._methods), KeptNames(self.body)
        return returns_what_was_kept(statement, index, self._assignments, self._kept)


def _parts(statement: ast.stmt) -> Sequence[list[ast.stmt]]:
    """The blocks of a statement that run when its function runs."""
    return () if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) else blocks(statement)


def _last_line(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno


def _guards_the_rest(statement: ast.If) -> bool:
    """Whether what follows is guarded: `if step % 100: continue`, `if not verbose: return`."""
    if len(statement.body) > 1 or statement.orelse or not isinstance(statement.body[0], (ast.Return, ast.Continue)):
        return False
    test = statement.test
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_guard(test.operand)
    if isinstance(test, ast.Compare):
        return isinstance(test.ops[0], ast.NotEq) and isinstance(test.left, ast.BinOp) and _is_guard(test)
    return isinstance(test, ast.BinOp) and isinstance(test.op, ast.Mod)


def _is_guard(test: ast.expr) -> bool:
    """Whether a condition is true in few steps only: `step % 100 == 0`, `if log_interval and ...`, `if step == 0`."""
    stack: list[ast.AST] = [test]
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is ast.Name:
            if _is_guard_word(cast("ast.Name", node).id):
                return True
        elif kind is not ast.Constant:
            if kind is ast.Attribute:
                if _is_guard_word(cast("ast.Attribute", node).attr):
                    return True
            elif isinstance(node, ast.BinOp):
                if isinstance(node.op, ast.Mod):
                    return True
            elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
                left, right = node.left, node.comparators[0]
                if isinstance(left, ast.Name) and isinstance(right, ast.Constant) and isinstance(right.value, int):
                    return True
            stack += children(node)
    return False


@lru_cache(maxsize=4096)
def _is_guard_word(label: str) -> bool:
    return _GUARD_WORDS.search(label) is not None
