"""Traversal of `ast` trees, faster than in the standard library: the fields that hold nodes are cached by node type."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEVER_NODES = frozenset(
    {"attr", "conversion", "ctx", "id", "is_async", "kind", "level", "lineno", "module", "op", "ops", "simple", "tag",
     "type_comment"}
)  # fmt: skip
"""Fields that hold no node, or only an operator or a context."""
_MIXED = frozenset({"keys", "kw_defaults", "kwd_attrs", "names"})
"""Lists that may contain something other than nodes."""


class _Fields(dict[type, tuple[str, ...]]):
    """The fields of each node type that may hold nodes, computed on first use."""

    def __missing__(self, key: type[ast.AST]) -> tuple[str, ...]:
        fields = () if key is ast.Constant else tuple(field for field in key._fields if field not in _NEVER_NODES)
        self[key] = fields
        return fields


_FIELDS = _Fields()


def children(node: ast.AST) -> list[ast.AST]:
    """The direct children of a node, in the order of its fields, without contexts and operators."""
    found: list[ast.AST] = []
    for field in _FIELDS[node.__class__]:
        value = getattr(node, field, None)
        if value.__class__ is list:
            if value:
                found += [item for item in value if isinstance(item, ast.AST)] if field in _MIXED else value
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and every node inside it, in no particular order, without contexts and operators."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        if _FIELDS[node.__class__]:  # most nodes are names and constants, which have none
            stack += children(node)


SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
"""Nodes whose bodies have names of their own."""


def walk_block(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Every node of a block, except those inside functions and classes that it defines."""
    stack: list[ast.AST] = list(reversed(body))
    while stack:
        node = stack.pop()
        yield node
        kind = node.__class__
        if _FIELDS[kind] and kind not in SCOPES:
            stack += children(node)
