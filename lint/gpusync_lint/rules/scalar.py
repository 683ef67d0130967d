"""GS205: device tensors that are converted to Python numbers, or used as an index."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain.values import Kind, Value
from gpusync_lint.rules.base.context import (
    Report,
    Rule,
    RuleContext,
    arguments,
    called_names,
    indices,
    method,
    positional,
)
from gpusync_lint.rules.fixes.deferred_reads import defer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.model.levels import Confidence

_CONVERSIONS = frozenset({"float", "int", "complex", "bool", "range", "hex", "bin", "chr"})


class ScalarConversion(Rule):
    """`float(t)`, `int(t)`, `range(t)`, `math.f(t)`, and `torch.tensor` of device scalars."""

    nodes = (ast.Call,)
    calls = (*(f"builtins.{name}" for name in sorted(_CONVERSIONS)), "math.*", "torch.tensor", "torch.as_tensor")
    barriers = ("scalar-conversion", "tensor-of-scalars")
    VALID: ClassVar = ("float(3)", "int(x.size(0))", "s.float()", "math.sqrt(2)", "torch.stack([s, s2])")
    INVALID: ClassVar = ("float(s)", "int(s)", "range(si)", "math.isnan(s)", "torch.tensor([s, s2])")

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        dotted = context.qualified_name(node.func)
        if dotted in ("torch.tensor", "torch.as_tensor"):
            yield from self._tensor_of_scalars(node, context)
        elif dotted.startswith("math.") or (dotted[:9] == "builtins." and dotted[9:] in _CONVERSIONS):
            yield from self._conversion(node, dotted, context)

    def _tensor_of_scalars(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        data = next(iter(positional(node)), None)
        if isinstance(data, (ast.List, ast.Tuple)) and context.value(data).kind in (Kind.LIST, Kind.TUPLE):
            confidence = _any(context, context.value(data))
            if confidence is not None:
                yield Report("tensor-of-scalars", node, confidence)

    def _conversion(self, node: ast.Call, dotted: str, context: RuleContext) -> Iterator[Report]:
        given = arguments(node)
        for arg in given:
            value = context.value(arg)
            confidence = context.truth_confidence(value) if dotted == "builtins.range" else context.confidence(value)
            if confidence is not None:
                is_float = dotted == "builtins.float" and given == node.args
                yield Report("scalar-conversion", node, confidence, fix=defer(node, arg, context) if is_float else None)
                return


class TensorAsNumber(Rule):
    """A device tensor that is passed to torch as a Python number: a size, or a fill value."""

    nodes = (ast.Call,)
    calls = called_names("tensor-as-number")
    barriers = ("tensor-as-number",)
    VALID: ClassVar = ("torch.full((4,), 3.0, device=dev)", "torch.zeros(x.size(0))", "x.index_fill_(0, idx, 1.0)")
    INVALID: ClassVar = ("torch.full((4,), s)", "torch.zeros(si, device=dev)", "x.index_fill_(0, idx, s)")

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        barrier = context.catalogue.barriers["tensor-as-number"]
        dotted = context.qualified_name(node.func)
        args = positional(node)
        if method(node) in barrier.methods and not dotted:
            args = args[2:]
        elif dotted not in barrier.functions:
            return
        for arg in args:
            value = context.value(arg)
            confidence = context.truth_confidence(value)
            if confidence is None and value.kind is Kind.TUPLE:
                confidence = _any(context, value)
            if confidence is not None:
                yield Report("tensor-as-number", node, confidence)
                return


class IndexByValue(Rule):
    """`items[t]`, `x[:t]`, `x[i0]` with an index on the device."""

    nodes = (ast.Subscript,)
    barriers = ("index-by-value",)
    VALID: ClassVar = ("x[idx]", "x[0]", "x[:, None]", "lst[0]")
    INVALID: ClassVar = ("lst[si]", "x[:si]", "x[si]")

    def check(self, node: ast.Subscript, context: RuleContext) -> Iterator[Report]:
        """Check a subscript."""
        base = context.value(node.value)
        if base.kind in (Kind.LIST, Kind.TUPLE) and isinstance(node.slice, ast.Tuple):
            return  # sequences take one index, so this is something else
        for part in indices(node):
            if isinstance(part, ast.Slice):
                values = [context.value(bound) for bound in (part.lower, part.upper, part.step)]
            else:
                value = context.value(part)
                if base.kind is Kind.TENSOR and (not value.zero_dim or value.boolean or not base.on_device):
                    continue
                if base.kind not in (Kind.TENSOR, Kind.LIST, Kind.TUPLE, Kind.ARRAY):
                    continue
                values = [value]
            for value in values:
                confidence = context.truth_confidence(value)
                if confidence is not None:
                    yield Report("index-by-value", node, confidence)
                    return


def _any(context: RuleContext, value: Value) -> Confidence | None:
    items = list(value.items or ()) if value.kind is Kind.TUPLE else [value.elem] if value.elem is not None else []
    found = [context.confidence(item) for item in items]
    sure = [confidence for confidence in found if confidence is not None]
    return min(sure, key=lambda confidence: confidence.rank) if sure else None
