"""GS408, GS603 and GS606: calls of torch that wait because of the settings of the call or of its object."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain.lattice import element
from gpusync_lint.domain.values import UNCOALESCED, Device, Kind
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.rules.base.blocks import around
from gpusync_lint.rules.base.context import (
    Report,
    Rule,
    RuleContext,
    called_names,
    keyword,
    keyword_is,
    method,
    positional,
)
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Iterator

_BY_SINGULAR_VALUES = (2, -2, "nuc")
_BATCH_NORMS = (
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "LazyBatchNorm1d", "LazyBatchNorm2d",
    "LazyBatchNorm3d",
)  # fmt: skip
_READING = frozenset({"Adafactor", "ASGD"})
"""Optimizers whose update reads a number of each parameter, unless they are `capturable`."""


class AnomalyDetection(Rule):
    """`set_detect_anomaly(True)` and `detect_anomaly()`, if training code runs in that mode."""

    nodes = (ast.Call,)
    calls = called_names("anomaly-detection")
    barriers = ("anomaly-detection",)
    VALID: ClassVar = (
        "torch.autograd.set_detect_anomaly(False)",
        "torch.autograd.set_detect_anomaly(total > 1)",
        "torch.autograd.set_detect_anomaly(True, check_nan=False)",
    )
    INVALID: ClassVar = (
        "torch.autograd.set_detect_anomaly(True)",
        "with torch.autograd.detect_anomaly(): model(x)",
        "with torch.autograd.detect_anomaly(): model(x).sum().backward()",
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        dotted = context.qualified_name(node.func)
        barrier = context.catalogue.by_function.get(dotted)
        if barrier is None or barrier.id != "anomaly-detection" or not context.uses_device():
            return
        check_nan = keyword(node, "check_nan")
        if check_nan is not None and context.value(check_nan).const is not True:
            return
        if dotted.endswith("set_detect_anomaly"):
            mode = keyword(node, "mode") or next(iter(positional(node)), None)
            if context.value(mode).const is not True:
                return
        passes = list(_backward_passes(context.statement, node))
        for each, statement in passes:
            yield Report("anomaly-detection", each, Confidence.MEDIUM, highlight_name=True, heat_statement=statement)
        if not passes:
            yield Report("anomaly-detection", node, Confidence.MEDIUM, heat=self._heat(context))

    def _heat(self, context: RuleContext) -> Heat | None:
        """`STEP` if the mode remains enabled for the training around the statement and no setting asks for it."""
        fn = context.function
        if any(isinstance(block[at], (ast.If, ast.Try)) for block, at in around(fn, context.statement)):
            return None
        trains = any(isinstance(node, ast.Attribute) and node.attr == "backward" for node in walk_block(fn.node.body))
        return Heat.STEP if trains or fn.is_module else None


def _backward_passes(statement: ast.stmt, call: ast.Call) -> Iterator[tuple[ast.Call, ast.stmt]]:
    """The backward passes in the body of a `with` that a call opens, which wait, each with its statement."""
    if not isinstance(statement, ast.With) or not any(item.context_expr is call for item in statement.items):
        return
    for inner in walk_block(statement.body):
        if isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call) and method(inner.value) == "backward":
            yield inner.value, inner


class ReadingOptimizer(Rule):
    """`step` of an optimizer that reads numbers of its parameters, or its learning rate, which is checked at first."""

    nodes = (ast.Call,)
    calls = ("step", "torch.optim.*")
    barriers = ("reading-optimizer", "rate-on-device", "tensor-as-number")
    VALID: ClassVar = ("sgd.step()", "fused.step()")
    INVALID: ClassVar = (
        "torch.optim.Adafactor(model.parameters()).step()",
        "torch.optim.Adam(model.parameters(), lr=s).step()",
        "torch.optim.Adam(model.parameters(), lr=s)",
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        if context.qualified_name(node.func):
            made = context.value(node)
            confidence = context.confidence(made.argument("lr")) if made.kind is Kind.OPTIMIZER else None
            if confidence is not None:
                yield Report("tensor-as-number", node, confidence)
            return
        if method(node) != "step" or not isinstance(node.func, ast.Attribute):
            return
        receiver = context.value(node.func.value)
        if receiver.kind is not Kind.OPTIMIZER or receiver.argument("capturable").const is True:
            return
        if receiver.ref in _READING:
            yield Report("reading-optimizer", node, Confidence.MEDIUM, highlight_name=True)
        elif receiver.argument("lr").on_device and receiver.argument("fused").const is not True:
            yield Report("rate-on-device", node, Confidence.MEDIUM, highlight_name=True)


class SparseProduct(Rule):
    """A product with a sparse tensor that was not coalesced."""

    nodes = (ast.Call, ast.BinOp)
    calls = ("mm", "matmul", "torch.mm", "torch.matmul", "torch.spmm", "torch.sparse.mm")
    barriers = ("sparse-product",)
    VALID: ClassVar = (
        "a = torch.sparse_coo_tensor(torch.ones(2, 3).long(), torch.ones(3), (256, 256))\ntorch.sparse.mm(a, c)",
        "torch.mm(x, x2)",
        "x @ x2",
    )
    INVALID: ClassVar = (
        "a = torch.sparse_coo_tensor(torch.ones(2, 3).long(), torch.ones(3), (256, 256)).to(dev)\ntorch.spmm(a, x)",
        "a = torch.sparse_coo_tensor(torch.ones(2, 3).long(), torch.ones(3), (256, 256)).to(dev)\na @ x",
    )

    def check(self, node: ast.Call | ast.BinOp, context: RuleContext) -> Iterator[Report]:
        """Check a call or an `@`."""
        if isinstance(node, ast.BinOp):
            first: ast.expr | None = node.left if isinstance(node.op, ast.MatMult) else None
        elif context.qualified_name(node.func):
            first = next(iter(positional(node)), None)
        else:
            first = node.func.value if isinstance(node.func, ast.Attribute) else None
        value = context.value(first)
        if value.kind is Kind.TENSOR and value.ref == UNCOALESCED and value.on_device:
            yield Report("sparse-product", node, Confidence.HIGH if value.device is Device.GPU else Confidence.MEDIUM)


class PackedByLength(Rule):
    """`pack_padded_sequence(x, lengths, enforce_sorted=False)`, and `pad_packed_sequence` in the same function."""

    nodes = (ast.Call,)
    calls = called_names("packed-by-length")
    barriers = ("packed-by-length",)
    VALID: ClassVar = (
        "torch.nn.utils.rnn.pack_padded_sequence(x, cidx)",
        "torch.nn.utils.rnn.pack_padded_sequence(c, cidx, enforce_sorted=False)",
        "torch.nn.utils.rnn.pad_packed_sequence(x)",
    )
    INVALID: ClassVar = (
        "torch.nn.utils.rnn.pack_padded_sequence(x, cidx, enforce_sorted=False)",
        "torch.nn.utils.rnn.pack_sequence([x, x2], enforce_sorted=False)",
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        barrier = context.catalogue.by_function.get(context.qualified_name(node.func))
        if barrier is None or barrier.id != "packed-by-length":
            return
        given = context.value(next(iter(positional(node)), None))
        confidence = context.confidence(element(given) if given.kind in (Kind.LIST, Kind.TUPLE) else given)
        sorts = keyword_is(node, "enforce_sorted", False)
        if not sorts and context.qualified_name(node.func).endswith(".pad_packed_sequence"):
            sorts = any(
                isinstance(other, ast.Call) and keyword_is(other, "enforce_sorted", False)
                for other in walk_block(context.function.node.body)
            )
        if sorts and confidence is not None:
            yield Report("packed-by-length", node, confidence)


class CumulativeBatchNorm(Rule):
    """A call of a batch norm that was created with `momentum=None`."""

    nodes = (ast.Call,)
    calls = tuple(f"torch.nn.{name}.__call__" for name in _BATCH_NORMS)
    barriers = ("cumulative-batch-norm",)
    VALID: ClassVar = ("torch.nn.BatchNorm1d(256).to(dev)(x)",)
    INVALID: ClassVar = ("torch.nn.BatchNorm1d(256, momentum=None).to(dev)(x)",)

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        called = context.value(node.func)
        if (
            called.kind is Kind.MODULE
            and called.argument("momentum").kind is Kind.NONE
            and called.device >= Device.ASSUMED
        ):
            yield Report("cumulative-batch-norm", node, Confidence.MEDIUM)


class CaptureAndLoad(Rule):
    """`torch.cuda.graph(...)`, and `torch.load` to a device."""

    nodes = (ast.Call,)
    calls = called_names("graph-capture", "load-to-device")
    barriers = ("graph-capture", "load-to-device")
    VALID: ClassVar = ("torch.load('x.pt', map_location='cpu')", "torch.load('x.pt')")
    INVALID: ClassVar = ("torch.load('x.pt', map_location=dev)", "with torch.cuda.graph(captured): y = x + 1")

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        barrier = context.catalogue.by_function.get(context.qualified_name(node.func))
        if barrier is None or barrier.id not in self.barriers:
            return
        if barrier.id == "load-to-device":
            args = positional(node)
            place = context.value(keyword(node, "map_location") or (args[1] if len(args) > 1 else None))
            named = isinstance(place.const, str) and place.const.startswith("cuda")
            if not named and not (place.kind is Kind.DEVICE and place.device >= Device.ASSUMED):
                return
        yield Report(barrier.id, node, Confidence.MEDIUM)


class NormBySingularValues(Rule):
    """`torch.linalg.matrix_norm` of an order that needs singular values, and nuclear norms.

    `torch.linalg.norm(x, 2)` is not reported, since `x` may be a vector.
    """

    nodes = (ast.Call,)
    calls = called_names("spectral-norm-of-matrix")
    barriers = ("spectral-norm-of-matrix",)
    VALID: ClassVar = ("torch.linalg.matrix_norm(x)", "torch.linalg.matrix_norm(c, 2)")
    INVALID: ClassVar = ("torch.linalg.matrix_norm(x, 2)", "torch.linalg.matrix_norm(x, ord='nuc')")

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        barrier = context.catalogue.by_function.get(context.qualified_name(node.func))
        args = positional(node)
        if barrier is None or barrier.id != "spectral-norm-of-matrix" or not args:
            return
        order = keyword(node, "ord") or keyword(node, "p") or (args[1] if len(args) > 1 else None)
        wanted = _BY_SINGULAR_VALUES if context.qualified_name(node.func).endswith("matrix_norm") else ("nuc",)
        confidence = context.confidence(context.value(args[0]))
        if context.value(order).const in wanted and confidence is not None:
            yield Report("spectral-norm-of-matrix", node, confidence)
