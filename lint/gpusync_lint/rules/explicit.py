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
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.model.findings import Fix

_ENTERS = (".stream", ".StreamContext")
"""How the names of functions of torch end that make a stream the current one of a block: `torch.cuda.stream`."""


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
            work = _work_on(node.func.value, context) if kind is Kind.STREAM else None
            if work is not None:
                fix = None if _copies_to_host(work) else _fix(node.func.value, context)
                yield Report("side-stream-joined", node, confidence, fix=fix)
            else:
                yield Report("stream-or-event-synchronize", node, confidence)
        elif kind is Kind.UNKNOWN and context.uses_device():
            yield Report("stream-or-event-synchronize", node, Confidence.LOW)


def _work_on(stream: ast.expr, context: RuleContext) -> ast.With | None:
    """The `with` block that gives the stream its work, if the statement comes right after it."""
    path = dotted_path(stream)
    holders = around(context.function, context.statement)
    if not holders or path is None or not isinstance(context.statement, ast.Expr):
        return None
    block, at = holders[-1]
    before = block[at - 1] if at else None
    if not isinstance(before, ast.With):
        return None
    entered = (item.context_expr for item in before.items)
    enters = any(
        isinstance(one, ast.Call)
        and context.qualified_name(one.func).endswith(_ENTERS)
        and bool(one.args)
        and dotted_path(one.args[0]) == path
        for one in entered
    )
    return before if enters else None


def _copies_to_host(work: ast.With) -> bool:
    """Whether a block may copy to the host. The host has to wait before it reads the copy."""
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("copy_", "cpu", "to")
        for node in walk_block(work.body)
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
