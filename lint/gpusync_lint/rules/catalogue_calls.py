"""Barriers that are nothing but a call of a certain name with a device tensor: GS304, GS4xx, and some of GS6xx."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.rules.base.context import (
    Report,
    Rule,
    RuleContext,
    arguments,
    called_names,
    keyword,
    keyword_is,
    method,
    positional,
)
from gpusync_lint.rules.fixes import call_edits
from gpusync_lint.rules.text import text_confidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.catalogue.schema import Barrier

_BY_NAME = frozenset(
    {
        "comparison-call", "nonzero", "mask-read", "unique", "bincount", "histc", "linalg-check", "linalg-host",
        "sized-operation", "combinations", "save-checkpoint", "assert-on-tensor",
    }
)  # fmt: skip
_BY_SHAPE = frozenset({"repeat_interleave", "one_hot", "where", "ctc_loss", "clip_grad_norm_", "get_total_norm"})


class CatalogueCall(Rule):
    """Functions and methods that the catalogue lists by name."""

    nodes = (ast.Call,)
    calls = called_names(*_BY_NAME)
    barriers = tuple(sorted(_BY_NAME))
    VALID: ClassVar = (
        "torch.isclose(x, x2)",
        "v.histc(10, min=0, max=1)",
        "c.nonzero()",
        "x.sort()",
        "torch.unique(c)",
    )
    INVALID: ClassVar = ("torch.equal(x, x2)", "m.nonzero()", "x.unique()", "idx.bincount()", "torch.linalg.svd(x)")

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Look at a call."""
        dotted = context.qualified_name(node.func)
        if dotted:
            barrier = context.catalogue.by_function.get(dotted)
            if (
                barrier is None
                or barrier.id not in _BY_NAME
                or _excused(node, barrier)
                or not context.waits_on(barrier)
            ):
                return
            found = [text_confidence(context, context.value(arg)) for arg in arguments(node)]
            sure = [item for item in found if item is not None]
            if sure:
                fix = call_edits.without_check(node, context) if barrier.id == "linalg-check" else None
                yield Report(barrier.id, node, min(sure, key=lambda item: item.rank), fix=fix)
        elif isinstance(node.func, ast.Attribute):
            barrier = context.catalogue.by_method.get(node.func.attr)
            if (
                barrier is None
                or barrier.id not in _BY_NAME
                or _excused(node, barrier)
                or not context.waits_on(barrier)
            ):
                return
            confidence = context.confidence(context.value(node.func.value))
            if confidence is not None:
                yield Report(barrier.id, node, confidence, highlight_name=True)


class CallByShape(Rule):
    """Calls that wait or not depending on how they are called."""

    nodes = (ast.Call,)
    calls = _BY_SHAPE
    barriers = ("repeat-interleave", "one-hot", "where-one-argument", "clip-check", "ctc-loss")
    VALID: ClassVar = ("x.repeat_interleave(2, 0)", "F.one_hot(tgt, 256)", "torch.where(m, x, x2)")
    INVALID: ClassVar = ("x.repeat_interleave(counts, 0)", "F.one_hot(tgt)", "torch.where(m)")

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Look at a call."""
        called = method(node)
        dotted = context.qualified_name(node.func)
        if dotted:
            called = dotted.rpartition(".")[2]
            if not dotted.startswith("torch."):
                return
        if called not in _BY_SHAPE:
            return
        args = positional(node)
        barrier, confidence, fix = "", None, None
        if called == "repeat_interleave" and keyword(node, "output_size") is None:
            repeats = _repeats(node, args, bool(dotted))
            barrier, confidence = "repeat-interleave", context.confidence(context.value(repeats))
            fix = call_edits.add_output_size(node, repeats, context) if repeats is not None else None
        elif called == "one_hot" and len(args) < 2 and keyword(node, "num_classes") is None and args:
            barrier, confidence = "one-hot", context.confidence(context.value(args[0]))
            fix = call_edits.add_num_classes(node, context)
        elif called == "where" and len(arguments(node)) == 1 and args:
            barrier, confidence = "where-one-argument", context.confidence(context.value(args[0]))
        elif called in ("clip_grad_norm_", "get_total_norm") and keyword_is(node, "error_if_nonfinite", True):
            barrier, confidence = "clip-check", context.confidence(context.value(node))
        elif called == "ctc_loss" and len(args) >= 4:
            barrier, confidence = "ctc-loss", context.confidence(context.value(args[2]))
        if barrier and confidence is not None:
            yield Report(barrier, node, confidence, highlight_name=not dotted, fix=fix)


def _repeats(node: ast.Call, args: list[ast.expr], function: bool) -> ast.expr | None:
    """How often each element is repeated: of `torch.repeat_interleave(x, repeats)`, or of the method."""
    repeats = keyword(node, "repeats")
    if repeats is not None:
        return repeats
    place = (1 if len(args) > 1 else 0) if function else 0
    return args[place] if len(args) > place else None


def _excused(node: ast.Call, barrier: Barrier) -> bool:
    given = barrier.unless_keywords
    return bool(given) and all(keyword(node, label) is not None for label in given)
