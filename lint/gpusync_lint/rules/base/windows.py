"""Windows: statements between two reads of a clock, and what the rules about timing have in common."""

from __future__ import annotations

import ast
from typing import NamedTuple

from gpusync_lint.catalogue import registry
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.context import Report, Rule, RuleContext
from gpusync_lint.rules.base.device_index import are_different, gpus_of_statements, synchronized_gpu
from gpusync_lint.rules.base.device_work import Work, device_work
from gpusync_lint.syntax.traversal import walk_block

BARRIERS = tuple(key for key in registry.all_barriers() if key.endswith("unsynchronised-timing"))
"""The entries for work that nothing waits for, one for each framework."""
OTHER_GPU = "other-gpu-synchronize"


class Window(NamedTuple):
    """Consecutive statements of a block, between two reads of a clock."""

    block: list[ast.stmt]
    start: int
    """The index of the statement that reads the clock first."""
    stop: int
    """The index of the one that reads it last."""

    @property
    def statements(self) -> list[ast.stmt]:
        """The statements between the reads."""
        return self.block[self.start + 1 : self.stop]

    @property
    def lines(self) -> range:
        """The lines from the first read to the last."""
        last = self.block[self.stop]
        return range(self.block[self.start].lineno, (last.end_lineno or last.lineno) + 1)


class TimingRule(Rule):
    """What the rules about timing have in common."""

    after_others = True

    def applies_to(self, context: RuleContext) -> bool:
        """Whether the file works with a device."""
        return context.file.uses_framework or context.uses_foreign_values

    def report(self, node: ast.expr, statements: list[ast.stmt], lines: range, context: RuleContext) -> Report | None:
        """The report on statements whose time is measured; None if nothing is wrong, or something may wait."""
        others = _waits_for_another_gpu(statements, context)
        waiting = context.reported_lines - {call.lineno for call in others}
        if not waiting.isdisjoint(lines):
            return None
        work = device_work(statements, context, others)
        if work is None:
            return None
        barrier = OTHER_GPU if others else barrier_of(work)
        statement = work.node if isinstance(work.node, ast.stmt) else None
        return Report(barrier, node, Confidence.MEDIUM, heat_statement=statement)


def barrier_of(work: Work) -> str:
    """The entry for work that nothing waits for."""
    return "unsynchronised-timing" if work.framework == "torch" else f"{work.framework}.unsynchronised-timing"


def _waits_for_another_gpu(statements: list[ast.stmt], context: RuleContext) -> list[ast.Call]:
    """The calls of `torch.cuda.synchronize` in a window, if some GPU has work in it that none of them waits for."""
    calls = [
        node
        for node in walk_block(statements)
        if isinstance(node, ast.Call) and context.qualified_name(node.func) == "torch.cuda.synchronize"
    ]
    if not calls:
        return []
    waited = [synchronized_gpu(call, context) for call in calls]
    used = gpus_of_statements(statements, context)
    return calls if any(all(are_different(one, gpu) for one in waited) for gpu in used) else []


def is_clock(node: ast.expr | None, context: RuleContext) -> bool:
    """Whether an expression is a call that reads a clock and does nothing that may wait."""
    return isinstance(node, ast.Call) and context.timers.is_clock(context.value(node.func))


def path_of(node: ast.expr) -> str:
    """A name, an attribute, or an element by a constant key, as text; empty for another expression."""
    inner = node
    while isinstance(inner, (ast.Attribute, ast.Subscript)):
        if isinstance(inner, ast.Subscript) and not isinstance(inner.slice, ast.Constant):
            return ""
        inner = inner.value
    return ast.unparse(node) if isinstance(inner, ast.Name) else ""


def value_of(statement: ast.stmt) -> ast.expr | None:
    """The value of an assignment, or of a statement that is an expression."""
    return statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr)) else None


def assigned(block: list[ast.stmt], before: int, path: str) -> int:
    """The index of the nearest assignment to a path, before another index of a block; -1 for none."""
    for at in range(before - 1, -1, -1):
        statement = block[at]
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(target, ast.expr) and path_of(target) == path for target in targets):
            return at
        if any(
            isinstance(getattr(node, "ctx", None), ast.Store) and path_of(node) == path  # type: ignore[arg-type]
            for node in walk_block([statement])
        ):
            return -1
    return -1


def since(block: list[ast.stmt], stop: int, path: str, context: RuleContext) -> Window | None:
    """The window from the statement that assigns a clock read to a path, up to a statement of the same block."""
    start = assigned(block, stop, path)
    return Window(block, start, stop) if start >= 0 and is_clock(value_of(block[start]), context) else None


def started(
    holder: tuple[list[ast.stmt], int], path: str, starts: frozenset[str], context: RuleContext
) -> Window | None:
    """The window from the statement that starts a timer, up to one of the same block."""
    block, stop = holder
    for at in range(stop - 1, -1, -1):
        value = value_of(block[at])
        if isinstance(value, ast.Call):
            func = value.func
            if isinstance(func, ast.Attribute) and func.attr in starts and path_of(func.value) == path:
                return Window(block, at, stop)
        if assigned([block[at]], 1, path) == 0:
            created = (
                isinstance(value, ast.Call) and "__init__" in context.timers.stopwatch(context.value(value)).starts
            )
            return Window(block, at, stop) if created else None
    return None
