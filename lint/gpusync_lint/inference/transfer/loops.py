"""Loops. The function is executed again if an iteration may read a value that the one before it bound."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import element, join, join_elements
from gpusync_lint.domain.values import (
    BATCH,
    HOST,
    LOADER,
    UNKNOWN,
    Kind,
    Value,
    dict_of,
    host_constant,
    list_of,
    tuple_of,
)
from gpusync_lint.inference.tables import executes
from gpusync_lint.inference.transfer.assignments import bind
from gpusync_lint.inference.transfer.iteration import iterated, yields_batches
from gpusync_lint.inference.transfer.serving import bind_schedule
from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame

_KEY = host_constant("")
"""A key of a dict, of which only the type is known."""
_ENUMERATED = list_of(tuple_of([HOST, UNKNOWN]))
"""What `enumerate` returns for something unknown."""
_MAY_BE_DICTS = frozenset({Kind.DICT, Kind.UNKNOWN, Kind.TENSOR, Kind.MOVED})
_Loop = ast.For | ast.AsyncFor | ast.While


@executes(ast.For, ast.AsyncFor)
def for_loop(frame: Frame, node: ast.For | ast.AsyncFor) -> None:
    """`for target in iterable:`."""
    iterable = iterated(frame, frame.eval(node.iter), node.iter)
    if node in frame.evidence.batch_loops:
        iterable = _of_batches(iterable)
    if yields_batches(iterable):
        frame.summary.effects.batch_loops.add(node)
    mark = _enter(frame, node)
    bind(frame, node.target, _KEY if _iterates_over_keys(node, iterable) else element(iterable))
    if isinstance(node, ast.For):
        bind_schedule(frame, node)
    frame.execute(node.body)
    rewritten = _rewritten(frame, node)
    _leave(frame, node, mark)
    if rewritten is not None:
        frame.store.set(*rewritten)
    frame.execute(node.orelse)


def _rewritten(frame: Frame, node: ast.For | ast.AsyncFor) -> tuple[str, Value] | None:
    """The path of a dict whose values a loop replaces, and what it is then: `for key in a: a[key] = a[key].cpu()`."""
    iterable, key = node.iter, node.target
    if isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Attribute):
        if iterable.func.attr == "items" and isinstance(key, ast.Tuple):
            key = key.elts[0]
        elif iterable.func.attr != "keys":
            return None
        iterable = iterable.func.value
    path = dotted_path(iterable)
    if path is None or not isinstance(key, ast.Name):
        return None
    stored = [frame.values.get(value, UNKNOWN) for value in _stored(node.body, path, key.id)]
    old = frame.store.get(path)
    if not stored or (old is not None and old.kind not in _MAY_BE_DICTS):
        return None
    value = join_elements(stored)
    if not value.kind and old is not None and old.items:
        return None
    return path, dict_of((), value)


def _stored(body: list[ast.stmt], path: str, key: str) -> list[ast.expr]:
    """What an iteration stores in a dict under the key that it is at; empty if it may store nothing."""
    for one in body:
        if isinstance(one, ast.If):
            first, second = _stored(one.body, path, key), _stored(one.orelse, path, key)
            if first and second:
                return first + second
        target = one.targets[0] if isinstance(one, ast.Assign) else None
        if (
            isinstance(one, ast.Assign)
            and isinstance(target, ast.Subscript)
            and isinstance(target.slice, ast.Name)
            and target.slice.id == key
            and dotted_path(target.value) == path
        ):
            return [one.value]
    return []


def _iterates_over_keys(node: ast.For | ast.AsyncFor, iterable: Value) -> bool:
    """Whether a loop shows that a batch is a dict: `for key in batch: batch[key] = batch[key].to(device)`."""
    if iterable.kind is not Kind.TENSOR or not isinstance(node.target, ast.Name):
        return False
    path = dotted_path(node.iter)
    return path is not None and any(
        isinstance(one, ast.Subscript)
        and isinstance(one.slice, ast.Name)
        and one.slice.id == node.target.id
        and dotted_path(one.value) == path
        for one in walk_block(node.body)
    )


def _of_batches(iterable: Value) -> Value:
    """What a loop with a backward pass iterates over: if nothing else is known, batches on the host."""
    if iterable.kind is Kind.UNKNOWN:
        return LOADER
    return list_of(tuple_of([HOST, BATCH])) if iterable == _ENUMERATED else iterable


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
        if old is None and "." not in path:
            value = frame.store.carried[path] = value._replace()  # a copy of its own, so that it can be told apart
        frame.store.set(path, value if old is None else join(old, value))
    frame.loops.append(node)
    return frame.store.mark()


def _leave(frame: Frame, node: _Loop, mark: int) -> None:
    """End an iteration, and join its changes with the state before the loop, which may not have run at all."""
    frame.loops.pop()
    names = frame.analysis.carried_names(node)
    after = {
        path: value
        for path, value in frame.store.changes(mark).items()
        if value.kind and ("." in path or path in names)
    }
    changed = frame.store.rollback(mark)
    frame.carried[node] = after
    if not frame.is_incomplete:
        frame.is_incomplete = any(_changes_next_iteration(frame, path, value) for path, value in after.items())
    frame.store.merge([changed], exhaustive=False)


def _changes_next_iteration(frame: Frame, path: str, value: Value) -> bool:
    """Whether this iteration bound a name to another value than it had before."""
    old = frame.store.get(path)
    return old is None or not (old == value or join(old, value) == old)
