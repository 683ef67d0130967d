"""Indices and paths, in loops whose counters are known."""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING

from gpusync_lint.rules.ordering.memory import EVERYTHING, Part
from gpusync_lint.syntax.operators import COMPARISONS

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

_PLAIN = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
"""The parts of an expression that has the same value each time, until a name in it is bound again."""
_OPERATIONS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class Indices:
    """What is known about the numbers of a function: the counters of loops, and what is computed from them."""

    def __init__(self, numbers: Mapping[str, int], bound: Counter[str]) -> None:
        self._numbers = numbers
        self._bound = bound
        """By name, how often it was bound so far."""

    def number(self, node: ast.expr | None) -> int | None:
        """The value of an integer expression; None if it is unknown."""
        if isinstance(node, ast.Constant):
            return node.value if type(node.value) is int else None
        if isinstance(node, ast.Name):
            return self._numbers.get(node.id)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            operand = self.number(node.operand)
            return None if operand is None else -operand
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            left, right = self.number(node.left), self.number(node.right)
            if left is None or right is None or (right == 0 and isinstance(node.op, (ast.FloorDiv, ast.Mod))):
                return None
            return _OPERATIONS[type(node.op)](left, right)
        return None

    def outcome(self, test: ast.expr) -> bool | None:
        """The outcome of a test of numbers; None if it is unknown."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            outcome = self.outcome(test.operand)
            return None if outcome is None else not outcome
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in COMPARISONS:
            left, right = self.number(test.left), self.number(test.comparators[0])
            return None if left is None or right is None else COMPARISONS[type(test.ops[0])](left, right)
        number = None if isinstance(test, ast.Constant) else self.number(test)
        return None if number is None else bool(number)

    def path(self, node: ast.AST | None) -> str | None:
        """The path of a name, an attribute or an element: `self.buffers[0]`; None for any other expression."""
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute):
            path = self.path(node.value)
            return None if path is None else f"{path}.{node.attr}"
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, (ast.Slice, ast.Tuple)):
            path = self.path(node.value)
            index = self._element(node.slice)
            return None if path is None or index is None else f"{path}[{index}]"
        return None

    def _element(self, index: ast.expr) -> str | None:
        """What stands for an index in a path."""
        number = self.number(index)
        if number is not None:
            return str(number)
        return repr(index.value) if isinstance(index, ast.Constant) else self._unknown(index)

    def _unknown(self, node: ast.expr) -> str | None:
        """What stands for an unknown number: its source, and how often its names were bound; None if it may change."""
        names = []
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                names.append(part.id)
            elif not isinstance(part, (*_PLAIN, ast.expr_context)):
                return None
        bound = ",".join(str(self._bound[name]) for name in names)
        return f"{ast.unparse(node)}@{bound}"

    def part(self, index: ast.expr, shape: str = "") -> tuple[Part, bool] | None:
        """The part that an index selects, and whether it is one element; None if the index may be anything.

        Args:
            index: the expression in the brackets.
            shape: what tells the indices of another shape of the same memory apart; empty for its own shape.
        """
        dimensions = index.elts if isinstance(index, ast.Tuple) else [index]
        part: list[tuple[int, int] | str] = []
        for one in dimensions:
            selected = self._range(one)
            if selected is None:
                return None
            part.append(f"{shape}{selected}" if shape and selected != EVERYTHING else selected)
        return tuple(part), not any(isinstance(one, ast.Slice) for one in dimensions)

    def _range(self, index: ast.expr) -> tuple[int, int] | str | None:
        if not isinstance(index, ast.Slice):
            number = self.number(index)
            if number is not None and number >= 0:
                return number, number + 1
            return self._unknown(index)
        lower = 0 if index.lower is None else self.number(index.lower)
        upper = EVERYTHING[1] if index.upper is None else self.number(index.upper)
        if lower is not None and upper is not None and lower >= 0 and upper >= 0 and index.step is None:
            return lower, upper
        bounds = [self._unknown(one) if one is not None else "" for one in (index.lower, index.upper, index.step)]
        return None if None in bounds else ":".join(map(str, bounds))
