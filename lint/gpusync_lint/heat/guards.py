"""Conditions that hold in few steps only: every so many steps, in the first steps, until a flag is cleared, or for NaN.

A condition on the rank of a process, or on a switch that is set once (`if verbose:`), is none of them: where it holds
at all, it holds in every step.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from gpusync_lint.syntax.blocks import blocks
from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.traversal import children, walk, walk_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, KeysView
    from collections.abc import Set as AbstractSet

_PERIODIC = re.compile(
    r"(?<![a-z])(every|interval|freq(uency)?|period(ic)?"
    r"|(should|do|to|need|time)_(log|print|report)(?!_?(prob|std|lik|det|sum|pi(?![a-z])))"
    r"|(should|need|time_to)_(save|eval|evaluate|checkpoint|plot|viz|vis|visuali[sz]e))(?![a-z])"
    r"|(?<![a-z])(log|print|report|save|eval)_?(now|step|iter)(?![a-z])",
    re.I,
)
"""Words in the names of conditions that hold every so many steps. A plain `save` or `plot` is a switch instead."""
_EVALUATION = re.compile(
    r"(?<![a-z])(eval|evaluat\w*|val|valid|validat\w*|save|saving|checkpoint|ckpt|snapshot|log|logging|print|plot|viz|vis)"
    r"(?![a-z])",
    re.I,
)
"""Words in the names of periods after which something is evaluated, saved or shown."""
_COUNTER = re.compile(
    r"(^|_)(i|it|iter|iters|iteration|iterations|step|steps|count|counter|epoch|updates|batches)$"
    r"|^((batch|step|iter|data)_?)?idx$|^(batch|step|iter)_nb$"
)
"""Names of what counts steps."""
_FILLING = frozenset({"append", "add", "extend"})
_EMPTYING = frozenset({"clear", "pop", "popleft", "remove"})
_FIRST_FEW = 100
"""The largest number of first steps that are few."""


class Conditions:
    """The conditions in one function, judged by how it counts."""

    def __init__(self, body: list[ast.stmt], is_one: Callable[[str], bool]) -> None:
        """`is_one` says of the last word of a name whether its value is 1 as a rule."""
        self._body = body
        self._is_one = is_one

    @cached_property
    def _names(self) -> tuple[frozenset[str], frozenset[str]]:
        """The names that the function counts with, and the local names of periodic conditions."""
        return counting_names(self._body)

    @property
    def counters(self) -> frozenset[str]:
        """The names that the function counts with."""
        return self._names[0]

    def rarely(self, test: ast.expr, outcome: bool = True) -> bool:
        """Whether a condition has an outcome in few steps only: `step % 100 == 0`, `if log_interval and ...`, `i < 3`.

        Not `step % 100 != 0`, which holds in most steps, nor `step % 2 == 0`.
        """
        return self.periodic(test, outcome) or self._holds_at_first(test, outcome) or _is_not_finite(test, outcome)

    def periodic(self, test: ast.expr, outcome: bool = True) -> bool:
        """Whether a condition has an outcome every so many steps: `step % 100 == 0`, `if should_log: ...`."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self.periodic(test.operand, not outcome)
        if isinstance(test, ast.BoolOp):
            few = any if outcome or isinstance(test.op, ast.Or) else all
            return few([self.periodic(operand, outcome) for operand in test.values])
        return self._counts_periods(test, outcome) and not self._has_period_of_one(test)

    def _counts_periods(self, test: ast.expr, outcome: bool) -> bool:
        if _is_remainder(test, outcome):
            return True
        if not outcome:
            return False
        if isinstance(test, (ast.Compare, ast.BinOp)) and _is_remainder(test, False):
            return False  # `step % 100 != 0`
        if isinstance(test, ast.Name) and test.id in self._names[1]:
            return True
        return any(map(_is_period, _parts(test)))

    def _has_period_of_one(self, test: ast.expr) -> bool:
        """Whether a condition counts with a period of one step: `step % log_every == 0`, where `log_every` is 1."""
        for part in _parts(test):
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
                path = dotted_path(part.right)
                if path is not None and self._is_one(path.rpartition(".")[2]):
                    return True
        return False

    def _holds_at_first(self, test: ast.expr, outcome: bool) -> bool:
        """Whether a condition has an outcome in the first few steps, or in one: `i < 3`, `step == 0`."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._holds_at_first(test.operand, not outcome)
        if isinstance(test, ast.BoolOp):
            few = any if outcome or isinstance(test.op, ast.Or) else all
            return few([self._holds_at_first(operand, outcome) for operand in test.values])
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return outcome and any(
                _holds_at_first(part, self.counters, True) for part in _parts(test) if isinstance(part, ast.Compare)
            )
        return _holds_at_first(test, self.counters, outcome) or self._holds_once(test, outcome)

    def _holds_once(self, test: ast.Compare, outcome: bool) -> bool:
        """Whether a counter is compared with what no loop of the function binds: `i == len(timesteps) - 1`."""
        operator, left, right = test.ops[0], test.left, test.comparators[0]
        if not isinstance(operator, ast.Eq if outcome else ast.NotEq) or not isinstance(left, ast.Name):
            return False
        if outcome and isinstance(right, (ast.Name, ast.Attribute)) and is_counter_name(left.id):
            label = right.id if isinstance(right, ast.Name) else right.attr
            if label == f"start_{left.id}" or label == f"first_{left.id}":  # `epoch == args.start_epoch`
                return True
        is_known = not any(isinstance(part, (ast.Subscript, ast.Mod)) for part in ast.walk(right))
        names = {part.id for part in _parts(right) if isinstance(part, ast.Name)}
        return left.id in self.counters and is_known and bool(names) and names.isdisjoint(self._bound_in_loops)

    @cached_property
    def _times_bound_in_loops(self) -> Counter[str]:
        """How often the loops of the function bind each name; 0 for a name that they only increment."""
        loops = [node for node in walk_block(self._body) if isinstance(node, (ast.For, ast.AsyncFor, ast.While))]
        inside = {node for loop in loops for node in walk(loop) if isinstance(node, (ast.Name, ast.AugAssign))}
        incremented = {node.target for node in inside if isinstance(node, ast.AugAssign)}
        found: Counter[str] = Counter()
        for node in inside:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found[node.id] += node not in incremented
        return found

    @property
    def _bound_in_loops(self) -> KeysView[str]:
        """The names that the loops of the function bind."""
        return self._times_bound_in_loops.keys()

    def guards_the_rest(self, statement: ast.If) -> bool:
        """Whether what follows runs in few steps only: `if step % 100: continue`, `if i >= 3: return`."""
        if len(statement.body) > 1 or statement.orelse or not isinstance(statement.body[0], (ast.Return, ast.Continue)):
            return False
        return self.rarely(statement.test, False)

    def fills(self, statement: ast.If) -> bool:
        """Whether a block runs until it has filled a list: `if len(images) < 16: images.append(...)`.

        Not if the function empties the list, or loops bind it: then it is filled again and again.
        """
        operands = statement.test.values if isinstance(statement.test, ast.BoolOp) else [statement.test]
        if statement.orelse or (isinstance(statement.test, ast.BoolOp) and isinstance(statement.test.op, ast.Or)):
            return False
        limited = {name for one in operands if (name := _limited_length(one)) is not None}
        if not limited or limited.isdisjoint(_called_on(statement.body, _FILLING)):
            return False
        return limited.isdisjoint(self._bound_in_loops | _called_on(self._body, _EMPTYING))

    def makes_once(self, statement: ast.If, holds: bool) -> bool:
        """Whether a block of a loop makes a local value that is None before: `if average is None: average = ...`.

        Or one that is false, if the other block changes it: `if average: average += ... else: average = ...`.

        Not if the loops of the function bind the name elsewhere too, except in the other block and by `+=`.
        """
        name = _missing(statement.test, holds)
        if name is None:
            return False
        block, other = (statement.body, statement.orelse) if holds else (statement.orelse, statement.body)
        makes = sum(_binds(node, name) for node in walk_block(block))
        if not makes:
            return False
        changes = sum(_binds(node, name) for node in walk_block(other))
        if not changes and not isinstance(statement.test, ast.Compare):
            return False  # `if not done: done = tokens.eq(end).all().item()`
        return makes + changes == self._times_bound_in_loops[name]

    def counts_with(self, test: ast.expr, names: AbstractSet[str]) -> bool:
        """Whether a condition counts with some of the names, and with no other counter."""
        found = {part.id for part in _parts(test) if isinstance(part, ast.Name)}
        return not found.isdisjoint(names) and (found - names).isdisjoint(self.counters)


def _is_not_finite(test: ast.expr, outcome: bool) -> bool:
    """Whether a condition has an outcome only where values are infinite or NaN: `if torch.isnan(loss).any():`."""
    while True:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, (ast.Not, ast.Invert)):
            test, outcome = test.operand, not outcome
        elif isinstance(test, ast.Call):
            name = test.func.attr if isinstance(test.func, ast.Attribute) else getattr(test.func, "id", "")
            if name in ("isnan", "isinf", "isfinite"):
                return outcome is (name != "isfinite")
            if isinstance(test.func, ast.Attribute) and name in ("any", "all", "item"):
                test = test.args[0] if test.args else test.func.value
            elif test.args and name == "bool":
                test = test.args[0]
            else:
                return False
        else:
            return False


def _missing(test: ast.expr, holds: bool) -> str | None:
    """The name that is None or false where a condition has an outcome: `average is None`, `not average`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _missing(test.operand, not holds)
    if isinstance(test, ast.Name):
        return None if holds else test.id
    if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.Name):
        return None
    is_none = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
    return test.left.id if is_none and isinstance(test.ops[0], ast.Is if holds else ast.IsNot) else None


