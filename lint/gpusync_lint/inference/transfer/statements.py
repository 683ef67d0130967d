"""Statements other than assignments, loops and definitions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import element
from gpusync_lint.domain.training_idioms import stops_gradients
from gpusync_lint.domain.values import HOST, NONE, UNKNOWN, Device, Kind, Value
from gpusync_lint.inference.frame import FunctionEnds
from gpusync_lint.inference.tables import STATEMENTS, executes
from gpusync_lint.inference.transfer.assignments import bind
from gpusync_lint.inference.transfer.narrowing import is_instance, narrow, put_on_host
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from gpusync_lint.domain.values import Value
    from gpusync_lint.inference.frame import Frame

_NARROWING = (ast.Call, ast.UnaryOp, ast.BoolOp)
"""Types of conditions that may narrow a name."""


@executes(ast.Expr)
def expression(frame: Frame, node: ast.Expr) -> None:
    """An expression alone."""
    if node.value.__class__ is not ast.Constant:  # a docstring
        frame.eval(node.value)


@executes(ast.Return)
def return_value(frame: Frame, node: ast.Return) -> None:
    """`return value`."""
    frame.record_return(frame.computed(node.value) if node.value is not None else HOST)


@executes(ast.If)
def branch(frame: Frame, node: ast.If) -> None:
    """`if test:`. If the test asks whether there is a GPU, only the branch for machines with one is executed."""
    test = frame.eval(node.test)
    holds = _is_tensor(frame, node.test)
    known = is_instance(frame, node.test) if isinstance(node.test, ast.Call) and frame.is_for_one_call() else None
    if known is not None:
        frame.execute(node.body if known else node.orelse)
        if _never_falls_through(node.body if known else node.orelse):
            raise FunctionEnds
        return
    if test.kind is Kind.FLAG or _is_local_constant(frame, node.test, test):
        holds = bool(test.const)
    if holds is not None:
        alive, dead = (node.body, node.orelse) if holds else (node.orelse, node.body)
        frame.summary.effects.dead.update(dead)
        frame.execute(alive)
        if alive and isinstance(alive[-1], ast.Raise):
            put_on_host(frame, node.test, alive is node.orelse)
        return
    is_last_case = frame.last_case is node
    store = frame.store
    mark = store.mark()
    narrows = node.test.__class__ in _NARROWING
    if narrows:
        narrow(frame, node.test, True)
    frame.execute(node.body)
    body = store.rollback(mark)
    if narrows:
        narrow(frame, node.test, False)
    if node.orelse:
        if _is_last_case(node, node.orelse[0]):
            frame.last_case = node.orelse[0]
        frame.execute(node.orelse)
    orelse = store.rollback(mark)
    if not body and not orelse:
        return
    ends_body, ends_orelse = _never_falls_through(node.body), _never_falls_through(node.orelse)
    if is_last_case:
        ends_orelse = not ends_body
    if ends_body and not ends_orelse:
        store.merge([orelse], exhaustive=True)
    elif ends_orelse and not ends_body:
        store.merge([body], exhaustive=True)
    else:
        store.merge([body, orelse], exhaustive=True)


@executes(ast.With, ast.AsyncWith)
def with_block(frame: Frame, node: ast.With | ast.AsyncWith) -> None:
    """`with manager as target:`. In `with device:`, tensors are created on the device."""
    outside = len(frame.device_blocks)
    without_gradients = frame.blocks_without_gradients
    entered: list[Value] = []
    for item in node.items:
        value = frame.eval(item.context_expr)
        frame.blocks_without_gradients += stops_gradients(item.context_expr)
        if value.kind is Kind.INSTANCE:
            entered.append(value)
            value = _call_special(frame, value, "__enter__", [])
        elif value.kind is Kind.LIST:  # what a function with `@contextmanager` yields
            value = element(value)
        if value.kind is Kind.DEVICE:
            frame.device_blocks.append(value.device)
            if value.device >= Device.ASSUMED:
                frame.analysis.devices.record_built_on_device()
        if item.optional_vars is not None:
            bind(frame, item.optional_vars, value)
    frame.execute(node.body)
    for manager in entered:
        frame.statement = node
        _call_special(frame, manager, "__exit__", [NONE, NONE, NONE])
    del frame.device_blocks[outside:]
    frame.blocks_without_gradients = without_gradients


def _call_special(frame: Frame, owner: Value, name: str, args: list[Value]) -> Value:
    """Call a special method of an instance; the instance itself if its class in the project has no such method."""
    method = frame.analysis.project.classes.method(owner.ref, name)
    return owner if method is None else frame.analysis.call(frame, method, [owner, *args], {})


def _is_tensor(frame: Frame, test: ast.expr) -> bool | None:
    """The result of `torch.is_tensor(x)`, or of its negation, for a tensor; None for anything else."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        result = _is_tensor(frame, test.operand)
        return None if result is None else not result
    if not isinstance(test, ast.Call) or dotted_path(test.func) != "torch.is_tensor" or len(test.args) != 1:
        return None
    tested = frame.values.get(test.args[0], UNKNOWN)
    return True if tested.kind is Kind.TENSOR and tested.certain else None


