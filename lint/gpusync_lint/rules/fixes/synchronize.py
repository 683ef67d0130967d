"""Waiting for the device before each read of a clock."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.model.operations import InsertAfter, InsertBefore, ReplaceExpression, Template
from gpusync_lint.syntax.traversal import walk

if TYPE_CHECKING:
    from gpusync_lint.model.findings import Fix
    from gpusync_lint.model.operations import Operation
    from gpusync_lint.rules.base.context import RuleContext

_TITLE = "Wait for the GPU before the clock is read"
_HAZARD = "The program waits for the GPU where the clock is read."
_CALL = Template("torch.cuda.synchronize()")


def synchronize_between(block: list[ast.stmt], start: int, stop: int, context: RuleContext) -> Fix | None:
    """Insert `torch.cuda.synchronize()` before the statement that starts a measurement and the one that ends it."""
    last: list[Operation] = [InsertBefore(context.span(block[stop]), _CALL)]
    if start and _synchronizes(block[start - 1]):
        return _fix(last, context)
    return _fix([InsertBefore(context.span(block[start]), _CALL), *last], context) or _fix(last, context)


def synchronize_in(body: list[ast.stmt], context: RuleContext) -> Fix | None:
    """Insert `torch.cuda.synchronize()` at the end of a block whose time is measured."""
    return _fix([InsertAfter(context.span(body[-1]), _CALL)], context)


def synchronize_in_lambda(node: ast.Lambda, context: RuleContext) -> Fix | None:
    """`lambda: f(x)` to `lambda: (f(x), torch.cuda.synchronize())`."""
    new = context.template("({}, torch.cuda.synchronize())", node.body)
    return _fix([ReplaceExpression(context.span(node.body), new)], context)


def _fix(operations: list[Operation], context: RuleContext) -> Fix | None:
    if context.file.imports.get("torch") != "torch":
        return None
    return context.fix(_TITLE, *operations, hazard=_HAZARD)


def _synchronizes(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == "synchronize" for node in walk(statement))