def _binds(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)


def _limited_length(test: ast.expr) -> str | None:
    """The name of what is shorter than a limit where a condition holds: `images` for `len(images) < 16`."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    side = test.left if isinstance(test.ops[0], (ast.Lt, ast.LtE)) else test.comparators[0]
    if not isinstance(test.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) or not isinstance(side, ast.Call):
        return None
    is_length = isinstance(side.func, ast.Name) and side.func.id == "len" and len(side.args) == 1
    return side.args[0].id if is_length and isinstance(side.args[0], ast.Name) else None


def _called_on(body: list[ast.stmt], methods: AbstractSet[str]) -> frozenset[str]:
    """The names on which some of the methods are called in a block."""
    return frozenset(
        node.func.value.id
        for node in walk_block(body)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in methods
        and isinstance(node.func.value, ast.Name)
    )


def evaluates(test: ast.expr) -> bool:
    """Whether a periodic condition is about evaluating, saving or showing, by its names: `step % eval_freq == 0`."""
    for part in _parts(test):
        name = part.id if isinstance(part, ast.Name) else part.attr if isinstance(part, ast.Attribute) else ""
        if name and _EVALUATION.search(name):
            return True
    return False


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


def counting_names(body: list[ast.stmt]) -> tuple[frozenset[str], frozenset[str]]:
    """The names that a function counts with, and those of its periodic conditions: `log_now = step % 100 == 0`.

    It counts with the targets of loops over `range` and `enumerate`, and with what is incremented.
    """
    counters: set[str] = set()
    periodic: set[str] = set()
    stack = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.For, ast.AsyncFor)) and isinstance(node.iter, ast.Call):
            called = dotted_path(node.iter.func) or ""
            target = node.target
            if called == "enumerate" and isinstance(target, ast.Tuple):
                target = target.elts[0]
            if called.endswith("range") or called == "enumerate":
                counters.add(dotted_path(target) or "")
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.value, ast.Constant):
            counters.add(dotted_path(node.target) or "")
        elif isinstance(node, ast.Assign) and _is_remainder(node.value, True):
            periodic.update(target.id for target in node.targets if isinstance(target, ast.Name))
        for block in blocks(node):
            stack += block
    return frozenset(counters - {""}), frozenset(periodic)


def _is_period(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return _is_periodic(node.id)
    if isinstance(node, ast.Attribute):
        return _is_periodic(node.attr)
    return isinstance(node, ast.BinOp) and _counts(node)


def _parts(test: ast.expr) -> Iterator[ast.AST]:
    """All expressions in a condition, itself included."""
    stack: list[ast.AST] = [test]
    while stack:
        node = stack.pop()
        yield node
        stack += children(node)


def _is_remainder(test: ast.expr, outcome: bool) -> bool:
    """Whether a condition that compares a remainder has an outcome every so many steps: `step % 100 == 0` holds so.

    `step % 100` itself, and `step % 100 != 0`, hold in the other steps.
    """
    if isinstance(test, ast.BinOp):
        return _counts(test) and not outcome
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    if not isinstance(test.left, ast.BinOp) or not _counts(test.left):
        return False
    return outcome is not isinstance(test.ops[0], (ast.NotEq, ast.Gt, ast.IsNot, ast.NotIn))


def _counts(node: ast.BinOp) -> bool:
    """Whether `x % n` is a remainder that is 0 in few steps: not for 1 or 2, and not `"%s" % x`."""
    if not isinstance(node.op, ast.Mod):
        return False
    if isinstance(node.right, ast.Constant) and node.right.value in (1, 2):
        return False
    return not (isinstance(node.left, ast.Constant) and isinstance(node.left.value, (str, bytes)))


def _holds_at_first(node: ast.Compare, counters: AbstractSet[str], outcome: bool) -> bool:
    """Whether a comparison of a counter has an outcome in one step, or in the first few."""
    if len(node.ops) != 1:
        return False
    left, operator, right = node.left, node.ops[0], node.comparators[0]
    if isinstance(operator, (ast.In, ast.NotIn)):
        is_few = isinstance(right, (ast.Tuple, ast.List, ast.Set, ast.Attribute))  # `self.milestones`
        return isinstance(operator, ast.In) is outcome and _is_counter(left, counters) and is_few
    if isinstance(operator, (ast.Eq, ast.NotEq)):
        return isinstance(operator, ast.Eq) is outcome and _is_counter(left, counters) and _is_few(right)
    if isinstance(operator, (ast.Gt, ast.GtE)):
        if not outcome:  # `i >= 3`
            return _is_counter(left, counters) and _is_few(right)
        left, right = right, left
    elif not isinstance(operator, (ast.Lt, ast.LtE)) or not outcome:
        return False
    return _is_counter(left, counters) and _is_few(right)


def _is_counter(node: ast.expr, counters: AbstractSet[str]) -> bool:
    if isinstance(node, ast.Call) and not node.args:  # `self.get_num_updates()`
        node = node.func
    path = dotted_path(node)
    return path is not None and (path in counters or is_counter_name(path.rpartition(".")[2]))


def _is_few(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value <= _FIRST_FEW


@lru_cache(maxsize=4096)
def is_counter_name(label: str) -> bool:
    """Whether a name is that of something that counts steps."""
    return _COUNTER.search(label.lower()) is not None


@lru_cache(maxsize=4096)
def _is_periodic(label: str) -> bool:
    # `inside_interval_mask` is no condition on steps.
    return not label.lower().endswith("mask") and _PERIODIC.search(label) is not None
