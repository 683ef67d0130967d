"""The blocks of compound statements."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLOCKS: dict[type, tuple[str, ...]] = {
    **dict.fromkeys((ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.With, ast.AsyncWith), ("body",)),
    **dict.fromkeys((ast.If, ast.For, ast.AsyncFor, ast.While), ("body", "orelse")),
    **dict.fromkeys((ast.Try, getattr(ast, "TryStar", ast.Try)), ("body", "orelse", "finalbody", "handlers")),
    ast.Match: ("cases",),
}
"""The fields of compound statements that hold statements, directly or in handlers and cases."""


def blocks(statement: ast.stmt) -> Sequence[list[ast.stmt]]:
    """The statement lists directly inside a compound statement."""
    fields = _BLOCKS.get(type(statement))
    if fields is None:
        return ()
    found: list[list[ast.stmt]] = []
    for name in fields:
        if name in ("handlers", "cases"):
            found += [part.body for part in getattr(statement, name)]
        elif block := getattr(statement, name):
            found.append(block)
    return found
