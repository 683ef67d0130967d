"""Operator precedence: whether an expression needs parentheses in a position.

https://docs.python.org/3/reference/expressions.html#operator-precedence
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

if TYPE_CHECKING:
    from collections.abc import Mapping

_ALWAYS = -1
"""The level of expressions that always get parentheses, since they need them in most positions."""
_ANY, _TEST, _TERNARY, _OR, _AND, _NOT, _COMPARISON, _BIT_OR, _UNARY, _POWER, _AWAIT, _ATOM = (
    0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15,
)  # fmt: skip
_BINARY = {
    cst.BitOr: 7, cst.BitXor: 8, cst.BitAnd: 9, cst.LeftShift: 10, cst.RightShift: 10, cst.Add: 11, cst.Subtract: 11,
}  # fmt: skip
"""The levels of binary operators. Others, except the power, have that of `*`."""
_PRODUCT = 11.5
_LEVELS: Mapping[type, float] = {
    cst.NamedExpr: _ALWAYS,
    cst.GeneratorExp: _ALWAYS,
    cst.Lambda: _ALWAYS,
    cst.Yield: _ANY,
    cst.Tuple: _ANY,
    cst.StarredElement: _ANY,
    cst.IfExp: _TERNARY,
    cst.Comparison: _COMPARISON,
    cst.Await: _AWAIT,
}


def level(node: cst.BaseExpression) -> float:
    """The precedence of an expression, without parentheses around it."""
    if isinstance(node, cst.BooleanOperation):
        return _OR if isinstance(node.operator, cst.Or) else _AND
    if isinstance(node, cst.UnaryOperation):
        return _NOT if isinstance(node.operator, cst.Not) else _UNARY
    if isinstance(node, cst.BinaryOperation):
        return _POWER if isinstance(node.operator, cst.Power) else _BINARY.get(type(node.operator), _PRODUCT)
    return _LEVELS.get(type(node), _ATOM)


def needs_parentheses(node: cst.BaseExpression, parent: cst.CSTNode | None, place: cst.CSTNode) -> bool:
    """Whether an expression needs parentheses to replace a child of `parent`."""
    if node.lpar:
        return False
    if isinstance(node, cst.Integer) and isinstance(parent, cst.Attribute):
        return True
    return level(node) < _required(parent, place)


def _required(parent: cst.CSTNode | None, place: cst.CSTNode) -> float:
    """The lowest precedence that needs no parentheses in a position."""
    if isinstance(parent, cst.BinaryOperation):
        own = level(parent)
        if own == _POWER:
            return _AWAIT if parent.left is place else _UNARY
        return own if parent.left is place else own + 0.25
    if isinstance(parent, cst.BooleanOperation):
        return level(parent) + 1
    if isinstance(parent, cst.UnaryOperation):
        return level(parent)
    if isinstance(parent, cst.Arg):
        return _BIT_OR if parent.star == "*" else _TEST
    if isinstance(parent, cst.IfExp):
        return _TEST if parent.orelse is place else _OR
    if isinstance(parent, cst.CompFor):
        return _ANY if parent.target is place else _OR
    return _REQUIRED.get(type(parent), _TEST)


_REQUIRED: dict[type, float] = {
    **dict.fromkeys((cst.Comparison, cst.ComparisonTarget, cst.StarredElement, cst.StarredDictElement), _BIT_OR),
    **dict.fromkeys((cst.Attribute, cst.Call, cst.Subscript, cst.Await), _ATOM),
    **dict.fromkeys((cst.Expr, cst.Assign, cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.Return, cst.For), _ANY),
    cst.CompIf: _OR,
}
"""By type of the parent, the lowest precedence that needs no parentheses, if it is the same for all children."""
