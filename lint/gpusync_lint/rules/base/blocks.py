"""The position of a statement in its function: the blocks and loops around it."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING

from gpusync_lint.syntax.blocks import blocks
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from gpusync_lint.project.symbols import FunctionDef, FunctionNode

LOOPS = (ast.For, ast.AsyncFor, ast.While)


def around(fn: FunctionDef, statement: ast.stmt) -> list[tuple[list[ast.stmt], int]]:
    """The blocks around a statement, outermost first, each with an index in it; empty if it is not in the function."""
    places = _places(fn.node)
    found: list[tuple[list[ast.stmt], int]] = []
    inner: ast.stmt | None = statement
    while inner is not None and inner in places:
        body, index, inner = places[inner]
        found.append((body, index))
    return found[::-1]


@lru_cache(maxsize=2)
def _places(function: FunctionNode) -> dict[ast.stmt, tuple[list[ast.stmt], int, ast.stmt | None]]:
    """For each statement of a function the block that holds it, its index there, and the statement around the block."""
    places: dict[ast.stmt, tuple[list[ast.stmt], int, ast.stmt | None]] = {}
    waiting: list[tuple[list[ast.stmt], ast.stmt | None]] = [(function.body, None)]
    while waiting:
        body, holder = waiting.pop()
        for index, statement in enumerate(body):
            places[statement] = (body, index, holder)
            if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                waiting += [(block, statement) for block in blocks(statement)]
    return places


def bound_names(statement: ast.stmt) -> set[str]:
    """The names that a statement, or one inside it, binds or deletes."""
    return {
        node.id
        for node in walk_block([statement])
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del))
    }
