"""The type of the Python number that a tensor is read as."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain import torch_api
from gpusync_lint.domain.values import Kind

if TYPE_CHECKING:
    from gpusync_lint.project.symbols import FunctionDef
    from gpusync_lint.rules.base.context import RuleContext

_FLOATING = frozenset(
    {
        "mean", "std", "var", "norm", "exp", "log", "log2", "log10", "log1p", "expm1", "sqrt", "rsqrt", "sigmoid",
        "tanh", "softmax", "log_softmax", "softplus", "logsumexp", "float", "double", "half", "bfloat16", "nanmean",
        "div", "true_divide", "reciprocal", "sin", "cos", "erf", "dist", "quantile", "cosine_similarity",
        "pairwise_distance", "kl_divergence", "entropy", "log_prob", "rand", "randn",
    }
)  # fmt: skip
"""Functions and methods of tensors and distributions whose result is always floating."""
_INTEGRAL = frozenset({"argmax", "argmin", "count_nonzero", "long", "int", "numel"})
_SAME = frozenset(
    {
        "sum", "prod", "max", "min", "amax", "amin", "median", "nansum", "detach", "clone", "contiguous", "view",
        "reshape", "squeeze", "unsqueeze", "flatten", "cuda", "cpu", "view_as",
    }
)  # fmt: skip
"""Functions whose result has the type of their receiver, except that sums of booleans are integers."""
_STAYS_FLOATING = frozenset({"add", "sub", "mul", "abs", "clamp", "relu", "neg", "square", "pow", "cumsum"})
"""Functions that return a floating tensor for a floating tensor."""
_COUNTS = frozenset({"sum", "prod", "nansum"})
_DEPTH = 8

Number = type[float] | type[int] | type[bool]


def number_of(node: ast.expr, fn: FunctionDef, context: RuleContext, depth: int = 0) -> Number | None:
    """`float`, `int` or `bool`: the type that `.item()` of an expression in `fn` returns; None if it is unknown."""
    if depth > _DEPTH:
        return None
    if context.value(node).kind is Kind.TENSOR and context.value(node).boolean:
        return bool
    if isinstance(node, ast.Constant):
        return {float: float, int: int}.get(type(node.value))
    if isinstance(node, ast.Compare):
        return bool
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return number_of(node.operand, fn, context, depth + 1)
    if isinstance(node, ast.BinOp):
        return _of_operation(node, fn, context, depth)
    if isinstance(node, ast.Call):
        return _of_call(node, fn, context, depth)
    if isinstance(node, ast.Name):
        return _of_name(node, fn, context, depth)
    return None


def _of_operation(node: ast.BinOp, fn: FunctionDef, context: RuleContext, depth: int) -> Number | None:
    if isinstance(node.op, ast.Div):
        return float
    left, right = number_of(node.left, fn, context, depth + 1), number_of(node.right, fn, context, depth + 1)
    if float in (left, right):
        return float
    if isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)) and left is not None and right is not None:
        return int
    return None


def _of_call(node: ast.Call, fn: FunctionDef, context: RuleContext, depth: int) -> Number | None:
    callee = context.value(node.func)
    if callee.kind is Kind.MODULE:
        ref = callee.ref if isinstance(callee.ref, str) else ""
        return float if ref.startswith("torch.nn.") and ref.endswith("Loss") else None
    if not isinstance(node.func, ast.Attribute) or any(keyword.arg == "dtype" for keyword in node.keywords):
        return None
    operand: ast.expr | None = node.func.value
    if callee.kind is Kind.NAME:
        if not callee.dotted_name.startswith("torch."):
            return None
        operand = node.args[0] if node.args else None
    elif context.value(operand).kind not in (Kind.TENSOR, Kind.DISTRIBUTION):
        return None
    return _of_function(node.func.attr, operand, fn, context, depth)


def _of_function(
    name: str, operand: ast.expr | None, fn: FunctionDef, context: RuleContext, depth: int
) -> Number | None:
    """The type of the result of a function or method of torch, given its operand."""
    if name in _FLOATING or name in torch_api.tensors().zero_dim_losses:
        return float
    if name in _INTEGRAL:
        return int
    if operand is None or name not in _SAME | _STAYS_FLOATING:
        return None
    kind = number_of(operand, fn, context, depth + 1)
    if name in _STAYS_FLOATING:
        return float if kind is float else None
    return int if kind is bool and name in _COUNTS else kind


def _of_name(node: ast.Name, fn: FunctionDef, context: RuleContext, depth: int) -> Number | None:
    """The type of a name, if all assignments to it in its function have the same type."""
    if context.goes_backward(fn, node.id):
        return float  # only floating tensors have gradients
    stores, values = fn.assignments.get(node.id, (0, []))
    found = [number_of(value, fn, context, depth + 1) for value in values]
    return found[0] if found and stores == len(found) and len(set(found)) == 1 else None
