"""Fixes: edits whose text comes from libcst and whose place comes from `ast`, offered only where the two agree."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import libcst as cst

from gpusync_lint.model import Edit, Fix
from gpusync_lint.rules.base import keyword, positional
from gpusync_lint.rules.known_sizes import classes_of, total_of
from gpusync_lint.values import Kind

if TYPE_CHECKING:
    from gpusync_lint.rules.base import Look

_EMPTY = cst.Module([])
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
_UNCHECKED = "A matrix that cannot be factorised no longer raises; `info` of the `_ex` form tells."
_RACE = "A pinned buffer that is written again before the copy has happened changes what is copied."
_CLASSES = "There is a column for every class, also where the largest does not occur in the data."
_TOTAL = "A total that is not the sum of the repeats is no longer noticed."
_ROUNDED = "A range of fractions is rounded by the device, which may differ in the last bit."


def add_non_blocking(node: cst.Call, look: Look) -> Fix | None:
    """`x.to(device)` to `x.to(device, non_blocking=True)`."""
    return _replace(
        node,
        _with_keyword(node, "non_blocking", cst.Name("True")),
        look,
        "Copy without blocking the host",
        False,
        _RACE,
    )


def add_num_classes(node: cst.Call, look: Look) -> Fix | None:
    """`F.one_hot(logits.argmax(-1))` with `num_classes=logits.size(-1)`."""
    args = positional(node)
    classes = classes_of(look.twin(args[0]), look.pair.fn, look) if len(args) == len(node.args) == 1 else None
    if classes is None:
        return None
    changed = _with_keyword(node, "num_classes", cst.parse_expression(classes))
    return _replace(node, changed, look, "Say how many classes there are", False, _CLASSES)


def add_output_size(node: cst.Call, repeats: cst.BaseExpression, look: Look) -> Fix | None:
    """`x.repeat_interleave(counts, 0)` with `output_size=sum(lengths)`, the list that `counts` was made of."""
    twin = look.twin(repeats)
    total = total_of(twin, look.pair.fn, look) if isinstance(twin, ast.expr) else None
    if total is None:
        return None
    changed = _with_keyword(node, "output_size", cst.parse_expression(total))
    return _replace(node, changed, look, "Say how long the result is", False, _TOTAL)


def full_instead_of_tensor(node: cst.Call, look: Look) -> Fix | None:
    """`torch.tensor(1.0, device=d)` to `torch.full((), 1.0, device=d)`: the same value, dtype and shape.

    Also of a list of equal numbers, `[0.0, 0.0]` or `[0.0] * n`.
    """
    args = positional(node)
    if len(args) != 1 or not isinstance(node.func, cst.Attribute) or len(node.args) == 1:
        return None
    if any(arg.star or (arg.keyword and arg.keyword.value not in _TENSOR_KEYWORDS) for arg in node.args):
        return None
    filled = _filled(args[0], look)
    dtype = keyword(node, "dtype")
    if filled is None or (dtype is not None and not _WHOLE.match(filled[1]) and not _is_floating(dtype)):
        return None
    return _fill(node, "full", filled, list(node.args[1:]), look)


def full_instead_of_new_tensor(node: cst.Call, look: Look) -> Fix | None:
    """`x.new_tensor(1.0)` to `x.new_full((), 1.0)`, for whole numbers: they are the same in every dtype."""
    if len(node.args) != 1 or node.args[0].keyword is not None or node.args[0].star:
        return None
    filled = _filled(node.args[0].value, look)
    return _fill(node, "new_full", filled, [], look) if filled is not None and _WHOLE.match(filled[1]) else None


def _fill(node: cst.Call, label: str, filled: tuple[str, str], rest: list[cst.Arg], look: Look) -> Fix | None:
    assert isinstance(node.func, cst.Attribute)
    shape, number = (cst.Arg(cst.parse_expression(text)) for text in filled)
    changed = node.with_changes(func=node.func.with_changes(attr=cst.Name(label)), args=_spaced([shape, number, *rest]))
    return _replace(node, changed, look, "Fill the tensor on the device", True, None)


def _filled(data: cst.BaseExpression, look: Look) -> tuple[str, str] | None:
    """The shape, and the number that data is full of: of a literal, of `[0.0, 0.0]`, of `[0.0] * n`."""
    if isinstance(data, cst.BinaryOperation) and isinstance(data.operator, cst.Multiply):
        one = _filled(data.left, look)
        count = look.value(data.right)
        whole = count.kind is Kind.HOST and (isinstance(data.right, cst.Integer) or isinstance(count.const, int))
        return (f"({_code(data.right)},)", one[1]) if one is not None and one[0] == "(1,)" and whole else None
    if isinstance(data, (cst.List, cst.Tuple)):
        numbers = {_code(element.value) for element in data.elements}
        if len(numbers) != 1 or any(isinstance(element, cst.StarredElement) for element in data.elements):
            return None
        number = numbers.pop()
        return (f"({len(data.elements)},)", number) if _NUMBER.match(number) else None
    number = _code(data)
    return ("()", number) if _NUMBER.match(number) else None


def _is_floating(dtype: cst.BaseExpression) -> bool:
    return isinstance(dtype, cst.Attribute) and dtype.attr.value in _FLOATING


def factory_on_device(node: cst.Call, factory: cst.BaseExpression, label: str, look: Look) -> Fix | None:
    """`torch.zeros(n).to(device)` to `torch.zeros(n, device=device)`, `.cuda()` to `device="cuda"`."""
    if not isinstance(factory, cst.Call) or not isinstance(node.func, cst.Attribute) or len(node.args) > 1:
        return None
    moved = node.func.attr.value
    if moved == "type_as" or (moved == "to" and look.value(next(iter(positional(node)), None)).kind is Kind.TENSOR):
        return _factory_like(node, factory, label, look)
    device = _device_of(node, look) if moved in ("to", "cuda") else None
    if device is None:
        return None
    if any(given.star or (given.keyword is not None and given.keyword.value in _NOT_MOVED) for given in factory.args):
        return None
    exact = label != "arange" or all(_is_whole(given.value, look) for given in factory.args if given.keyword is None)
    changed = _with_keyword(factory, "device", device)
    return _replace(node, changed, look, "Make the tensor on the device", exact, None if exact else _ROUNDED)


def _factory_like(node: cst.Call, factory: cst.Call, label: str, look: Look) -> Fix | None:
    """`torch.eye(n).type_as(x)` to `torch.eye(n, dtype=x.dtype, device=x.device)`."""
    other = next(iter(positional(node)), None)
    named = {arg.keyword.value for arg in factory.args if arg.keyword is not None}
    if label not in _EXACT or named & {*_NOT_MOVED, "dtype"} or any(arg.star for arg in factory.args):
        return None
    if len(node.args) != 1 or not isinstance(other, (cst.Name, cst.Attribute)) or "(" in _code(other):
        return None
    changed = _with_keyword(factory, "dtype", cst.Attribute(other, cst.Name("dtype")))
    changed = _with_keyword(changed, "device", cst.Attribute(other, cst.Name("device")))
    return _replace(node, changed, look, "Make the tensor on the device", True, None)


def _device_of(node: cst.Call, look: Look) -> cst.BaseExpression | None:
    """The device that `.to(...)` or `.cuda(...)` names; None where it may name more than that."""
    assert isinstance(node.func, cst.Attribute)
    if not node.args:
        return cst.SimpleString('"cuda"') if node.func.attr.value == "cuda" else None
    arg = node.args[0]
    if arg.star or (arg.keyword is not None and arg.keyword.value != "device"):
        return None
    value = look.value(arg.value)
    if arg.keyword is None and value.kind not in (Kind.DEVICE, Kind.HOST):
        return None  # `.to(x)` takes the dtype of `x` as well
    return arg.value


def _is_whole(node: cst.BaseExpression, look: Look) -> bool:
    if isinstance(node, cst.Call):
        return _code(node.func).rpartition(".")[2] in ("len", "size", "dim", "numel")
    return isinstance(node, cst.Integer) or type(look.value(node).const) is int


def without_check(node: cst.Call, look: Look) -> Fix | None:
    """`torch.linalg.inv(a)` to `torch.linalg.inv_ex(a).inverse`, whose error flag stays on the device."""
    func = node.func
    if not isinstance(func, cst.Attribute) or not look.dotted(func).startswith("torch.linalg."):
        return None
    label = func.attr.value
    if any(arg.star or (arg.keyword is not None and arg.keyword.value == "out") for arg in node.args):
        return None
    unchecked = node.with_changes(func=func.with_changes(attr=cst.Name(f"{label}_ex")), lpar=(), rpar=())
    changed: cst.BaseExpression
    if label in _EX_FIELDS:
        changed = cst.Attribute(unchecked, cst.Name(_EX_FIELDS[label]))
    elif label in _EX_PARTS and _is_unpacked(node, look):
        first_two = cst.SubscriptElement(cst.Slice(lower=None, upper=cst.Integer("2")))
        changed = cst.Subscript(unchecked, [first_two])
    else:
        return None
    return _replace(node, changed, look, "Leave the error flag on the device", False, _UNCHECKED)


def _is_unpacked(node: cst.Call, look: Look) -> bool:
    statement = look.pair.statement
    if not isinstance(statement, ast.Assign) or statement.value is not look.twin(node):
        return False
    return all(isinstance(target, ast.Tuple) and len(target.elts) == 2 for target in statement.targets)


def _replace(
    node: cst.Call, changed: cst.BaseExpression, look: Look, title: str, safe: bool, hazard: str | None
) -> Fix | None:
    twin = look.twin(node)
    span = look.span(twin)
    before = _code(node.with_changes(lpar=(), rpar=()))
    if span is None or "#" in before or look.text(span) != before:
        return None
    return Fix(title, (Edit(span, _code(changed.with_changes(lpar=(), rpar=()))),), safe, hazard)


def _with_keyword(node: cst.Call, label: str, value: cst.BaseExpression) -> cst.Call:
    """The call with one more keyword argument, on a line of its own where the others have theirs."""
    bare = cst.SimpleWhitespace("")
    equal = cst.AssignEqual(whitespace_before=bare, whitespace_after=bare)
    added = cst.Arg(value, keyword=cst.Name(label), equal=equal)
    if not node.args:
        return node.with_changes(args=[added])
    last = node.args[-1]
    spread = isinstance(last.comma, cst.Comma) and isinstance(last.comma.whitespace_after, cst.ParenthesizedWhitespace)
    between: cst.Comma | cst.MaybeSentinel = cst.MaybeSentinel.DEFAULT
    if isinstance(node.whitespace_before_args, cst.ParenthesizedWhitespace):
        before = node.args[-2].comma if len(node.args) > 1 else cst.Comma(whitespace_after=node.whitespace_before_args)
        between = before if isinstance(before, cst.Comma) else between
    added = added.with_changes(
        comma=last.comma if spread else cst.MaybeSentinel.DEFAULT, whitespace_after_arg=last.whitespace_after_arg
    )
    last = last.with_changes(comma=between, whitespace_after_arg=bare)
    return node.with_changes(args=[*node.args[:-1], last, added])


def _spaced(args: list[cst.Arg]) -> list[cst.Arg]:
    """Arguments with a comma and a blank between each two."""
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [
        *(arg if isinstance(arg.comma, cst.Comma) else arg.with_changes(comma=comma) for arg in args[:-1]),
        args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT),
    ]


def _code(node: cst.CSTNode) -> str:
    return _EMPTY.code_for_node(node)
