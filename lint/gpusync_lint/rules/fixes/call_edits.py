"""Fixes of one call: whether there is one is decided here, its text is written by `rewriting`."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from gpusync_lint.domain.values import Kind
from gpusync_lint.model.findings import Edit, Fix
from gpusync_lint.rules.base.context import keyword, positional
from gpusync_lint.rules.fixes.known_sizes import classes_of, total_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusync_lint.rules.base.context import RuleContext

_NUMBER = re.compile(r"-?(\d+(\.\d*)?([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|True|False)$")
_WHOLE = re.compile(r"-?\d+(\.0*)?$")
_EX_FIELDS = {"cholesky": "L", "inv": "inverse", "solve": "result"}
"""The field that holds what the function without `_ex` returns."""
_EX_PARTS = frozenset({"lu_factor", "ldl_factor"})
"""Functions whose `_ex` form returns what they return, and `info` after it."""
_NOT_MOVED = frozenset({"device", "out", "pin_memory", "requires_grad"})
"""Keywords of a factory that keep it where it is; a tensor that was moved is no leaf."""
_EXACT = frozenset({"zeros", "ones", "empty", "eye"})
"""Factories of numbers that are the same in every dtype."""
_TENSOR_KEYWORDS = frozenset({"device", "dtype", "requires_grad"})
_FLOATING = frozenset({"float", "float16", "float32", "float64", "bfloat16", "half", "double"})
_UNCHECKED = "A matrix that cannot be factorized no longer raises; `info` of the `_ex` form tells."
_RACE = "A pinned buffer that is written again before the copy has happened changes what is copied."
_CLASSES = "There is a column for every class, also where the largest does not occur in the data."
_TOTAL = "A total that is not the sum of the repeats is no longer noticed."
_ROUNDED = "A range of fractions is rounded by the device, which may differ in the last bit."


def add_non_blocking(node: ast.Call, context: RuleContext) -> Fix | None:
    """`x.to(device)` to `x.to(device, non_blocking=True)`."""
    given = [("non_blocking", "True")]
    return _with_keywords(node, node, given, context, "Copy without blocking the host", False, _RACE)


def add_num_classes(node: ast.Call, context: RuleContext) -> Fix | None:
    """`F.one_hot(logits.argmax(-1))` with `num_classes=logits.size(-1)`."""
    args = positional(node)
    classes = (
        classes_of(args[0], context.function, context) if len(args) == len(node.args + node.keywords) == 1 else None
    )
    if classes is None:
        return None
    given = [("num_classes", classes)]
    return _with_keywords(node, node, given, context, "Say how many classes there are", False, _CLASSES)


def add_output_size(node: ast.Call, repeats: ast.expr, context: RuleContext) -> Fix | None:
    """`x.repeat_interleave(counts, 0)` with `output_size=sum(lengths)`, the list that `counts` was made of."""
    total = total_of(repeats, context.function, context)
    if total is None:
        return None
    return _with_keywords(node, node, [("output_size", total)], context, "Say how long the result is", False, _TOTAL)


def full_instead_of_tensor(node: ast.Call, context: RuleContext) -> Fix | None:
    """`torch.tensor(1.0, device=d)` to `torch.full((), 1.0, device=d)`: the same value, dtype and shape.

    Also of a list of equal numbers, `[0.0, 0.0]` or `[0.0] * n`.
    """
    if len(node.args) != 1 or not isinstance(node.func, ast.Attribute) or not node.keywords:
        return None
    if isinstance(node.args[0], ast.Starred) or any(given.arg not in _TENSOR_KEYWORDS for given in node.keywords):
        return None
    filled = _filled(node.args[0], context)
    dtype = keyword(node, "dtype")
    if filled is None or (dtype is not None and not _WHOLE.match(filled[1]) and not _is_floating(dtype)):
        return None
    return _fill(node, "full", filled, context)


def full_instead_of_new_tensor(node: ast.Call, context: RuleContext) -> Fix | None:
    """`x.new_tensor(1.0)` to `x.new_full((), 1.0)`, for whole numbers: they are the same in every dtype."""
    if len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
        return None
    filled = _filled(node.args[0], context)
    return _fill(node, "new_full", filled, context) if filled is not None and _WHOLE.match(filled[1]) else None


def _fill(node: ast.Call, label: str, filled: tuple[str, str], context: RuleContext) -> Fix | None:
    from gpusync_lint.rules.fixes import rewriting

    def written(text: str) -> str:
        return rewriting.filling(text, label, *filled)

    return _replace(node, node, written, context, "Fill the tensor on the device", True, None)


def _filled(data: ast.expr, context: RuleContext) -> tuple[str, str] | None:
    """The shape, and the number that data is full of: of a literal, of `[0.0, 0.0]`, of `[0.0] * n`."""
    if isinstance(data, ast.BinOp) and isinstance(data.op, ast.Mult):
        one = _filled(data.left, context)
        count = context.value(data.right)
        whole = count.kind is Kind.HOST and (_is_integer(data.right) or isinstance(count.const, int))
        length = _text(data.right, context)
        return (f"({length},)", one[1]) if length and one is not None and one[0] == "(1,)" and whole else None
    if isinstance(data, (ast.List, ast.Tuple)):
        numbers = {_text(element, context) for element in data.elts}
        if len(numbers) != 1 or any(isinstance(element, ast.Starred) for element in data.elts):
            return None
        number = numbers.pop()
        return (f"({len(data.elts)},)", number) if _NUMBER.match(number) else None
    if not isinstance(data, (ast.Constant, ast.UnaryOp)):
        return None
    number = _text(data, context)
    return ("()", number) if _NUMBER.match(number) else None


def _is_integer(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _is_floating(dtype: ast.expr) -> bool:
    return isinstance(dtype, ast.Attribute) and dtype.attr in _FLOATING


def factory_on_device(node: ast.Call, factory: ast.expr, label: str, context: RuleContext) -> Fix | None:
    """`torch.zeros(n).to(device)` to `torch.zeros(n, device=device)`, `.cuda()` to `device="cuda"`."""
    if not isinstance(factory, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if len(node.args) + len(node.keywords) > 1:
        return None
    moved = node.func.attr
    if moved == "type_as" or (moved == "to" and context.value(next(iter(positional(node)), None)).kind is Kind.TENSOR):
        return _factory_like(node, factory, label, context)
    device = _device_of(node, moved, context) if moved in ("to", "cuda") else None
    if device is None or _has_stars(factory) or any(given.arg in _NOT_MOVED for given in factory.keywords):
        return None
    exact = label != "arange" or all(_is_whole(given, context) for given in factory.args)
    hazard = None if exact else _ROUNDED
    return _with_keywords(node, factory, [("device", device)], context, "Make the tensor on the device", exact, hazard)


def _factory_like(node: ast.Call, factory: ast.Call, label: str, context: RuleContext) -> Fix | None:
    """`torch.eye(n).type_as(x)` to `torch.eye(n, dtype=x.dtype, device=x.device)`."""
    other = next(iter(positional(node)), None)
    named = {given.arg for given in factory.keywords}
    if label not in _EXACT or named & {*_NOT_MOVED, "dtype"} or _has_stars(factory):
        return None
    text = _text(other, context) if isinstance(other, (ast.Name, ast.Attribute)) else ""
    if not text or "(" in text:
        return None
    given = [("dtype", f"{text}.dtype"), ("device", f"{text}.device")]
    return _with_keywords(node, factory, given, context, "Make the tensor on the device", True, None)


def _has_stars(node: ast.Call) -> bool:
    return len(positional(node)) < len(node.args) or any(given.arg is None for given in node.keywords)


def _device_of(node: ast.Call, moved: str, context: RuleContext) -> str | None:
    """The device that `.to(...)` or `.cuda(...)` names; None where it may name more than that."""
    if node.keywords:
        return _text(node.keywords[0].value, context) or None if node.keywords[0].arg == "device" else None
    if not node.args:
        return '"cuda"' if moved == "cuda" else None
    arg = node.args[0]
    if isinstance(arg, (ast.Starred, ast.NamedExpr)):
        return None
    if context.value(arg).kind not in (Kind.DEVICE, Kind.HOST):
        return None  # `.to(x)` takes the dtype of `x` as well
    return _text(arg, context) or None


def _is_whole(node: ast.expr, context: RuleContext) -> bool:
    if isinstance(node, ast.Call):
        label = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        return label in ("len", "size", "dim", "numel")
    return _is_integer(node) or type(context.value(node).const) is int


def without_check(node: ast.Call, context: RuleContext) -> Fix | None:
    """`torch.linalg.inv(a)` to `torch.linalg.inv_ex(a).inverse`, whose error flag stays on the device."""
    func = node.func
    if not isinstance(func, ast.Attribute) or not context.qualified_name(func).startswith("torch.linalg."):
        return None
    label = func.attr
    if _has_stars(node) or keyword(node, "out") is not None:
        return None
    if label in _EX_FIELDS:
        taken = f".{_EX_FIELDS[label]}"
    elif label in _EX_PARTS and _is_unpacked(node, context):
        taken = "[:2]"
    else:
        return None
    from gpusync_lint.rules.fixes import rewriting

    def written(text: str) -> str:
        return f"{rewriting.calling(text, f'{label}_ex')}{taken}"

    return _replace(node, node, written, context, "Leave the error flag on the device", False, _UNCHECKED)


def _is_unpacked(node: ast.Call, context: RuleContext) -> bool:
    statement = context.statement
    if not isinstance(statement, ast.Assign) or statement.value is not node:
        return False
    return all(isinstance(target, ast.Tuple) and len(target.elts) == 2 for target in statement.targets)


def _with_keywords(
    node: ast.Call,
    call: ast.Call,
    given: list[tuple[str, str]],
    context: RuleContext,
    title: str,
    safe: bool,
    hazard: str | None,
) -> Fix | None:
    """Put a call with more keyword arguments in the place of `node`: itself, or one that it is made of."""
    from gpusync_lint.rules.fixes import rewriting

    def written(text: str) -> str:
        return rewriting.with_keywords(text, given)

    return _replace(node, call, written, context, title, safe, hazard)


def _replace(
    node: ast.Call,
    call: ast.Call,
    written: Callable[[str], str],
    context: RuleContext,
    title: str,
    safe: bool,
    hazard: str | None,
) -> Fix | None:
    """Put what `written` makes of the text of `call` in the place of `node`.

    None where a comment would be lost, or libcst cannot read the call.
    """
    span, inner = context.span(node), context.span(call)
    if span is None or inner is None or "#" in context.source(span):
        return None
    try:
        return Fix(title, (Edit(span, written(context.source(inner))),), safe, hazard)
    except ValueError:
        return None


def _text(node: ast.expr, context: RuleContext) -> str:
    """An expression as its author wrote it, without brackets around it; empty where its place is not known."""
    span = context.span(node)
    return "" if span is None else context.source(span)
