"""Statements that launch work on the device, for code in which every call is understood."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain import python_api
from gpusync_lint.domain.values import Device, Kind
from gpusync_lint.rules.base.blocks import LOOPS

if TYPE_CHECKING:
    from gpusync_lint.rules.base.context import RuleContext

_WAITING = ("wait", "sync", "block", "barrier", "result")
"""Prefixes of the names of functions and methods that wait, of any receiver."""
_SILENT_KINDS = (Kind.HOST, Kind.ARRAY, Kind.LIST, Kind.DICT, Kind.TUPLE, Kind.DTYPE, Kind.SCHEDULER)


def device_work(window: list[ast.stmt], context: RuleContext) -> ast.stmt | None:
    """The innermost statement that launches work on the device; None if there is none, or if something may wait."""
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
                launches = _launches(node, context)
                if launches is None:
                    return None
                if launches and (found is None or not isinstance(statement, LOOPS)):
                    found = statement
    return found


def _launches(node: ast.AST, context: RuleContext) -> bool | None:
    """Whether an expression launches work on the device; None if it may wait or is not understood."""
    if isinstance(node, ast.BinOp):
        return context.value(node).on_device
    if isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom)):
        return None
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        if node.func.attr.startswith(_WAITING):
            return None
        result = _method_launches(node, node.func, context)
        if result is not None:
            return result
    return _callee_launches(node, context)


def _method_launches(node: ast.Call, func: ast.Attribute, context: RuleContext) -> bool | None:
    """Whether a method launches work on the device; None if the kind of the receiver does not decide that."""
    receiver = context.value(func.value)
    if receiver.kind is Kind.TENSOR:
        return context.value(node).on_device or func.attr == "backward"
    if receiver.kind is Kind.OPTIMIZER:
        return func.attr == "step"
    return False if receiver.kind in _SILENT_KINDS else None


def _callee_launches(node: ast.Call, context: RuleContext) -> bool | None:
    callee = context.value(node.func)
    if callee.dotted_name:
        root = callee.dotted_name.partition(".")[0]
        if root == "torch":
            return context.value(node).on_device
        return False if root in python_api.HOST_MODULES or root == "builtins" else None
    if callee.kind is Kind.FUNCTION:
        return None if context.may_wait(callee.ref) else context.value(node).on_device
    if callee.kind is Kind.MODULE:
        forward = context.method_of(callee, "forward")
        return None if forward is not None and context.may_wait(forward) else callee.device >= Device.ASSUMED
    return None
