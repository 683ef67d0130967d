"""Arguments that a call may leave out, and the blocks that run only then: `if lengths is None: lengths = measure(x)`.

Such a block does not run for a call that passes the argument. Only parameters with the default None count that the
function binds nowhere else than in such blocks.
"""

from __future__ import annotations

import ast
from functools import cached_property
from typing import TYPE_CHECKING

from gpusync_lint.syntax.blocks import blocks
from gpusync_lint.syntax.traversal import children, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.project.symbols import FunctionDef

Given = tuple[tuple[str, str], ...]
"""As `Call.given`."""
_NONE: frozenset[str] = frozenset()


class _Uses:
    """What a function does with its parameters with the default None."""

    def __init__(self, fn: FunctionDef) -> None:
        self.optional = _optional(fn)
        """The parameters."""
        self._fn = fn

    @cached_property
    def tested(self) -> frozenset[str]:
        """The parameters for which a block stands in, and that are bound in such blocks only."""
        return _stood_in(self._fn.node.body, self.optional)

    @cached_property
    def wanted(self) -> frozenset[str]:
        """The parameters that the function may test or pass on, as its text shows."""
        body = self._fn.file.source_of(self._fn.node).partition(":\n")[2]
        return frozenset(
            name
            for name in self.optional
            if f"({name}" in body or f", {name}" in body or f"={name}" in body or f"{name} is " in body
        )


class OptionalArguments:
    """The parameters of functions with the default None, and the calls that pass them."""

    def __init__(self) -> None:
        self._uses: dict[FunctionDef, _Uses] = {}
        self._calls: tuple[ast.stmt | None, dict[str, list[ast.Call]]] = None, {}
        """The last statement that was asked for, and the calls in it; questions come statement by statement."""

    def is_tested(self, fn: FunctionDef, name: str) -> bool:
        """Whether a name is a parameter of a function for which its blocks stand in."""
        uses = self._used(fn)
        return name in uses.optional and name in uses.tested

    def given(self, fn: FunctionDef, statement: ast.stmt, callee: FunctionDef) -> Given:
        """The parameters that the calls of another function in a statement of `fn` pass, if it tests them."""
        uses = self._used(callee)
        wanted = uses.wanted if uses.optional else _NONE
        if not wanted:
            return ()
        name = callee.cls.name if callee.cls is not None and callee.name == "__init__" else callee.name
        calls = [_passed(node, _positional(callee)) for node in self._calls_of(statement, name)]
        return self._given_by_all(fn, calls, wanted)

    def given_by_name(self, fn: FunctionDef, statement: ast.stmt, callee: str) -> Given:
        """The parameters that the calls of a function that was not read pass by name; `callee` is its name."""
        calls = [_passed(node, []) for node in self._calls_of(statement, callee.rpartition(".")[2])]
        return self._given_by_all(fn, calls, frozenset(calls[0])) if calls and calls[0] else ()

    def _used(self, fn: FunctionDef) -> _Uses:
        found = self._uses.get(fn)
        if found is None:
            found = self._uses[fn] = _Uses(fn)
        return found

    def _calls_of(self, statement: ast.stmt, name: str) -> list[ast.Call]:
        """The calls of a function in a statement, without its blocks, as far as the name of the function shows."""
        if self._calls[0] is not statement:
            self._calls = statement, _calls(statement)
        return self._calls[1].get(name, [])

    def _given_by_all(self, fn: FunctionDef, calls: list[dict[str, ast.expr]], wanted: frozenset[str]) -> Given:
        """The parameters for which each of some calls in a function has an argument other than None."""
        optional = self._used(fn).optional
        found: dict[str, str] = {}
        for name in sorted(wanted):
            values = [call.get(name) for call in calls]
            if not values or any(value is None or _is_none(value) for value in values):
                continue
            sources = {value.id if isinstance(value, ast.Name) and value.id in optional else "" for value in values}
            if sources == {""}:
                found[name] = ""
            elif len(sources) == 1 and sources.isdisjoint(fn.assignments):
                found[name] = sources.pop()
            elif sources <= fn.assignments.keys():
                found[name] = ""
        return tuple(found.items())


def stands_in(test: ast.expr, holds: bool) -> Iterator[str]:
    """The names that are None wherever a condition has an outcome."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from stands_in(test.operand, not holds)
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) is holds:
        for operand in test.values:
            yield from stands_in(operand, holds)
    elif isinstance(test, ast.Compare) and isinstance(test.left, ast.Name):
        is_identity = [type(operator) for operator in test.ops] == [ast.Is if holds else ast.IsNot]
        if is_identity and _is_none(test.comparators[0]):
            yield test.left.id


def _optional(fn: FunctionDef) -> frozenset[str]:
    """The parameters of a function with the default None."""
    if isinstance(fn.node, ast.Module):
        return _NONE
    arguments = fn.node.args
    if not arguments.defaults and not arguments.kw_defaults:
        return _NONE
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = zip(reversed(positional), reversed(arguments.defaults), strict=False)
    named = [*pairs, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return frozenset(one.arg for one, default in named if default is not None and _is_none(default))


def _stood_in(body: list[ast.stmt], optional: frozenset[str]) -> frozenset[str]:
    """The parameters for which a block of a function stands in, and that its statements bind in such blocks only."""
    tested: set[str] = set()
    rebound: set[str] = set()
    stack: list[tuple[list[ast.stmt], frozenset[str]]] = [(body, _NONE)]
    while stack:
        body, missing = stack.pop()
        for statement in body:
            if isinstance(statement, ast.If):
                for block, holds in ((statement.body, True), (statement.orelse, False)):
                    inside = optional.intersection(stands_in(statement.test, holds)) if block else _NONE
                    tested |= inside
                    stack.append((block, missing | inside))
            else:
                rebound.update(name for name in _bound_by(statement) if name not in missing)
                stack += [(block, missing) for block in blocks(statement)]
    return frozenset(tested - rebound)


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement binds, without those that its blocks bind."""
    targets: list[ast.expr | None] = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        targets = [item.optional_vars for item in statement.items]
    for target in targets:
        if target is not None:
            names = (node for node in walk(target) if isinstance(node, ast.Name))
            yield from (node.id for node in names if isinstance(node.ctx, ast.Store))


def _calls(statement: ast.stmt) -> dict[str, list[ast.Call]]:
    """The calls in a statement, without its blocks, by the last name of the called expression."""
    found: dict[str, list[ast.Call]] = {}
    stack = children(statement)
    while stack:
        node = stack.pop()
        if not isinstance(node, ast.stmt):
            if isinstance(node, ast.Call):
                func = node.func
                name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
                found.setdefault(name, []).append(node)
            stack += children(node)
    return found


def _positional(fn: FunctionDef) -> list[str]:
    """The parameters that positional arguments of a call are bound to."""
    if isinstance(fn.node, ast.Module):
        return []
    arguments = fn.node.args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    return names[1:] if fn.cls is not None and fn.kind != "static" else names


def _passed(node: ast.Call, positional: list[str]) -> dict[str, ast.expr]:
    """The arguments of a call by the names of the parameters, as far as the call shows."""
    found = {word.arg: word.value for word in node.keywords if word.arg is not None}
    for name, value in zip(positional, node.args, strict=False):
        if isinstance(value, ast.Starred):
            break
        found[name] = value
    return found


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
