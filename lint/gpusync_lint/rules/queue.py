"""GS704: a training loop in which nothing waits for the GPU."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain import torch_api
from gpusync_lint.domain.values import Device, Kind
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.rules.base.blocks import LOOPS, around
from gpusync_lint.rules.base.context import Report, Rule, RuleContext, is_count, method
from gpusync_lint.rules.base.device_work import device_work
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRAINERS = {"mxnet.trainer": "mxnet.unbounded-queue"}
"""The types of the optimizers of other frameworks, each with its entry."""
_MADE = "for i in range(9):\n    y = torch.randn(4, 256, device=dev)\n    model(y).sum().backward()\n    sgd.step()"


class UnboundedQueue(Rule):
    """`optimizer.step()` in a loop whose inputs are created on the device, and in which nothing waits.

    In MXNet, where copies to the device do not wait either, `trainer.step()` in any loop.

    Every call of the loop must be understood: one that is not may wait. So must what it runs over: a range, or no end.
    A read under a guard (`if step % 100 == 0`) holds the host back too.
    """

    nodes = (ast.Call,)
    calls = ("step",)
    barriers = ("unbounded-queue", *_TRAINERS.values())
    after_others = True
    VALID: ClassVar = (
        f"{_MADE}\n    if i % 3 == 0:\n        print(y.sum().item())",
        "for y in torch.utils.data.DataLoader([]):\n    model(y).sum().backward()\n    sgd.step()",
        "for i in range(9):\n    model(x).sum().backward()\n    sgd.step()",
        f"{_MADE}\n    report(y)",
    )
    INVALID: ClassVar = (
        _MADE,
        "while True:\n    y = torch.randn(4, 256, device=dev)\n    model(y).sum().backward()\n    sgd.step()",
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        if method(node) != "step" or not isinstance(node.func, ast.Attribute) or context.occurrence.repeated:
            return
        optimizer = context.value(node.func.value)
        barrier = "unbounded-queue" if optimizer.kind is Kind.OPTIMIZER else _TRAINERS.get(optimizer.ref, "")
        holders = around(context.function, context.statement)
        loops = [block[at] for block, at in holders if isinstance(block[at], LOOPS)]
        if not barrier or not loops or holders[-2][0][holders[-2][1]] is not loops[-1]:
            return
        loop = loops[-1]
        if _has_reports(loop, context):
            return
        of_torch = optimizer.kind is Kind.OPTIMIZER  # whose copies of batches to the device wait
        if of_torch and not (_endless(loop, context) and _makes_inputs(loop, context)):
            return
        if device_work(loop.body, context, any_loop=not of_torch) is not None:  # type: ignore[attr-defined]
            mark = loop.test if isinstance(loop, ast.While) else loop.iter  # type: ignore[attr-defined]
            yield Report(barrier, mark, Confidence.MEDIUM, heat_statement=loop, heat=Heat.EPOCH)


def _has_reports(loop: ast.stmt, context: RuleContext) -> bool:
    lines = range(loop.lineno, (loop.end_lineno or loop.lineno) + 1)
    return not context.reported_lines.isdisjoint(lines)


def _endless(loop: ast.stmt, context: RuleContext) -> bool:
    """Whether a loop iterates over a range, or is endless."""
    if isinstance(loop, ast.While):
        return isinstance(loop.test, ast.Constant)
    if not isinstance(loop, ast.For):
        return False
    return is_count(loop.iter, context)


def _makes_inputs(loop: ast.stmt, context: RuleContext) -> bool:
    """Whether a loop makes new tensors on the device."""
    return any(_makes_input(inner, context) for inner in walk_block(loop.body))  # type: ignore[attr-defined]


def _makes_input(node: ast.AST, context: RuleContext) -> bool:
    """Whether an expression creates a tensor on the device."""
    if not isinstance(node, ast.Call):
        return False
    called, made = context.value(node.func), context.value(node)
    named = called.kind is Kind.NAME and isinstance(called.ref, str) and called.ref.startswith("torch.")
    return named and torch_api.is_factory(called.ref[6:]) and made.kind is Kind.TENSOR and made.device > Device.ASSUMED
