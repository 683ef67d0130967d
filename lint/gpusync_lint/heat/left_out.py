"""Blocks that run only if an argument is passed that every call leaves out: `if lengths is not None: ...`."""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING

from gpusync_lint.syntax.operators import COMPARISONS
from gpusync_lint.syntax.traversal import children

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpusync_lint.project.symbols import FunctionDef

Defaults = dict[str, object]
"""The defaults of parameters, by their names: constants and infinity."""
_OPERATORS = {**COMPARISONS, ast.Is: operator.is_, ast.IsNot: operator.is_not}
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_UNKNOWN = object()


def left_out(fn: FunctionDef, is_passed: Callable[[str], bool]) -> Defaults:
    """The parameters of a function that no call passes and that it does not bind, with their defaults."""
    if isinstance(fn.node, ast.Module):
        return {}
    arguments = fn.node.args
    if not arguments.defaults and not any(arguments.kw_defaults):
        return {}
    conditions = " ".join(line for line in fn.file.source_of(fn.node).split("\n") if "if " in line)
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(reversed(positional), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    found: Defaults = {}
    for parameter, default in pairs:
        value = _constant(default) if default is not None and parameter.arg in conditions else _UNKNOWN
        if value is not _UNKNOWN and not is_passed(parameter.arg):
            found[parameter.arg] = value
    return {name: value for name, value in found.items() if name not in fn.assignments} if found else found


def spreads_arguments(statement: ast.stmt) -> bool:
    """Whether a call in a statement may pass more arguments than it shows: `f(*args, **kwargs)`."""
    stack = children(statement)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Call) and (
            isinstance(node.args[-1] if node.args else None, ast.Starred)
            or any(word.arg is None for word in node.keywords)
        ):
            return True
        if not isinstance(node, ast.stmt):  # a statement in a block has calls of its own
            stack += children(node)
    return False


def contradicts(test: ast.expr, holds: bool, defaults: Mapping[str, object]) -> bool:
    """Whether a condition cannot have an outcome if some parameters have their defaults."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return contradicts(test.operand, not holds, defaults)
    if isinstance(test, ast.BoolOp):
        decides = any if isinstance(test.op, ast.And) is holds else all
        return decides([contradicts(operand, holds, defaults) for operand in test.values])
    if isinstance(test, ast.Name):
        return test.id in defaults and bool(defaults[test.id]) is not holds
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.left, ast.Name):
        return False
    compare, right = _OPERATORS.get(type(test.ops[0])), _constant(test.comparators[0])
    if compare is None or right is _UNKNOWN or test.left.id not in defaults:
        return False
    left = defaults[test.left.id]
    if isinstance(test.ops[0], _ORDERS) and not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
        return False
    return compare(left, right) is not holds


def _constant(node: ast.expr) -> object:
    """The value of a constant or of infinity."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float" and node.args:
        given = node.args[0]
        return float("inf") if isinstance(given, ast.Constant) and given.value == "inf" else _UNKNOWN
    return _UNKNOWN
