"""GS101 to GS104, GS801: calls whose purpose is to wait, and collectives of objects."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain.lattice import Kind
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.context import Report, Rule, RuleContext, called_names, method

if TYPE_CHECKING:
    from collections.abc import Iterator

_CODES = ("GS101", "GS102", "GS103", "GS104", "GS801")


class ExplicitBarrier(Rule):
    """Synchronize calls, `empty_cache`, distributed barriers. Next to a clock they are what their author measures."""

    nodes = (ast.Call,)
    barriers = (
        "device-synchronize",
        "stream-or-event-synchronize",
        "empty-cache",
        "distributed-barrier",
        "object-collective",
    )
    calls = (*called_names(*barriers), "synchronize")
    VALID: ClassVar = ("torch.cuda.is_available()", "start = time.perf_counter()\ntorch.cuda.synchronize()")
    INVALID: ClassVar = (
        "torch.cuda.synchronize()",
        "torch.cuda.empty_cache()",
        "torch.distributed.barrier()",
        "torch.distributed.all_gather_object([None], 3)",
        "torch.cuda.current_stream().synchronize()",
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Look at a call."""
        dotted = context.qualified_name(node.func)
        barrier = context.catalogue.by_function.get(dotted)
        if barrier is not None and barrier.code in _CODES:
            timed = barrier.code == "GS101" and context.is_timed()
            yield Report(barrier.id, node, Confidence.LOW if timed else Confidence.HIGH)
        elif method(node) == "synchronize" and not dotted and isinstance(node.func, ast.Attribute):
            kind = context.value(node.func.value).kind
            if kind in (Kind.STREAM, Kind.EVENT):
                confidence = Confidence.LOW if context.is_timed() else Confidence.HIGH
                yield Report("stream-or-event-synchronize", node, confidence)
            elif kind is Kind.UNKNOWN and context.uses_device():
                yield Report("stream-or-event-synchronize", node, Confidence.LOW)
