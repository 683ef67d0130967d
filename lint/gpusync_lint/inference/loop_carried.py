"""What one turn of a loop may read that an earlier one has left behind."""

from __future__ import annotations

import ast

from gpusync_lint.syntax.blocks import blocks
from gpusync_lint.syntax.traversal import children

_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def read_first(loop: ast.For | ast.AsyncFor | ast.While) -> frozenset[str]:
    """The names that a turn of a loop may read before it binds them itself; rather one too many than one too few."""
    bound: set[str] = set()
    found: set[str] = set()
    if isinstance(loop, ast.While):
        _note(loop.test, bound, found)
    else:
        _bind(loop.target, bound, found)
    _follow(loop.body, bound, found)
    return frozenset(found)


def _follow(body: list[ast.stmt], bound: set[str], found: set[str]) -> None:
    """Go through a block in order; `bound` gains what is bound for sure once it has run."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            _note(statement.value, bound, found)
            for target in statement.targets:
                _bind(target, bound, found)
        elif isinstance(statement, ast.AnnAssign):
            if statement.value is not None:
                _note(statement.value, bound, found)
                _bind(statement.target, bound, found)
        elif isinstance(statement, ast.AugAssign):
            if isinstance(statement.target, ast.Name) and statement.target.id not in bound:
                found.add(statement.target.id)
            _note(statement.value, bound, found)
            _bind(statement.target, bound, found)
        elif isinstance(statement, ast.If):
            _note(statement.test, bound, found)
            ways = []
            for block in (statement.body, statement.orelse):
                inside = set(bound)
                _follow(block, inside, found)
                if not (block and isinstance(block[-1], _LEAVING)):
                    ways.append(inside)
            if ways:
                bound |= set.intersection(*ways)
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                _note(item.context_expr, bound, found)
                if item.optional_vars is not None:
                    _bind(item.optional_vars, bound, found)
            _follow(statement.body, bound, found)
        elif isinstance(statement, (ast.For, ast.AsyncFor)):
            _note(statement.iter, bound, found)
            inside = set(bound)
            _bind(statement.target, inside, found)
            _follow(statement.body, inside, found)
            _follow(statement.orelse, set(bound), found)
        elif isinstance(statement, (ast.While, ast.Try)):
            if isinstance(statement, ast.While):
                _note(statement.test, bound, found)
            for block in blocks(statement):  # any of them may not run to its end
                _follow(block, set(bound), found)
        else:  # among them functions and classes, of which everything may run at any time
            _note(statement, bound, found)
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                bound.add(statement.name)


def _note(node: ast.AST, bound: set[str], found: set[str]) -> None:
    stack = [node]
    while stack:
        inside = stack.pop()
        kind = inside.__class__
        if kind is ast.Name:
            label: str = inside.id  # type: ignore[attr-defined]
            if label not in bound and inside.ctx.__class__ is not ast.Store:  # type: ignore[attr-defined]
                found.add(label)
        elif kind is ast.Attribute:
            stack.append(inside.value)  # type: ignore[attr-defined]
        elif kind is not ast.Constant:
            stack += children(inside)


def _bind(target: ast.expr, bound: set[str], found: set[str]) -> None:
    if isinstance(target, ast.Name):
        bound.add(target.id)
        return
    _note(target, bound, found)  # the objects of attributes and subscripts that are assigned to
    if isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            _bind(item.value if isinstance(item, ast.Starred) else item, bound, found)
