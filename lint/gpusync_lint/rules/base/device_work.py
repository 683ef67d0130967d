"""Which statements give the device work, where all that is called is understood."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.catalogue import registry
from gpusync_lint.domain import python_api
from gpusync_lint.domain.lattice import Device, Kind, Value, foreign_inside, has_tensor
from gpusync_lint.rules.base import foreign_calls
from gpusync_lint.rules.base.blocks import LOOPS

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpusync_lint.rules.base.context import RuleContext

_WAITING = ("wait", "sync", "block", "barrier", "result")
"""Beginnings of the names of what waits, whoever's method it is."""
_READING = frozenset({"item", "cpu", "numpy", "tolist", "equal", "allclose", "is_nonzero"})
"""Methods and functions of tensors that wait, also where that is not reported: in an assertion of a test."""
_NO_KERNEL = frozenset(
    {
        "as_strided", "detach", "empty", "empty_like", "empty_strided", "expand", "expand_as", "flatten", "narrow",
        "new_empty", "permute", "requires_grad_", "reshape", "select", "squeeze", "t", "transpose", "unbind",
        "unsqueeze", "view", "view_as",
    }
)  # fmt: skip
"""Methods and functions of tensors that give the device nothing to do."""
_SILENT_KINDS = (Kind.HOST, Kind.ARRAY, Kind.LIST, Kind.DICT, Kind.TUPLE, Kind.DTYPE, Kind.SCHEDULER)


class Work(NamedTuple):
    """A statement, or the expression of a lambda, that gives a device work."""

    node: ast.stmt | ast.expr
    framework: str
    """Whose device work it is."""


class _MayWaitError(Exception):
    """Something may wait, or is unknown."""


def device_work(
    window: list[ast.stmt], context: RuleContext, without: Collection[ast.AST] = (), any_loop: bool = False
) -> Work | None:
    """The innermost statement that gives the device work; None when there is none, or something may wait.

    Args:
        window: consecutive statements of a block.
        context: of the node that is judged.
        without: calls that do not count as waits although they are called like one.
        any_loop: whether a loop over something unknown, or over a data loader, is no reason for None.
    """
    found: Work | None = None
    stack: list[ast.stmt] = list(window)
    while stack:
        statement = stack.pop()
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        unbounded = isinstance(statement, (ast.For, ast.AsyncFor)) and not any_loop
        if unbounded and context.value(statement.iter).kind in (Kind.LOADER, Kind.UNKNOWN):  # type: ignore[attr-defined]
            return None
        inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
        inner.extend(child for handler in getattr(statement, "handlers", ()) for child in handler.body)
        stack.extend(inner)
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, (ast.stmt, ast.ExceptHandler)):
                continue
            try:
                framework = _work_of(child, context, without)
            except _MayWaitError:
                return None
            if framework and (found is None or not isinstance(statement, LOOPS)):
                found = Work(statement, framework)
    return found


def work_of_call(called: Value, context: RuleContext) -> Work | None:
    """What in a function of the project, or a lambda of the file, gives the device work; None as for `device_work`."""
    if called.kind is Kind.LAMBDA:
        body = called.ref[0].body
        try:
            framework = _work_of(body, context, ())
        except _MayWaitError:
            return None
        return Work(body, framework) if framework else None
    if called.kind is not Kind.FUNCTION:
        return None
    fn = called.ref
    if fn.file is context.file and not context.reported_lines.isdisjoint(
        range(fn.node.lineno, (fn.node.end_lineno or fn.node.lineno) + 1)
    ):
        return None
    if fn.file is context.file:
        return device_work(fn.node.body, context)
    return Work(fn.node, "torch") if not context.may_wait(fn) and context.works_on_device(fn) else None


def _work_of(expression: ast.AST, context: RuleContext, without: Collection[ast.AST]) -> str:
    """Whose device an expression gives work; empty for none. Raises _MayWaitError."""
    framework = ""
    for node in ast.walk(expression):
        if isinstance(node, ast.Call) and node not in without:
            framework = _of_call(node, context) or framework
        elif isinstance(node, ast.BinOp):
            framework = _framework_of(context.value(node)) or framework
        elif isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom)):
            raise _MayWaitError
    return framework


def _of_call(node: ast.Call, context: RuleContext) -> str:
    """Whose device a call gives work; empty for none. Raises _MayWaitError."""
    func = node.func
    label = func.attr if isinstance(func, ast.Attribute) else ""
    if label.startswith(_WAITING):
        raise _MayWaitError
    result = context.value(node)
    if label:
        receiver = context.value(func.value)  # type: ignore[attr-defined]
        if receiver.kind is Kind.TENSOR:
            if label in _READING:
                raise _MayWaitError
            return "torch" if label == "backward" or (has_tensor(result) and label not in _NO_KERNEL) else ""
        if receiver.kind is Kind.OPTIMIZER:
            return "torch" if label == "step" else ""
        if receiver.kind in _SILENT_KINDS:
            return ""
    called = context.value(func)
    if called.kind is Kind.NAME and isinstance(called.ref, str):
        root, _, rest = called.ref.partition(".")
        if root == "torch":
            if rest in _READING:
                raise _MayWaitError
            return "torch" if has_tensor(result) and rest not in _NO_KERNEL else ""
        if root in python_api.HOST_MODULES or root == "builtins":
            return ""
    if called.kind is Kind.FUNCTION:
        if context.may_wait(called.ref):
            raise _MayWaitError
        return "torch" if has_tensor(result) or context.works_on_device(called.ref) else _framework_of(result)
    if called.kind is Kind.MODULE:
        forward = context.method_of(called, "forward")
        if forward is not None and context.may_wait(forward):
            raise _MayWaitError
        return "torch" if called.device >= Device.ASSUMED else ""
    if called.kind is Kind.CLASS:
        init = context.method_of(Value(Kind.INSTANCE, ref=called.ref), "__init__")
        if init is not None and context.may_wait(init):
            raise _MayWaitError
        return ""
    if foreign_calls.may_wait(node, context):
        raise _MayWaitError
    return _framework_of(result)


def _framework_of(value: Value) -> str:
    """The framework of a value on a device, of those whose operations return before the device has done them."""
    if value.on_device:
        return "torch"
    inside = foreign_inside(value)
    if inside is None:
        return ""
    framework = inside.ref.partition(".")[0]
    return framework if f"{framework}.unsynchronised-timing" in registry.all_barriers() else ""
