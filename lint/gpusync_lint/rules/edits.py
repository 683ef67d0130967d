"""Fixes: edits whose text comes from libcst and whose place comes from `ast`, offered only where the two agree."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from gpusync_lint.model import Edit, Fix
from gpusync_lint.rules.base import positional

if TYPE_CHECKING:
    from gpusync_lint.rules.base import Look

_EMPTY = cst.Module([])
_NUMBER = re.compile(r"-?(\d+(\.\d*)?([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|True|False)$")
_EX_FIELDS = {"cholesky": "L", "inv": "inverse", "solve": "result"}
"""The field that holds what the function without `_ex` returns."""
_UNCHECKED = "A matrix that cannot be factorised no longer raises; `info` of the `_ex` form tells."
_RACE = "A pinned buffer that is written again before the copy has happened changes what is copied."


def add_non_blocking(node: cst.Call, look: Look) -> Fix | None:
    """`x.to(device)` to `x.to(device, non_blocking=True)`."""
    args = [arg.with_changes(comma=cst.MaybeSentinel.DEFAULT) for arg in node.args]
    flag = cst.Arg(cst.Name("True"), keyword=cst.Name("non_blocking"), equal=_equal())
    return _replace(node, node.with_changes(args=[*args, flag]), look, "Copy without blocking the host", False, _RACE)


def full_instead_of_tensor(node: cst.Call, look: Look) -> Fix | None:
    """`torch.tensor(1.0, device=d)` to `torch.full((), 1.0, device=d)`: the same value, dtype and shape."""
    args = positional(node)
    if len(node.args) != 2 or len(args) != 1 or not isinstance(node.func, cst.Attribute):
        return None
    if not _NUMBER.match(_EMPTY.code_for_node(args[0])):
        return None
    func = node.func.with_changes(attr=cst.Name("full"))
    shape = cst.Arg(cst.Tuple([]), comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    changed = node.with_changes(func=func, args=[shape, *node.args])
    return _replace(node, changed, look, "Fill the tensor on the device", True, None)


def factory_on_device(node: cst.Call, factory: cst.BaseExpression, look: Look) -> Fix | None:
    """`torch.zeros(n).to(device)` to `torch.zeros(n, device=device)`."""
    if not isinstance(factory, cst.Call) or len(node.args) != 1:
        return None
    arg = node.args[0]
    if arg.star or (arg.keyword is not None and arg.keyword.value != "device"):
        return None
    if any(
        given.star or (given.keyword is not None and given.keyword.value in ("device", "out", "pin_memory"))
        for given in factory.args
    ):
        return None
    if arg.keyword is None and look.value(arg.value).kind.name not in ("DEVICE", "HOST"):
        return None  # `.to(x)` takes the dtype of `x` as well
    args = [given.with_changes(comma=cst.MaybeSentinel.DEFAULT) for given in factory.args]
    device = cst.Arg(arg.value, keyword=cst.Name("device"), equal=_equal())
    return _replace(node, factory.with_changes(args=[*args, device]), look, "Make the tensor on the device", True, None)


def without_check(node: cst.Call, look: Look) -> Fix | None:
    """`torch.linalg.inv(a)` to `torch.linalg.inv_ex(a).inverse`, whose error flag stays on the device."""
    func = node.func
    field = _EX_FIELDS.get(func.attr.value) if isinstance(func, cst.Attribute) else None
    if field is None or not isinstance(func, cst.Attribute) or not look.dotted(func).startswith("torch.linalg."):
        return None
    if any(arg.star or (arg.keyword is not None and arg.keyword.value == "out") for arg in node.args):
        return None
    unchecked = node.with_changes(func=func.with_changes(attr=cst.Name(f"{func.attr.value}_ex")), lpar=(), rpar=())
    changed = cst.Attribute(unchecked, cst.Name(field))
    return _replace(node, changed, look, "Leave the error flag on the device", False, _UNCHECKED)


def _replace(
    node: cst.Call, changed: cst.Call | cst.Attribute, look: Look, title: str, safe: bool, hazard: str | None
) -> Fix | None:
    twin = look.twin(node)
    span = look.span(twin)
    before = _EMPTY.code_for_node(node.with_changes(lpar=(), rpar=()))
    if span is None or "#" in before or look.text(span) != before:
        return None
    after = _EMPTY.code_for_node(changed.with_changes(lpar=(), rpar=()))
    return Fix(title, (Edit(span, after),), safe, hazard)


def _equal() -> cst.AssignEqual:
    bare = cst.SimpleWhitespace("")
    return cst.AssignEqual(whitespace_before=bare, whitespace_after=bare)
