"""GS701: GPU work between two reads of the clock, and nothing that waits for it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain.values import Kind
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.blocks import around
from gpusync_lint.rules.base.context import CLOCKS, Report, Rule, RuleContext
from gpusync_lint.rules.base.device_work import device_work
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Iterator


class UnsynchronizedTiming(Rule):
    """`time.perf_counter() - start` after device work that nothing waited for.

    Both clock reads stand in one block. Every call between them must be understood: one that is not may wait. A loop
    over a data loader is left alone, for what is still in the queue at its end is a small part of an epoch.
    """

    nodes = (ast.BinOp,)
    barriers = ("unsynchronised-timing",)
    after_others = True
    VALID: ClassVar = (
        "start = time.time()\nmodel(x)\ntorch.cuda.synchronize()\nprint(time.time() - start)",
        "start = time.time()\nmodel(x).sum().item()\nprint(time.time() - start)",
        "start = time.time()\nunknown(model(x))\nprint(time.time() - start)",
        "start = time.time()\nc.sum()\nprint(time.time() - start)",
        "start = time.time()\nfor y in torch.utils.data.DataLoader([]):\n    model(x)\nprint(time.time() - start)",
    )
    INVALID: ClassVar = (
        "start = time.time()\nmodel(x)\nprint(time.time() - start)",
        "start = time.perf_counter()\ny = x @ x2\nend = time.perf_counter()\nspent = end - start",
        "start = time.time()\nfor _ in range(9):\n    torch.mm(x, x2)\nspent = (time.time() - start) / 9",
    )

    def check(self, node: ast.BinOp, context: RuleContext) -> Iterator[Report]:
        """Look at a subtraction."""
        if not context.file.uses_framework:
            return
        if not isinstance(node.op, ast.Sub) or not isinstance(node.right, ast.Name):
            return
        holders = around(context.function, context.statement)
        if not holders:
            return
        block, stop = holders[-1]
        if isinstance(node.left, ast.Name):
            stop = _assigned(block, stop, node.left.id)
        elif not _is_clock(node.left, context):
            return
        start = _assigned(block, stop, node.right.id)
        if start < 0 or stop <= start or not _is_clock(getattr(block[start], "value", None), context):
            return
        if isinstance(node.left, ast.Name) and not _is_clock(getattr(block[stop], "value", None), context):
            return
        window = block[start + 1 : stop]
        lines = range(block[start].lineno, (block[stop].end_lineno or block[stop].lineno) + 1)
        if context.reported_lines.intersection(lines):
            return
        work = device_work(window, context)
        if work is not None:
            yield Report("unsynchronised-timing", node, Confidence.MEDIUM, heat_statement=work)


def _assigned(block: list[ast.stmt], before: int, label: str) -> int:
    """The place of the nearest assignment to a name before a place in a block; -1 for none."""
    for place in range(before - 1, -1, -1):
        statement = block[place]
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == label for target in targets):
            return place
        if any(
            isinstance(n, ast.Name) and n.id == label and isinstance(n.ctx, ast.Store) for n in walk_block([statement])
        ):
            return -1
    return -1


def _is_clock(node: ast.expr | None, context: RuleContext) -> bool:
    if not isinstance(node, ast.Call):
        return False
    module, _, label = context.value(node.func).ref.rpartition(".") if _is_name(node.func, context) else ("", "", "")
    return module == "time" and label in CLOCKS


def _is_name(node: ast.expr, context: RuleContext) -> bool:
    value = context.value(node)
    return value.kind is Kind.NAME and isinstance(value.ref, str)
