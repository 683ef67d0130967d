"""Barriers of frameworks other than torch, by the types of values that their catalogues describe."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.catalogue import foreign
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.blocks import LOOPS, around
from gpusync_lint.rules.base.context import Report, Rule, RuleContext, is_count, method
from gpusync_lint.rules.base.entries import is_meant
from gpusync_lint.rules.base.foreign_calls import found
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Iterator


class ForeignBarrier(Rule):
    """Calls, conversions, conditions, text and masks that read a value of another framework.

    Functions that the framework traces or compiles are skipped: to read a value there is an error, and not a wait.
    """

    nodes = (ast.Call, ast.If, ast.While, ast.IfExp, ast.Assert, ast.UnaryOp, ast.BoolOp,
             ast.FormattedValue, ast.Subscript)  # fmt: skip
    barriers = tuple(barrier.id for barrier in foreign.barriers())
    VALID: ClassVar = ("float(np.ones(3).sum())", "if np.any([1]): pass")
    INVALID: ClassVar = ()

    def applies_to(self, context: RuleContext) -> bool:
        """Whether the file uses another framework, or contains values of one."""
        return context.uses_foreign_values

    def check(self, node: ast.AST, context: RuleContext) -> Iterator[Report]:
        """Check a node."""
        for barrier, mark, tail in found(node, context):
            if barrier.framework in foreign.allowing_one_wait() and self._is_the_one(node, context):
                return
            if not context.is_traced():
                confidence = Confidence.LOW if is_meant(barrier, context) else Confidence.MEDIUM
                yield Report(barrier.id, mark, confidence, highlight_name=tail)
                return

    def _is_the_one(self, wanted: ast.AST, context: RuleContext) -> bool:
        """Whether a wait is the only one so far in its turn of a loop over batches, or in its call of the function."""
        holders = around(context.function, context.statement)
        loops = [block[at] for block, at in holders if isinstance(block[at], LOOPS)]
        if loops and not _runs_over_batches(loops[-1], context):
            return False
        body = loops[-1].body if loops else context.function.node.body  # type: ignore[attr-defined]
        place = (wanted.lineno, wanted.col_offset)  # type: ignore[attr-defined]
        for node in walk_block(body):
            before = isinstance(node, (ast.expr, ast.stmt)) and (node.lineno, node.col_offset) < place
            if before and any(
                barrier.framework in foreign.allowing_one_wait() for barrier, _, _ in found(node, context)
            ):
                return False
        return True


def _runs_over_batches(loop: ast.stmt, context: RuleContext) -> bool:
    """Whether a loop runs over batches of data, rather than counting, or makes a step of a training in each turn."""
    if isinstance(loop, (ast.For, ast.AsyncFor)) and not is_count(loop.iter, context):
        return True
    steps = ("backward", "step")
    return any(isinstance(node, ast.Call) and method(node) in steps for node in walk_block([loop]))
