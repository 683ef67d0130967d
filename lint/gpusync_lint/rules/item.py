"""GS201 and GS203: `.item()` and `.tolist()`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gpusync_lint.model import Confidence, Edit, Fix, Span
from gpusync_lint.rules.base import Look, Report, Rule, method
from gpusync_lint.rules.places import LOOPS, around, walk
from gpusync_lint.values import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.values import Value

_HAZARD = "The sum becomes a tensor on the device: what needs a Python number later has to read it with `.item()`."


class Item(Rule):
    """A tensor's values read as Python numbers."""

    nodes = (cst.Call,)
    barriers = ("item", "tolist")
    VALID: ClassVar = ("np.float32(1).item()", "x.detach()", "c.sum().item()", "c.tolist()")
    INVALID: ClassVar = ("s.item()", "total += x.sum().item()", "x.tolist()")

    def check(self, node: cst.Call, look: Look) -> Iterator[Report]:
        """Look at a call."""
        called = method(node)
        if called not in ("item", "tolist") or node.args or not isinstance(node.func, cst.Attribute):
            return
        value = look.value(node.func.value)
        confidence = look.sureness(value)
        if confidence is None and value.kind in (Kind.UNKNOWN, Kind.MOVED) and look.explained():
            # numpy scalars have `.item()` too, but in code that computes on a device few are left unexplained.
            confidence = Confidence.MEDIUM if called == "item" else Confidence.LOW
        if confidence is not None:
            fix = _keep_on_device(look.twin(node), value, look) if called == "item" else None
            yield Report(called, look.twin(node), confidence, tail=True, fix=fix)


def _keep_on_device(call: ast.Call, value: Value, look: Look) -> Fix | None:
    """`total += loss.item()` to `total += loss.detach()`, where the loop does not look at the sum."""
    statement = look.pair.statement
    span = look.span(call)
    if value.kind is not Kind.TENSOR or not value.sure or span is None or not isinstance(statement, ast.AugAssign):
        return None
    added, target = statement.value, statement.target
    if isinstance(added, ast.BinOp) and isinstance(added.op, (ast.Mult, ast.Div)):
        reads = any(isinstance(node, ast.Attribute) and node.attr == "item" for node in ast.walk(added.right))
        if look.value_of(added.right).kind is not Kind.HOST or reads:
            return None
        added = added.left
    if added is not call or not isinstance(statement.op, ast.Add) or not isinstance(target, ast.Name):
        return None
    loops = [block[at] for block, at in around(look.pair.fn, statement) if isinstance(block[at], LOOPS)]
    if look.value_of(target).kind is not Kind.HOST or not loops:
        return None
    for node in walk(loops[-1].body):  # type: ignore[attr-defined]
        if isinstance(node, ast.Name) and node.id == target.id and node is not target:
            return None
    text = look.text(span)
    if not text.endswith(".item()"):
        return None
    start = Span(span.end_line, span.end_column - len("item()"), span.end_line, span.end_column)
    return Fix("Add up on the device", (Edit(start, "detach()"),), False, _HAZARD)
