"""Dotted names in `ast` trees."""

from __future__ import annotations

import ast


def dotted_path(node: ast.expr) -> str | None:
    """The dotted path of a chain of attributes on a name, `self.model.head`; None for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if not isinstance(node, ast.Attribute):
        return None
    words: list[str] = []
    while isinstance(node, ast.Attribute):
        words.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    words.append(node.id)
    return ".".join(reversed(words))
