"""GS102: `synchronize` of streams and events."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain.values import Kind
from gpusync_lint.model.levels import Confidence
from gpusync_lint.model.operations import ReplaceExpression
from gpusync_lint.rules.base.blocks import around
from gpusync_lint.rules.base.context import Report, Rule, RuleContext, method
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.model.findings import Fix

_ENTERS = ("torch.cuda.stream", "torch.cuda.StreamContext")
"""What makes a stream the current one of a block."""


class StreamOrEventSynchronize(Rule):
    """`Stream.synchronize()` and `Event.synchronize()`, unless they are next to a clock and part of a measurement."""

    nodes = (ast.Call,)
    calls = ("synchronize",)
    barriers = ("stream-or-event-synchronize", "side-stream-joined")
    VALID: ClassVar = ("torch.cuda.current_stream().query()",)
    INVALID: ClassVar = (
        "torch.cuda.current_stream().synchronize()",
        "side = torch.cuda.current_stream()\nwith torch.cuda.stream(side):\n    y = x @ x2\nside.synchronize()",
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        if (
            method(node) != "synchronize"
            or context.qualified_name(node.func)
            or not isinstance(node.func, ast.Attribute)
        ):
            return
        kind = context.value(node.func.value).kind
        if kind in (Kind.STREAM, Kind.EVENT):
            confidence = Confidence.LOW if context.is_timed() else Confidence.HIGH
            if kind is Kind.STREAM and _follows_work_on(node.func.value, context):
                yield Report("side-stream-joined", node, confidence, fix=_fix(node.func.value, context))
            else:
                yield Report("stream-or-event-synchronize", node, confidence)
        elif kind is Kind.UNKNOWN and context.uses_device():
            yield Report("stream-or-event-synchronize", node, Confidence.LOW)


def _follows_work_on(stream: ast.expr, context: RuleContext) -> bool:
    """Whether the statement comes right after the `with` block that gives the stream its work."""
    path = dotted_path(stream)
    holders = around(context.function, context.statement)
    if not holders or path is None or not isinstance(context.statement, ast.Expr):
        return False
    block, at = holders[-1]
    before = block[at - 1] if at else None
    if not isinstance(before, ast.With):
        return False
    entered = (item.context_expr for item in before.items)
    return any(
        isinstance(one, ast.Call)
        and context.qualified_name(one.func) in _ENTERS
        and bool(one.args)
        and dotted_path(one.args[0]) == path
        for one in entered
    )


def _fix(stream: ast.expr, context: RuleContext) -> Fix | None:
    """`side.synchronize()` to `torch.cuda.current_stream().wait_stream(side)`."""
    if context.file.imports.get("torch") != "torch":
        return None
    new = context.template("torch.cuda.current_stream().wait_stream({})", stream)
    return context.fix(
        "Let the current stream wait instead of the host",
        ReplaceExpression(context.span(context.occurrence.node), new),  # type: ignore[arg-type]
        hazard="The host no longer waits, so it must not read pinned memory that the side stream writes.",
    )
