"""Calls of functions and methods of torch: those with a catalogue entry, and some that need more than an entry."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.catalogue import registry, roots
from gpusync_lint.domain import accelerators
from gpusync_lint.domain.values import Device, Kind, Value, contents
from gpusync_lint.model.levels import Confidence
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
from gpusync_lint.rules.base.entries import is_meant, waits_if_called_so
from gpusync_lint.rules.fixes import call_edits
from gpusync_lint.rules.text import text_confidence
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class CatalogueCall(Rule):
    """Functions and methods of torch and of accelerators with an entry, unless the entry has a rule of its own."""

    nodes = (ast.Call,)
    barriers = tuple(
        barrier_id
        for each in (registry.catalogue("torch"), *roots.accelerator_catalogues())
        for barrier_id, barrier in each.barriers.items()
        if (barrier.functions or barrier.methods) and not barrier.own_rule
    )
    calls = called_names(*barriers)
    VALID: ClassVar = (
        "torch.isclose(x, x2)",
        "v.histc(10, min=0, max=1)",
        "c.nonzero()",
        "x.sort()",
        "torch.unique(c)",
        "torch.cuda.is_available()",
        "start = time.perf_counter()\ntorch.cuda.synchronize()",
    )
    INVALID: ClassVar = (
        "torch.equal(x, x2)",
        "m.nonzero()",
        "x.unique()",
        "idx.bincount()",
        "torch.linalg.svd(x)",
        "torch.cuda.synchronize()",
        "torch.cuda.empty_cache()",
        "torch.distributed.barrier()",
        "torch.distributed.all_gather_object([None], 3)",
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        dotted = context.qualified_name(node.func)
        if dotted:
            barrier = context.catalogue.by_function.get(dotted) or accelerators.barriers().get(dotted)
        else:
            barrier = context.catalogue.by_method.get(method(node))
        if barrier is None or barrier.own_rule or not waits_if_called_so(barrier, node, context):
            return
        confidence: Confidence | None = Confidence.HIGH
        if not dotted:
            assert isinstance(node.func, ast.Attribute)
            confidence = context.confidence(context.value(node.func.value))
        elif barrier.takes == "tensor":
            if barrier.code == "GS605" and any(_holds_module(context.value(arg)) for arg in arguments(node)):
                yield Report(barrier.id, node, Confidence.MEDIUM)
                return
            found = [text_confidence(context, context.value(arg)) for arg in arguments(node)]
            confidence = min((one for one in found if one is not None), key=lambda one: one.rank, default=None)
        elif is_meant(barrier, context):
            confidence = Confidence.LOW
        if confidence is not None:
            fix = call_edits.without_check(node, context) if dotted and barrier.id == "linalg-check" else None
            yield Report(barrier.id, node, confidence, highlight_name=not dotted, fix=fix)


def _holds_module(value: Value) -> bool:
    """Whether a value that is saved is a module with weights on the device, or contains one."""
    inside = (value, *contents(value)) if value.items or value.elem is not None else (value,)
    return any(one.kind is Kind.MODULE and one.device >= Device.ASSUMED for one in inside)


def _repeat_interleave(node: ast.Call, args: list[ast.expr], function: bool, context: RuleContext) -> Iterator[Report]:
    if keyword(node, "output_size") is not None:
        return
    place = 1 if function and len(args) > 1 else 0
    repeats = keyword(node, "repeats") or (args[place] if len(args) > place else None)
    confidence = context.confidence(context.value(repeats))
    if repeats is not None and confidence is not None:
        fix = call_edits.add_output_size(node, repeats, context)
        yield Report("repeat-interleave", node, confidence, highlight_name=not function, fix=fix)


def _one_hot(node: ast.Call, args: list[ast.expr], function: bool, context: RuleContext) -> Iterator[Report]:
    if len(args) != 1 or keyword(node, "num_classes") is not None:
        return
    confidence = context.confidence(context.value(args[0]))
    if confidence is not None:
        fix = call_edits.add_num_classes(node, context)
        yield Report("one-hot", node, confidence, highlight_name=not function, fix=fix)


def _where(node: ast.Call, args: list[ast.expr], function: bool, context: RuleContext) -> Iterator[Report]:
    if len(args) == 1 and len(arguments(node)) == 1:
        confidence = context.confidence(context.value(args[0]))
        if confidence is not None:
            yield Report("where-one-argument", node, confidence, highlight_name=not function)


def _clip(node: ast.Call, args: list[ast.expr], function: bool, context: RuleContext) -> Iterator[Report]:
    confidence = context.confidence(context.value(node))
    if keyword_is(node, "error_if_nonfinite", True) and confidence is not None:
        yield Report("clip-check", node, confidence, highlight_name=not function)


def _ctc_loss(node: ast.Call, args: list[ast.expr], function: bool, context: RuleContext) -> Iterator[Report]:
    confidence = context.confidence(context.value(args[0])) if args else None
    if confidence is not None:
        yield Report("ctc-loss", node, confidence, highlight_name=not function)


def _isin(node: ast.Call, args: list[ast.expr], function: bool, context: RuleContext) -> Iterator[Report]:
    tested = keyword(node, "test_elements") or (args[1] if len(args) > 1 else None)
    if tested is None or context.value(tested).kind is not Kind.TENSOR or _is_listed(tested, context):
        return
    confidence = context.confidence(context.value(tested))
    if confidence is not None:
        yield Report("isin", node, confidence)


def _is_listed(node: ast.expr, context: RuleContext) -> bool:
    """Whether the elements of a tensor are listed in Python: `torch.tensor(stop_ids)`, perhaps kept under a name."""
    if isinstance(node, ast.Name):
        found = [
            one.value
            for one in walk_block(context.function.node.body)
            if isinstance(one, ast.Assign) and any(getattr(target, "id", "") == node.id for target in one.targets)
        ]
        return (
            bool(found)
            and not any(isinstance(one, ast.Name) for one in found)
            and all(_is_listed(one, context) for one in found)
        )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "cuda"):
        return _is_listed(node.func.value, context)
    if not isinstance(node, ast.Call) or context.qualified_name(node.func) not in ("torch.tensor", "torch.as_tensor"):
        return False
    return bool(node.args) and context.value(node.args[0]).kind not in (Kind.TENSOR, Kind.ARRAY)


_BY_SHAPE: dict[str, Callable[[ast.Call, list[ast.expr], bool, RuleContext], Iterator[Report]]] = {
    "repeat_interleave": _repeat_interleave,
    "one_hot": _one_hot,
    "where": _where,
    "clip_grad_norm_": _clip,
    "get_total_norm": _clip,
    "ctc_loss": _ctc_loss,
    "isin": _isin,
}
"""By the last name of the callee. The arguments are the call, its positional arguments, and whether it is a function of
torch, and not a method."""


class CtcLossModule(Rule):
    """A call of `nn.CTCLoss`."""

    nodes = (ast.Call,)
    calls = ("torch.nn.CTCLoss.__call__",)
    barriers = ("ctc-loss",)
    VALID: ClassVar = ("torch.nn.CTCLoss()(c.log_softmax(1), tgt, [4], [2])",)
    INVALID: ClassVar = ("torch.nn.CTCLoss()(x.log_softmax(1), tgt, [4], [2])",)

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        called, args = context.value(node.func), positional(node)
        if called.kind is Kind.MODULE and called.ref == "torch.nn.CTCLoss" and args:
            confidence = context.confidence(context.value(args[0]))
            if confidence is not None:
                yield Report("ctc-loss", node, confidence)


class CallByShape(Rule):
    """Calls that wait or not, depending on their arguments."""

    nodes = (ast.Call,)
    calls = tuple(_BY_SHAPE)
    barriers = ("repeat-interleave", "one-hot", "where-one-argument", "clip-check", "ctc-loss", "isin")
    VALID: ClassVar = (
        "x.repeat_interleave(2, 0)",
        "F.one_hot(tgt, 256)",
        "torch.where(m, x, x2)",
        "ids = torch.tensor([3, 4]).to(device)\ntorch.isin(tgt, ids)",
    )
    INVALID: ClassVar = (
        "x.repeat_interleave(counts, 0)",
        "F.one_hot(tgt)",
        "torch.where(m)",
        "torch.isin(tgt, tgt)",
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        called = method(node)
        dotted = context.qualified_name(node.func)
        if dotted:
            called = dotted.rpartition(".")[2]
            if not dotted.startswith("torch."):
                return
        judge = _BY_SHAPE.get(called)
        if judge is not None:
            yield from judge(node, positional(node), bool(dotted), context)
