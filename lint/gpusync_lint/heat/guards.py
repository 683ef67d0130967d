"""Conditions that hold in few steps only: every so many steps, in the first steps, until a flag is cleared.

A condition on the rank of a process, or on a switch that is set once (`if verbose:`), is none of them: where it holds
at all, it holds in every step.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.traversal import children

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_PERIODIC = re.compile(
    r"(?<![a-z])(every|interval|freq(uency)?|period(ic)?|eval(uate)?|sav(e|ing)|checkpoint|ckpt|viz|vis|visuali[sz]e"
    r"|plot|(should|do|to|need|time)_(log|print|report)(?!_?(prob|std|lik|det|sum|pi(?![a-z]))))(?![a-z])|(?<![a-z])(log|print|report)_?(now|step|iter)",
    re.I,
)
"""Words in the names of conditions that hold every so many steps."""
_COUNTER = re.compile(
    r"(^|_)(i|it|iter|iters|iteration|iterations|step|steps|count|counter|idx|epoch|updates|batches)$"
)
"""Names of what counts steps."""
_FIRST_FEW = 100
"""The largest number of first steps that are few."""


def is_guard(test: ast.expr, counters: AbstractSet[str]) -> bool:
    """Whether a condition holds in few steps only: `step % 100 == 0`, `if log_interval and ...`, `i < 3`.

    `counters` are the names that the loops of the function count with.
    """
    stack: list[ast.AST] = [test]
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is ast.Name:
            if _is_periodic(cast("ast.Name", node).id):
                return True
        elif kind is not ast.Constant:
            if kind is ast.Attribute:
                if _is_periodic(cast("ast.Attribute", node).attr):
                    return True
            elif isinstance(node, ast.BinOp):
                if isinstance(node.op, ast.Mod):
                    return True
            elif isinstance(node, ast.Compare) and _holds_at_first(node, counters):
                return True
            stack += children(node)
    return False


def guards_the_rest(statement: ast.If, counters: AbstractSet[str]) -> bool:
    """Whether what follows runs in few steps only: `if step % 100: continue`, `if i >= 3: break`."""
    if len(statement.body) > 1 or statement.orelse or not isinstance(statement.body[0], (ast.Return, ast.Continue)):
        return False
    test = statement.test
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return is_guard(test.operand, counters)
    if isinstance(test, ast.Compare):
        if isinstance(test.ops[0], (ast.Gt, ast.GtE)):
            return _is_counter(test.left, counters) and _is_few(test.comparators[0])
        return isinstance(test.ops[0], ast.NotEq) and isinstance(test.left, ast.BinOp) and is_guard(test, counters)
    return isinstance(test, ast.BinOp) and isinstance(test.op, ast.Mod)


def clears_its_flag(statement: ast.If) -> bool:
    """Whether a block runs until it has changed the flag that its condition tests: `if first: first = False`."""
    test, wanted = statement.test, False
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, wanted = test.operand, True
    path = dotted_path(test)
    return path is not None and any(
        isinstance(one, ast.Assign)
        and isinstance(one.value, ast.Constant)
        and one.value.value is wanted
        and any(dotted_path(target) == path for target in one.targets)
        for one in statement.body
    )


def counters_of(body: list[ast.stmt]) -> frozenset[str]:
    """The names that a function counts with: targets of loops over `range` and `enumerate`, and what is incremented."""
    found: set[str] = set()
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.For, ast.AsyncFor)) and isinstance(node.iter, ast.Call):
            called = dotted_path(node.iter.func) or ""
            target = node.target
            if called == "enumerate" and isinstance(target, ast.Tuple):
                target = target.elts[0]
            if called.endswith("range") or called == "enumerate":
                found.add(dotted_path(target) or "")
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.value, ast.Constant):
            found.add(dotted_path(node.target) or "")
        stack += children(node)
    return frozenset(found - {""})


def _holds_at_first(node: ast.Compare, counters: AbstractSet[str]) -> bool:
    """Whether a comparison of a counter holds in one step, or in the first few."""
    if len(node.ops) != 1:
        return False
    left, operator, right = node.left, node.ops[0], node.comparators[0]
    if isinstance(operator, ast.In):
        return _is_counter(left, counters) and isinstance(right, (ast.Tuple, ast.List, ast.Set))
    if isinstance(operator, (ast.Gt, ast.GtE)):
        left, right = right, left
    elif not isinstance(operator, (ast.Eq, ast.Lt, ast.LtE)):
        return False
    return _is_counter(left, counters) and _is_few(right)


def _is_counter(node: ast.expr, counters: AbstractSet[str]) -> bool:
    if isinstance(node, ast.Call) and not node.args:  # `self.get_num_updates()`
        node = node.func
    path = dotted_path(node)
    return path is not None and (path in counters or _is_counter_name(path.rpartition(".")[2]))


def _is_few(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value <= _FIRST_FEW


@lru_cache(maxsize=4096)
def _is_counter_name(label: str) -> bool:
    return _COUNTER.search(label.lower()) is not None


@lru_cache(maxsize=4096)
def _is_periodic(label: str) -> bool:
    return _PERIODIC.search(label) is not None
