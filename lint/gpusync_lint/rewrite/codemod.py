"""Calls over several lines written anew with libcst, which keeps their layout and their brackets.

All raise ValueError for text that libcst cannot read. Loading libcst takes a tenth of a second: `rewriting` does
without for calls on one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

if TYPE_CHECKING:
    from collections.abc import Iterable

_EMPTY = cst.Module([])


def with_keywords(text: str, given: Iterable[tuple[str, str]]) -> str:
    """The call with more keyword arguments, each on a line of its own where the others have theirs."""
    call = _call(text)
    for label, value in given:
        call = _with_keyword(call, label, _expression(value))
    return _code(call)


def filling(text: str, label: str, shape: str, number: str) -> str:
    """The call with a shape and a number in the place of its first argument, and another last name."""
    call = _call(text)
    first = [cst.Arg(_expression(part)) for part in (shape, number)]
    return _code(_renamed(call, label).with_changes(args=_spaced([*first, *call.args[1:]])))


def calling(text: str, label: str) -> str:
    """The call of a function, or a method, of another last name."""
    return _code(_renamed(_call(text), label))


def _expression(text: str) -> cst.BaseExpression:
    """Read in brackets, for it may go over several lines."""
    try:
        node = cst.parse_expression(f"({text})")
    except Exception as error:  # ParserSyntaxError, and internal errors
        raise ValueError("libcst cannot read it") from error
    return node.with_changes(lpar=node.lpar[1:], rpar=node.rpar[:-1])


def _call(text: str) -> cst.Call:
    call = _expression(text)
    assert isinstance(call, cst.Call)
    return call


def _renamed(call: cst.Call, label: str) -> cst.Call:
    assert isinstance(call.func, cst.Attribute)
    return call.with_changes(func=call.func.with_changes(attr=cst.Name(label)))


def _with_keyword(node: cst.Call, label: str, value: cst.BaseExpression) -> cst.Call:
    """The call with one more keyword argument, on a line of its own where the others have theirs."""
    bare = cst.SimpleWhitespace("")
    equal = cst.AssignEqual(whitespace_before=bare, whitespace_after=bare)
    added = cst.Arg(value, keyword=cst.Name(label), equal=equal)
    if not node.args:
        return node.with_changes(args=[added])
    last = node.args[-1]
    spread = isinstance(last.comma, cst.Comma) and isinstance(last.comma.whitespace_after, cst.ParenthesizedWhitespace)
    between: cst.Comma | cst.MaybeSentinel = cst.MaybeSentinel.DEFAULT
    if isinstance(node.whitespace_before_args, cst.ParenthesizedWhitespace):
        before = node.args[-2].comma if len(node.args) > 1 else cst.Comma(whitespace_after=node.whitespace_before_args)
        between = before if isinstance(before, cst.Comma) else between
    added = added.with_changes(
        comma=last.comma if spread else cst.MaybeSentinel.DEFAULT, whitespace_after_arg=last.whitespace_after_arg
    )
    last = last.with_changes(comma=between, whitespace_after_arg=bare)
    return node.with_changes(args=[*node.args[:-1], last, added])


def _spaced(args: list[cst.Arg]) -> list[cst.Arg]:
    """Arguments with a comma and a blank between each two."""
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [
        *(arg if isinstance(arg.comma, cst.Comma) else arg.with_changes(comma=comma) for arg in args[:-1]),
        args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT),
    ]


def _code(node: cst.CSTNode) -> str:
    return _EMPTY.code_for_node(node)
