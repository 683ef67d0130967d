"""The position of a statement in its function: the blocks and loops around it."""

from __future__ import annotations

import ast
from bisect import bisect_right
from typing import TYPE_CHECKING

from gpusync_lint.syntax.blocks import blocks
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from gpusync_lint.project.symbols import FunctionDef

LOOPS = (ast.For, ast.AsyncFor, ast.While)


def around(fn: FunctionDef, statement: ast.stmt) -> list[tuple[list[ast.stmt], int]]:
    """The blocks around a statement, outermost first, each with an index in it; empty if it is not in the function."""
    return _descend(fn.node.body, statement) or []


def _descend(body: list[ast.stmt], wanted: ast.stmt) -> list[tuple[list[ast.stmt], int]] | None:
    place = bisect_right(body, _position(wanted), key=_position) - 1
    if place < 0:
        return None
    statement = body[place]
    if statement is wanted:
        return [(body, place)]
    if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        for block in blocks(statement):
            found = _descend(block, wanted)
            if found is not None:
                return [(body, place), *found]
    return None


def _position(statement: ast.stmt) -> tuple[int, int]:
    return statement.lineno, statement.col_offset


def bound_names(statement: ast.stmt) -> set[str]:
    """The names that a statement, or one inside it, binds or deletes."""
    return {
        node.id
        for node in walk_block([statement])
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del))
    }
