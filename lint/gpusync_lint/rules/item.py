"""GS201 and GS203: `.item()` and `.tolist()`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain.values import Kind
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.context import Report, Rule, RuleContext, method
from gpusync_lint.rules.fixes.deferred_reads import defer

if TYPE_CHECKING:
    from collections.abc import Iterator


class Item(Rule):
    """Tensors that are read as Python numbers."""

    nodes = (ast.Call,)
    calls = ("item", "tolist")
    barriers = ("item", "tolist")
    VALID: ClassVar = ("np.float32(1).item()", "x.detach()", "c.sum().item()", "c.tolist()")
    INVALID: ClassVar = ("s.item()", "total += x.sum().item()", "x.tolist()")

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        called = method(node)
        if called not in ("item", "tolist") or node.args or node.keywords or not isinstance(node.func, ast.Attribute):
            return
        value = context.value(node.func.value)
        confidence = context.confidence(value)
        if confidence is None and value.kind in (Kind.UNKNOWN, Kind.MOVED) and context.unknown_is_probably_tensor():
            # NumPy scalars have `.item()` too, but in code that uses a device, few of them are unknown values.
            confidence = Confidence.MEDIUM if called == "item" else Confidence.LOW
        if confidence is not None:
            fix = defer(node, node.func.value, context) if called == "item" else None
            yield Report(called, node, confidence, highlight_name=True, fix=fix)
