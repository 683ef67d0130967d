"""What a function's own calls show of the names in it: a loss is what `backward()` is called on."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from functools import cache
from typing import TYPE_CHECKING

from gpusync_lint.domain import torch_api
from gpusync_lint.domain.training_idioms import BACKWARD, backward_of
from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.traversal import children

if TYPE_CHECKING:
    from gpusync_lint.project.symbols import FunctionDef, ModuleDef

Evidence = tuple[frozenset[str], frozenset[str]]
"""Dotted paths on which `.backward()` is called, and those on which methods are called that only modules have."""

_NONE: Evidence = (frozenset(), frozenset())


class UsageEvidence:
    """The evidence of each function, found once."""

    def __init__(self) -> None:
        self._known: dict[FunctionDef, Evidence] = {}
        self._lines: dict[ModuleDef, list[int]] = {}
        """The lines of each file that may hold evidence."""

    def of(self, fn: FunctionDef) -> Evidence:
        """The evidence in a function."""
        known = self._known.get(fn)
        if known is None:
            # The text is searched first: few functions hold any, and traversing all of them takes longer.
            known = self._known[fn] = _gather(fn) if self._may_hold(fn) else _NONE
        return known

    def _may_hold(self, fn: FunctionDef) -> bool:
        lines = self._lines.get(fn.file)
        if lines is None:
            lines = self._lines[fn.file] = _lines(fn.file.text)
        if isinstance(fn.node, ast.Module):
            return bool(lines)
        first = bisect_left(lines, fn.node.lineno)
        return first < len(lines) and lines[first] <= (fn.node.end_lineno or fn.node.lineno)


def _gather(fn: FunctionDef) -> Evidence:
    backward: set[str] = set()
    modules: set[str] = set()
    shown_by = torch_api.modules().evidence
    stack: list[ast.AST] = list(fn.node.body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and fn.is_module:
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in shown_by:
                path = dotted_path(node.func.value)
                if path is not None:
                    modules.add(path)
            elif node.func.attr in BACKWARD:
                path = dotted_path(backward_of(node))
                if path is not None:
                    backward.add(path)
        stack += children(node)
    return (frozenset(backward), frozenset(modules)) if backward or modules else _NONE


def _lines(text: str) -> list[int]:
    found = []
    place, line = 0, 1
    for match in _pattern().finditer(text):
        line += text.count("\n", place, match.start())
        place = match.start()
        found.append(line)
    return found


@cache
def _pattern() -> re.Pattern[str]:
    names = "|".join(sorted({*torch_api.modules().evidence, *BACKWARD}))
    return re.compile(rf"\.[\s\\]*(?:{names})[\s\\]*\(")
