"""Fixes of loops that wait for one Ray task per iteration: one call waits for all tasks."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from gpusync_lint.model.operations import RemoveStatement, ReplaceExpression, ReplaceStatements
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from gpusync_lint.model.findings import Fix
    from gpusync_lint.model.operations import Template
    from gpusync_lint.rules.base.context import RuleContext

_TITLE = "Get all results at once"
_APPENDED = "If one of the tasks fails, no result is kept."
_LOOPED = "All results are in memory at once, and the first iteration begins after the last task has finished."


def get_at_once(loop: ast.For, call: ast.Call, subject: ast.expr, context: RuleContext) -> Fix | None:
    """The fix for `ray.get(subject)` directly in a loop; None if the loop uses its variable for something else."""
    if loop.orelse or context.layout.has_type_comment(loop.lineno, loop.body[0].lineno):
        return None
    statement = context.statement
    if loop.body == [statement]:
        return _extend(loop, statement, call, subject, context)
    if loop.body[0] is statement:
        return _unroll(loop, statement, call, subject, context)
    return None


def _extend(loop: ast.For, statement: ast.stmt, call: ast.Call, subject: ast.expr, context: RuleContext) -> Fix | None:
    """`for r in refs: out.append(ray.get(r))` to `out.extend(ray.get(list(refs)))`."""
    append = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(append, ast.Call) or append.args != [call] or append.keywords:
        return None
    func = append.func
    if not isinstance(func, ast.Attribute) or func.attr != "append" or not isinstance(func.value, ast.Name):
        return None
    refs = _refs(loop, call, subject, context)
    if refs is None or func.value.id in _names(loop.iter) | _names(subject) or _is_used(loop.target, loop, context):
        return None
    extended = replace(refs, text=f"{func.value.id}.extend({refs.text})")
    return context.fix(_TITLE, ReplaceStatements(context.span(loop), extended), hazard=_APPENDED)


def _unroll(loop: ast.For, statement: ast.stmt, call: ast.Call, subject: ast.expr, context: RuleContext) -> Fix | None:
    """`for r in refs:` that begins with `x = ray.get(r)` to `for x in ray.get(list(refs)):`."""
    if not isinstance(statement, ast.Assign) or statement.value is not call or len(statement.targets) != 1:
        return None
    refs = _refs(loop, call, subject, context)
    if refs is None or _is_used(loop.target, loop, context, besides=statement):
        return None
    if not loop.lineno < statement.lineno or statement.end_lineno != statement.lineno:
        return None
    return context.fix(
        _TITLE,
        ReplaceExpression(context.span(loop.target), context.template("{}", statement.targets[0])),
        ReplaceExpression(context.span(loop.iter), refs),
        RemoveStatement(context.span(statement)),
        hazard=_LOOPED,
    )


def _refs(loop: ast.For, call: ast.Call, subject: ast.expr, context: RuleContext) -> Template | None:
    """The call that gets the results of all tasks."""
    if isinstance(subject, ast.Name):
        same = isinstance(loop.target, ast.Name) and loop.target.id == subject.id
        return context.template("{}(list({}))", call.func, loop.iter) if same else None
    return context.template("{}([{} for {} in {}])", call.func, subject, loop.target, loop.iter)


def _is_used(target: ast.expr, loop: ast.For, context: RuleContext, besides: ast.stmt | None = None) -> bool:
    """Whether the function uses the variable of the loop outside of the part that the fix removes."""
    names = _names(target)
    own = {id(node) for part in (besides or loop, loop.target) for node in ast.walk(part)}
    return any(
        isinstance(node, ast.Name) and node.id in names and id(node) not in own
        for node in walk_block(context.function.node.body)
    )


def _names(node: ast.AST) -> set[str]:
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}
