"""Fixes of loops that wait for one Ray task per turn: all tasks are waited for at once."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.model.findings import Edit, Fix, Span
from gpusync_lint.rules.base.blocks import walk

if TYPE_CHECKING:
    from gpusync_lint.rules.base.context import Look

_TITLE = "Get all of them at once"
_APPENDED = "Nothing is kept where one of the tasks fails."
_LOOPED = "All results are held at once, and the first turn begins after the last task is done."


def get_at_once(loop: ast.For, call: ast.Call, subject: ast.expr, look: Look) -> Fix | None:
    """The fix for `ray.get(subject)` in a loop of its own block; None where the loop does more with its variable."""
    if loop.orelse or loop.type_comment:
        return None
    statement = look.at.statement
    if loop.body == [statement]:
        return _extend(loop, statement, call, subject, look)
    if loop.body[0] is statement:
        return _unroll(loop, statement, call, subject, look)
    return None


def _extend(loop: ast.For, statement: ast.stmt, call: ast.Call, subject: ast.expr, look: Look) -> Fix | None:
    """`for r in refs: out.append(ray.get(r))` to `out.extend(ray.get(list(refs)))`."""
    append = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(append, ast.Call) or append.args != [call] or append.keywords:
        return None
    func = append.func
    if not isinstance(func, ast.Attribute) or func.attr != "append" or not isinstance(func.value, ast.Name):
        return None
    whole = Span(loop.lineno, look.start(loop), loop.end_lineno or loop.lineno, look.end(loop))
    refs = _refs(loop, call, subject, look)
    if refs is None or "#" in look.text(whole) or func.value.id in _names(loop.iter) | _names(subject):
        return None
    if _is_used(loop.target, loop, look):
        return None
    return Fix(_TITLE, (Edit(whole, f"{func.value.id}.extend({refs})"),), False, _APPENDED)


def _unroll(loop: ast.For, statement: ast.stmt, call: ast.Call, subject: ast.expr, look: Look) -> Fix | None:
    """`for r in refs:` with `x = ray.get(r)` first in it to `for x in ray.get(list(refs)):`."""
    if not isinstance(statement, ast.Assign) or statement.value is not call or len(statement.targets) != 1:
        return None
    target, over, at = look.span(statement.targets[0]), look.span(loop.iter), look.span(loop.target)
    refs = _refs(loop, call, subject, look)
    following = loop.body[1]
    # The line goes as a whole, so it must hold nothing else.
    line = look.line(statement.lineno)
    alone = line.strip() == look.text(
        Span(statement.lineno, look.start(statement), statement.end_lineno or 0, look.end(statement))
    )
    own_lines = loop.lineno < statement.lineno == statement.end_lineno and following.lineno > statement.lineno
    if refs is None or target is None or over is None or at is None or not own_lines or not alone:
        return None
    if _is_used(loop.target, loop, look, besides=statement):
        return None
    gone = Edit(Span(statement.lineno, 1, statement.lineno + 1, 1), "")
    return Fix(_TITLE, (Edit(at, look.text(target)), Edit(over, refs), gone), False, _LOOPED)


def _refs(loop: ast.For, call: ast.Call, subject: ast.expr, look: Look) -> str | None:
    """The one call that gets everything."""
    func, over, inner, at = look.span(call.func), look.span(loop.iter), look.span(subject), look.span(loop.target)
    if func is None or over is None or inner is None or at is None:
        return None
    if isinstance(subject, ast.Name):
        same = isinstance(loop.target, ast.Name) and loop.target.id == subject.id
        return f"{look.text(func)}(list({look.text(over)}))" if same else None
    return f"{look.text(func)}([{look.text(inner)} for {look.text(at)} in {look.text(over)}])"


def _is_used(target: ast.expr, loop: ast.For, look: Look, besides: ast.stmt | None = None) -> bool:
    """Whether the function reads the loop's variable elsewhere than in the statement that goes."""
    names = _names(target)
    own = {id(node) for part in (besides or loop, loop.target) for node in ast.walk(part)}
    return any(
        isinstance(node, ast.Name) and node.id in names and id(node) not in own for node in walk(look.at.fn.node.body)
    )


def _names(node: ast.AST) -> set[str]:
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}
