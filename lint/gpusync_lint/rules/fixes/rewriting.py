"""Calls written anew: those on one line by the places that `ast` gives, the others with libcst (`layouts`).

All raise ValueError for text that libcst cannot read.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def with_keywords(text: str, given: Sequence[tuple[str, str]]) -> str:
    """The call with more keyword arguments, each on a line of its own where the others have theirs."""
    call = _on_one_line(text, *(value for _, value in given))
    if call is None or any(isinstance(arg, ast.GeneratorExp) for arg in call.args):
        from gpusync_lint.rewrite import codemod

        return codemod.with_keywords(text, given)
    added = ", ".join(f"{label}={value}" for label, value in given)
    return f"{text[:-1]}{', ' if call.args or call.keywords else ''}{added})"


def filling(text: str, label: str, shape: str, number: str) -> str:
    """The call with a shape and a number in the place of its first argument, and another last name."""
    call = _on_one_line(text, shape, number)
    if call is not None:
        first = call.args[0]
        before, after = text[call.func.end_col_offset : first.col_offset], text[first.end_col_offset :]
        if before == "(" and (after == ")" or (after[:2] == ", " and after[2] != " ")):
            return f"{_renamed(text, call, label)}({shape}, {number}{after}"
    from gpusync_lint.rewrite import codemod

    return codemod.filling(text, label, shape, number)


def calling(text: str, label: str) -> str:
    """The call of a function, or a method, of another last name."""
    call = _on_one_line(text)
    if call is None:
        from gpusync_lint.rewrite import codemod

        return codemod.calling(text, label)
    return f"{_renamed(text, call, label)}{text[call.func.end_col_offset :]}"


def _on_one_line(*texts: str) -> ast.Call | None:
    """The call that the first text is; None where a text goes over several lines, or places are not characters."""
    call = texts[0]
    if any("\n" in text or not text.isascii() for text in texts) or call[-2:-1] in (" ", "\t", ","):
        return None
    try:
        node = ast.parse(call, mode="eval").body
    except SyntaxError:  # newer than this Python
        return None
    return node if isinstance(node, ast.Call) else None


def _renamed(text: str, call: ast.Call, label: str) -> str:
    """What is called, up to the arguments, with another last name."""
    assert isinstance(call.func, ast.Attribute)
    return f"{text[: call.func.end_col_offset].removesuffix(call.func.attr)}{label}"
