"""Fixes of loops that wait for one Ray task per turn: all tasks are waited for at once."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.model.findings import Edit, Fix, Span
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from gpusync_lint.rules.base.context import RuleContext

_TITLE = "Get all of them at once"
_APPENDED = "Nothing is kept where one of the tasks fails."
_LOOPED = "All results are held at once, and the first turn begins after the last task is done."


def get_at_once(loop: ast.For, call: ast.Call, subject: ast.expr, context: RuleContext) -> Fix | None:
    """The fix for `ray.get(subject)` in a loop of its own block; None where the loop does more with its variable."""
    if loop.orelse or loop.type_comment:
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
    whole = Span(loop.lineno, context.start_column(loop), loop.end_lineno or loop.lineno, context.end_column(loop))
    refs = _refs(loop, call, subject, context)
    if refs is None or "#" in context.source(whole) or func.value.id in _names(loop.iter) | _names(subject):
        return None
    if _is_used(loop.target, loop, context):
        return None
    return Fix(_TITLE, (Edit(whole, f"{func.value.id}.extend({refs})"),), False, _APPENDED)


def _unroll(loop: ast.For, statement: ast.stmt, call: ast.Call, subject: ast.expr, context: RuleContext) -> Fix | None:
    """`for r in refs:` with `x = ray.get(r)` first in it to `for x in ray.get(list(refs)):`."""
    if not isinstance(statement, ast.Assign) or statement.value is not call or len(statement.targets) != 1:
        return None
    target, over, at = context.span(statement.targets[0]), context.span(loop.iter), context.span(loop.target)
    refs = _refs(loop, call, subject, context)
    following = loop.body[1]
    # The line goes as a whole, so it must hold nothing else.
    line = context.line(statement.lineno)
    alone = line.strip() == context.source(
        Span(
            statement.lineno, context.start_column(statement), statement.end_lineno or 0, context.end_column(statement)
        )
    )
    own_lines = loop.lineno < statement.lineno == statement.end_lineno and following.lineno > statement.lineno
    if refs is None or target is None or over is None or at is None or not own_lines or not alone:
        return None
    if _is_used(loop.target, loop, context, besides=statement):
        return None
    gone = Edit(Span(statement.lineno, 1, statement.lineno + 1, 1), "")
    return Fix(_TITLE, (Edit(at, context.source(target)), Edit(over, refs), gone), False, _LOOPED)


def _refs(loop: ast.For, call: ast.Call, subject: ast.expr, context: RuleContext) -> str | None:
    """The one call that gets everything."""
    func, over, inner, at = (
        context.span(call.func),
        context.span(loop.iter),
        context.span(subject),
        context.span(loop.target),
    )
    if func is None or over is None or inner is None or at is None:
        return None
    if isinstance(subject, ast.Name):
        same = isinstance(loop.target, ast.Name) and loop.target.id == subject.id
        return f"{context.source(func)}(list({context.source(over)}))" if same else None
    return f"{context.source(func)}([{context.source(inner)} for {context.source(at)} in {context.source(over)}])"


def _is_used(target: ast.expr, loop: ast.For, context: RuleContext, besides: ast.stmt | None = None) -> bool:
    """Whether the function reads the loop's variable elsewhere than in the statement that goes."""
    names = _names(target)
    own = {id(node) for part in (besides or loop, loop.target) for node in ast.walk(part)}
    return any(
        isinstance(node, ast.Name) and node.id in names and id(node) not in own
        for node in walk_block(context.function.node.body)
    )


def _names(node: ast.AST) -> set[str]:
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}