def _is_local_constant(frame: Frame, test: ast.expr, value: Value) -> bool:
    """Whether a condition is a local name that holds True or False and nothing else.

    A parameter may hold its default as well, for calls that leave it out.
    """
    return (
        isinstance(test, ast.Name)
        and isinstance(value.const, bool)
        and not frame.fn.is_module
        and test.id in frame.names
        and test.id not in frame.summary.entry
    )


def try_block(frame: Frame, node: ast.Try) -> None:
    """`try:`. A handler may run after any part of the body."""
    frame.execute(node.body)
    branches = []
    for handler in node.handlers:
        mark = frame.store.mark()
        if handler.name:
            frame.store.set(handler.name, HOST)
        frame.execute(handler.body)
        changed = frame.store.rollback(mark)
        if not _never_falls_through(handler.body):
            branches.append(changed)
    frame.store.merge(branches, exhaustive=False)
    frame.execute(node.orelse)
    frame.execute(node.finalbody)


executes(ast.Try, getattr(ast, "TryStar", ast.Try))(try_block)


@executes(ast.Assert)
def assertion(frame: Frame, node: ast.Assert) -> None:
    """`assert test, message`."""
    frame.eval(node.test)
    narrow(frame, node.test, True)
    put_on_host(frame, node.test, True)
    if node.msg is not None:
        frame.eval(node.msg)


@executes(ast.Raise)
def raise_error(frame: Frame, node: ast.Raise) -> None:
    """`raise error`."""
    if node.exc is not None:
        frame.eval(node.exc)


@executes(ast.Delete)
def delete(frame: Frame, node: ast.Delete) -> None:
    """`del name`."""
    for target in node.targets:
        if isinstance(target, ast.Name):
            frame.store.set(target.id, UNKNOWN)


@executes(ast.Match)
def match(frame: Frame, node: ast.Match) -> None:
    """`match subject:`. The names that patterns bind are unknown."""
    frame.eval(node.subject)
    branches = []
    for case in node.cases:
        mark = frame.store.mark()
        if case.guard is not None:
            frame.statement = node
            frame.eval(case.guard)
        frame.execute(case.body)
        branches.append(frame.store.rollback(mark))
    frame.store.merge(branches, exhaustive=False)


def skip(frame: Frame, node: ast.stmt) -> None:
    """`pass`, `break`, `continue`, and statements of newer versions of Python."""


STATEMENTS.default = skip


def _is_last_case(node: ast.If, other: ast.stmt) -> bool:
    """Whether one of two cases applies: `if kind == "a": ... elif kind == "b": ...` without an `else`."""
    if not isinstance(other, ast.If) or other.orelse:
        return False
    subject, last = _subject(node.test), _subject(other.test)
    return subject is not None and subject == last


def _subject(test: ast.expr) -> str | None:
    """The path that a condition compares with a string; None for other conditions."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return None
    compared = test.comparators[0]
    is_string = isinstance(compared, ast.Constant) and isinstance(compared.value, str)
    return dotted_path(test.left) if is_string else None


def _never_falls_through(body: list[ast.stmt]) -> bool:
    """Whether the statement after a block is never reached from it."""
    return bool(body) and isinstance(body[-1], (ast.Return, ast.Raise))
