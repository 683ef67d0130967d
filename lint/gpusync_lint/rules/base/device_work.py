"""Which statements give the device work, where all that is called is understood."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain import python_api
from gpusync_lint.domain.values import Device, Kind, Value
from gpusync_lint.rules.base.blocks import LOOPS

if TYPE_CHECKING:
    from gpusync_lint.rules.base.context import RuleContext

_WAITING = ("wait", "sync", "block", "barrier", "result")
"""Beginnings of the names of what waits, whoever's method it is."""
_SILENT_KINDS = (Kind.HOST, Kind.ARRAY, Kind.LIST, Kind.DICT, Kind.TUPLE, Kind.DTYPE, Kind.SCHEDULER)


def device_work(window: list[ast.stmt], context: RuleContext) -> ast.stmt | None:
    """The innermost statement that gives the device work; None when there is none, or something may wait."""
    found: ast.stmt | None = None
    stack: list[ast.stmt] = list(window)
    while stack:
        statement = stack.pop()
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if isinstance(statement, (ast.For, ast.AsyncFor)) and context.value(statement.iter).kind in (
            Kind.LOADER,
            Kind.UNKNOWN,
        ):
            return None
        inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
        inner.extend(child for handler in getattr(statement, "handlers", ()) for child in handler.body)
        stack.extend(inner)
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, (ast.stmt, ast.ExceptHandler)):
                continue
            for node in ast.walk(child):
                says = _says(node, context)
                if says is None:
                    return None
                if says and (found is None or not isinstance(statement, LOOPS)):
                    found = statement
    return found


def _says(node: ast.AST, context: RuleContext) -> bool | None:
    """Whether an expression gives the device work; None when it may wait, or nobody knows."""
    if isinstance(node, (ast.BinOp, ast.Await, ast.Yield, ast.YieldFrom)):
        return _on_gpu(context.value(node)) if isinstance(node, ast.BinOp) else None
    if not isinstance(node, ast.Call):
        return False
    result = context.value(node)
    func = node.func
    if isinstance(func, ast.Attribute):
        if func.attr.startswith(_WAITING):
            return None
        receiver = context.value(func.value)
        if receiver.kind is Kind.TENSOR:
            return _on_gpu(result) or func.attr == "backward"
        if receiver.kind is Kind.OPTIMIZER:
            return func.attr == "step"
        if receiver.kind in _SILENT_KINDS:
            return False
    called = context.value(func)
    if called.kind is Kind.NAME and isinstance(called.ref, str):
        root = called.ref.partition(".")[0]
        if root == "torch":
            return _on_gpu(result)
        return False if root in python_api.HOST_MODULES or root == "builtins" else None
    if called.kind is Kind.FUNCTION:
        return None if context.may_wait(called.ref) else _on_gpu(result)
    if called.kind is Kind.MODULE:
        forward = context.method_of(called, "forward")
        if forward is not None and context.may_wait(forward):
            return None
        return called.device >= Device.ASSUMED
    return None


def _on_gpu(value: Value) -> bool:
    return value.on_device
