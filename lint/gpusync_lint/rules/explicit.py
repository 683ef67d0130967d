"""GS102: `synchronize` of streams and events."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain.values import Kind
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.context import Report, Rule, RuleContext, method

if TYPE_CHECKING:
    from collections.abc import Iterator


class StreamOrEventSynchronize(Rule):
    """`Stream.synchronize()` and `Event.synchronize()`. Next to a clock they are what their author measures."""

    nodes = (ast.Call,)
    calls = ("synchronize",)
    barriers = ("stream-or-event-synchronize",)
    VALID: ClassVar = ("torch.cuda.current_stream().query()",)
    INVALID: ClassVar = ("torch.cuda.current_stream().synchronize()",)

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Look at a call."""
        if (
            method(node) != "synchronize"
            or context.qualified_name(node.func)
            or not isinstance(node.func, ast.Attribute)
        ):
            return
        kind = context.value(node.func.value).kind
        if kind in (Kind.STREAM, Kind.EVENT):
            confidence = Confidence.LOW if context.is_timed() else Confidence.HIGH
            yield Report("stream-or-event-synchronize", node, confidence)
        elif kind is Kind.UNKNOWN and context.uses_device():
            yield Report("stream-or-event-synchronize", node, Confidence.LOW)
