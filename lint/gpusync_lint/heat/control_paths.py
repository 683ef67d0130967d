"""The way from a function's entry to a statement: the loops, guards and ways out that lie on it.

Statements are looked up one by one, by their lines: what nobody asks about is not gone through, and of an `if` that
nobody asks into it does not matter what it guards.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from gpusync_lint.heat.memoization import Fillings, Kept, fills, settles
from gpusync_lint.syntax.blocks import blocks
from gpusync_lint.syntax.traversal import children

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusync_lint.heat.memoization import Methods

_GUARD_WORDS = re.compile(
    r"(?<![a-z])(log(s|ger|gers|ged|ging)?|print|report|verbose|every|interval|freq(uency)?|debug|eval(uate)?|sav(e|ing)"
    r"|checkpoint|ckpt|viz|vis|visuali[sz]e|plot)(?![a-z])",
    re.I,
)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_TRY = (ast.Try, ast.TryStar) if hasattr(ast, "TryStar") else (ast.Try,)


@dataclass(eq=False, slots=True)
class Step:
    """One thing on the way from a function's entry to a statement: a loop, a guard, or a way out of a loop."""

    kind: str
    """`loop`, `guard`, `exit` (a block that leaves the loop around it) or `error` (one that raises)."""
    parent: Step | None


class Ways:
    """The ways through one function. `own` are the methods of its class."""

    def __init__(self, body: list[ast.stmt], own: Methods) -> None:
        self._known: dict[int, Step | None] = {}
        self._path = [_Block(body, None, False, own)]
        """The block that was looked into last, after those around it: what is asked for next is mostly near."""

    def to(self, statement: ast.stmt) -> Step | None:
        """The last step on the way to a statement of the function."""
        identity = id(statement)
        if identity not in self._known:
            found = self._find(statement)
            self._known[identity] = None if found is None else found[0].own_way(found[1])
        return self._known[identity]

    def loops(self, wanted: set[ast.stmt]) -> list[Step]:
        """The steps that some loops are."""
        found: list[Step] = []
        stack = [self._path[0]]
        while stack:
            block = stack.pop()
            for place, statement in enumerate(block.body):
                if statement in wanted:
                    found.append(block.loop(place))
                stack += (block.inside(place, part) for part in _parts(statement))
        return found

    def _find(self, statement: ast.stmt) -> tuple[_Block, int] | None:
        """The block that holds a statement, and its place there; None where it is not the function's."""
        line = statement.lineno
        for length in range(len(self._path), 0, -1):
            stack = [self._path[:length]]
            while stack:
                path = stack.pop()
                block = path[-1]
                place = bisect_right(block.lines, line)
                while place:  # several may stand on one line
                    place -= 1
                    candidate = block.body[place]
                    if candidate is statement:
                        self._path = path
                        return block, place
                    if _last_line(candidate) < line:
                        break
                    for part in _parts(candidate):
                        if part[0].lineno <= line <= _last_line(part[-1]):
                            stack.append([*path, block.inside(place, part)])
        return None


class _Block:
    """A list of statements, and the ways to each of them."""

    __slots__ = ("_fillings", "_inner", "_kept", "_lines", "_loops", "_own", "_repeats", "_ways", "body")

    def __init__(self, body: list[ast.stmt], way: Step | None, repeats: bool, own: Methods) -> None:
        last = body[-1] if body else None
        if isinstance(last, ast.Raise):
            way = Step("error", way)
        elif repeats and way is not None and isinstance(last, (ast.Return, ast.Break)):
            way = Step("exit", way)
        self.body = body
        self._lines: list[int] | None = None
        self._repeats = repeats
        """Whether a way out of it leaves a loop."""
        self._own = own
        self._fillings: Fillings | None = None
        self._kept: Kept | None = None
        self._ways = [way]
        """The ways to its first statements."""
        self._loops: dict[int, Step] = {}
        self._inner: dict[int, _Block] = {}

    @property
    def lines(self) -> list[int]:
        """Where its statements begin."""
        if self._lines is None:
            self._lines = [statement.lineno for statement in self.body]
        return self._lines

    def own_way(self, place: int) -> Step | None:
        """The way to the statement at a place; the test of a `while` runs as often as its body."""
        return self.loop(place) if isinstance(self.body[place], ast.While) else self._way(place)

    def loop(self, place: int) -> Step:
        """The step that the loop at a place is."""
        if place not in self._loops:
            self._loops[place] = Step("loop", self._way(place))
        return self._loops[place]

    def inside(self, place: int, part: list[ast.stmt]) -> _Block:
        """A block of the statement at a place."""
        found = self._inner.get(id(part))
        if found is None:
            way, repeats = self._enter(place, part)
            found = self._inner[id(part)] = _Block(part, way, repeats, self._own)
        return found

    def _enter(self, place: int, part: list[ast.stmt]) -> tuple[Step | None, bool]:
        """The way into a block of a statement, and whether a way out of it leaves a loop."""
        statement = self.body[place]
        if isinstance(statement, _LOOPS):
            return (self.loop(place), True) if part is statement.body else (self._way(place), False)
        way = self._way(place)
        if isinstance(statement, ast.If):
            if part is statement.body and (_is_guard(statement.test) or fills(statement, self._own)):
                way = Step("guard", way)
        elif isinstance(statement, _TRY):
            if part is not statement.body and part is not statement.orelse and part is not statement.finalbody:
                way = Step("guard", way)  # what goes wrong in every step is repaired, not caught
        elif isinstance(statement, ast.ClassDef):
            return way, False
        return way, self._repeats

    def _way(self, place: int) -> Step | None:
        ways = self._ways
        while len(ways) <= place:
            before = len(ways) - 1
            statement, way = self.body[before], ways[-1]
            if isinstance(statement, ast.If) and (_lets_pass(statement) or self._settles(statement, before)):
                way = Step("guard", way)
            ways.append(way)
        return ways[place]

    def _settles(self, statement: ast.If, place: int) -> bool:
        if self._fillings is None or self._kept is None:
            self._fillings, self._kept = Fillings(self.body, self._own), Kept(self.body)
        return settles(statement, place, self._fillings, self._kept)


def _parts(statement: ast.stmt) -> Iterable[list[ast.stmt]]:
    """The blocks of a statement that run with its function."""
    return () if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) else blocks(statement)


def _last_line(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno


def _lets_pass(statement: ast.If) -> bool:
    """`if step % 100: continue`, `if not verbose: return`: what follows is guarded."""
    if len(statement.body) > 1 or statement.orelse or not isinstance(statement.body[0], (ast.Return, ast.Continue)):
        return False
    test = statement.test
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_guard(test.operand)
    if isinstance(test, ast.Compare):
        return isinstance(test.ops[0], ast.NotEq) and isinstance(test.left, ast.BinOp) and _is_guard(test)
    return isinstance(test, ast.BinOp) and isinstance(test.op, ast.Mod)


def _is_guard(test: ast.expr) -> bool:
    """`step % 100 == 0`, `if log_interval and ...`, `if step == 0`."""
    stack: list[ast.AST] = [test]
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is ast.Name:
            if _says_guard(cast("ast.Name", node).id):
                return True
        elif kind is not ast.Constant:
            if kind is ast.Attribute:
                if _says_guard(cast("ast.Attribute", node).attr):
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
def _says_guard(label: str) -> bool:
    return _GUARD_WORDS.search(label) is not None
