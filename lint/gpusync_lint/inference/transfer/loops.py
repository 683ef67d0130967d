"""Loops. The function is executed again if an iteration may read a value that the one before it bound."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import element, join
from gpusync_lint.inference.tables import executes
from gpusync_lint.inference.transfer.assignments import bind
from gpusync_lint.inference.transfer.iteration import iterated, yields_batches

if TYPE_CHECKING:
    from gpusync_lint.domain.values import Value
    from gpusync_lint.inference.frame import Frame

_Loop = ast.For | ast.AsyncFor | ast.While


@executes(ast.For, ast.AsyncFor)
def for_loop(frame: Frame, node: ast.For | ast.AsyncFor) -> None:
    """`for target in iterable:`."""
    iterable = iterated(frame, frame.eval(node.iter), node.iter)
    if yields_batches(iterable):
        frame.summary.effects.batch_loops.add(node)
    mark = _enter(frame, node)
    bind(frame, node.target, element(iterable))
    frame.execute(node.body)
    _leave(frame, node, mark)
    frame.execute(node.orelse)


@executes(ast.While)
def while_loop(frame: Frame, node: ast.While) -> None:
    """`while test:`."""
    mark = _enter(frame, node)
    frame.statement = node
    frame.eval(node.test)
    frame.execute(node.body)
    _leave(frame, node, mark)
    frame.execute(node.orelse)


def _enter(frame: Frame, node: _Loop) -> int:
    """Begin an iteration, with the values that other iterations bind. Returns the mark to roll back to."""
    for path, value in frame.carried.get(node, {}).items():
        old = frame.store.get(path)
        frame.store.set(path, value if old is None else join(old, value))
    frame.loops.append(node)
    return frame.store.mark()


def _leave(frame: Frame, node: _Loop, mark: int) -> None:
    """End an iteration, and join its changes with the state before the loop, which may not have run at all."""
    frame.loops.pop()
    after = {path: value for path, value in frame.store.changes(mark).items() if value.kind}
    changed = frame.store.rollback(mark)
    frame.carried[node] = after
    if not frame.is_incomplete:
        frame.is_incomplete = any(_changes_next_iteration(frame, node, path, value) for path, value in after.items())
    frame.store.merge([changed], exhaustive=False)


def _changes_next_iteration(frame: Frame, node: _Loop, path: str, value: Value) -> bool:
    """Whether the next iteration may read a name that this one bound to another value."""
    old = frame.store.get(path)
    if old is not None and (old == value or join(old, value) == old):
        return False
    return "." in path or path in frame.analysis.carried_names(node)
