"""The names that may carry a value from one iteration of a loop to the next."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from gpusync_lint.syntax.blocks import blocks
from gpusync_lint.syntax.traversal import children

if TYPE_CHECKING:
    from collections.abc import Callable

_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def read_first(loop: ast.For | ast.AsyncFor | ast.While) -> frozenset[str]:
    """The names that an iteration may read before it binds them. May include names that it certainly binds first."""
    reads = _Reads(set(), set(), set())
    if isinstance(loop, ast.While):
        reads.read(loop.test)
    else:
        reads.bind(loop.target)
        reads.keys |= reads.bound
    reads.follow(loop.body)
    return frozenset(reads.first)


class _Reads:
    """Follows the statements of an iteration in order."""

    def __init__(self, bound: set[str], first: set[str], keys: set[str]) -> None:
        self.bound = bound
        """The names that are certainly bound at this point."""
        self.first = first
        """The names that may be read before they are bound."""
        self.keys = keys
        """The targets of the loop. No other iteration stores the item `batch[key]`."""

    def follow(self, body: list[ast.stmt]) -> None:
        """Follow the statements of a block."""
        for statement in body:
            _HANDLERS.get(statement.__class__, _other)(self, statement)

    def branch(self, body: list[ast.stmt], target: ast.expr | None = None) -> set[str]:
        """Follow a block that may not run to its end. Returns the names that are bound if it does."""
        inside = _Reads(set(self.bound), self.first, set(self.keys))
        if target is not None:
            inside.bind(target)
        inside.follow(body)
        return inside.bound

    def read(self, node: ast.AST) -> None:
        """Record the names that an expression, or any other syntax, reads."""
        stack = [node]
        while stack:
            inner = stack.pop()
            kind = inner.__class__
            if kind is ast.Name:
                name: str = inner.id  # type: ignore[attr-defined]
                if name not in self.bound and inner.ctx.__class__ is not ast.Store:  # type: ignore[attr-defined]
                    self.first.add(name)
            elif kind is ast.Attribute:
                stack.append(inner.value)  # type: ignore[attr-defined]
            elif kind is not ast.Constant and not (kind is ast.Subscript and self._is_own_item(inner)):  # type: ignore[arg-type]
                stack += children(inner)

    def _is_own_item(self, node: ast.Subscript) -> bool:
        return isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Name) and node.slice.id in self.keys

    def bind(self, target: ast.expr) -> None:
        """Record an assignment to a target."""
        if isinstance(target, ast.Name):
            self.bound.add(target.id)
            self.keys.discard(target.id)
            return
        self.read(target)  # the objects whose attributes or items are assigned
        if isinstance(target, (ast.Tuple, ast.List)):
            for item in target.elts:
                self.bind(item.value if isinstance(item, ast.Starred) else item)


def _assign(reads: _Reads, node: ast.Assign) -> None:
    reads.read(node.value)
    for target in node.targets:
        reads.bind(target)


def _annotated_assign(reads: _Reads, node: ast.AnnAssign) -> None:
    if node.value is not None:
        reads.read(node.value)
        reads.bind(node.target)


def _augmented_assign(reads: _Reads, node: ast.AugAssign) -> None:
    if isinstance(node.target, ast.Name) and node.target.id not in reads.bound:
        reads.first.add(node.target.id)
    reads.read(node.value)
    reads.bind(node.target)


def _if(reads: _Reads, node: ast.If) -> None:
    reads.read(node.test)
    ends = []
    for block in (node.body, node.orelse):
        bound = reads.branch(block)
        if not (block and isinstance(block[-1], _LEAVING)):
            ends.append(bound)
    if ends:
        reads.bound |= set.intersection(*ends)


def _with(reads: _Reads, node: ast.With | ast.AsyncWith) -> None:
    for item in node.items:
        reads.read(item.context_expr)
        if item.optional_vars is not None:
            reads.bind(item.optional_vars)
    reads.follow(node.body)


def _for(reads: _Reads, node: ast.For | ast.AsyncFor) -> None:
    reads.read(node.iter)
    reads.branch(node.body, node.target)
    reads.branch(node.orelse)


def _while(reads: _Reads, node: ast.While) -> None:
    reads.read(node.test)
    _try(reads, node)


def _try(reads: _Reads, node: ast.stmt) -> None:
    for block in blocks(node):
        reads.branch(block)


def _definition(reads: _Reads, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
    reads.read(node)  # the body may run at any later time
    reads.bound.add(node.name)


def _other(reads: _Reads, node: ast.stmt) -> None:
    reads.read(node)


_HANDLERS: dict[type[ast.stmt], Callable[[_Reads, Any], None]] = {
    ast.Assign: _assign,
    ast.AnnAssign: _annotated_assign,
    ast.AugAssign: _augmented_assign,
    ast.If: _if,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.For: _for,
    ast.AsyncFor: _for,
    ast.While: _while,
    ast.Try: _try,
    ast.FunctionDef: _definition,
    ast.AsyncFunctionDef: _definition,
    ast.ClassDef: _definition,
}
