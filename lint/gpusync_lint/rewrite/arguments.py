"""Addition of arguments to calls, in the layout of the existing ones."""

from __future__ import annotations

import libcst as cst

_NO_SPACE = cst.SimpleWhitespace("")
_SPACED_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def with_keyword(call: cst.Call, name: str, value: cst.BaseExpression) -> cst.Call:
    """The call with another keyword argument, on a line of its own if the others are."""
    equal = cst.AssignEqual(whitespace_before=_NO_SPACE, whitespace_after=_NO_SPACE)
    added = cst.Arg(value, keyword=cst.Name(name), equal=equal)
    if not call.args:
        return call.with_changes(args=[added])
    last = call.args[-1]
    spread = isinstance(last.comma, cst.Comma) and isinstance(last.comma.whitespace_after, cst.ParenthesizedWhitespace)
    between: cst.Comma | cst.MaybeSentinel = cst.MaybeSentinel.DEFAULT
    if isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace):
        before = call.args[-2].comma if len(call.args) > 1 else cst.Comma(whitespace_after=call.whitespace_before_args)
        between = before if isinstance(before, cst.Comma) else between
    added = added.with_changes(
        comma=last.comma if spread else cst.MaybeSentinel.DEFAULT, whitespace_after_arg=last.whitespace_after_arg
    )
    last = _in_parentheses(last).with_changes(comma=between, whitespace_after_arg=_NO_SPACE)
    return call.with_changes(args=[*call.args[:-1], last, added])


def with_first(call: cst.Call, value: cst.BaseExpression) -> cst.Call:
    """The call with another positional argument, before the others."""
    if not call.args:
        return call.with_changes(args=[cst.Arg(value)])
    comma = _SPACED_COMMA
    if isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace):
        first = call.args[0].comma
        if len(call.args) > 1 and isinstance(first, cst.Comma):
            comma = first
        else:
            comma = cst.Comma(whitespace_after=call.whitespace_before_args)
    return call.with_changes(args=[cst.Arg(value, comma=comma), _in_parentheses(call.args[0]), *call.args[1:]])


def called_name(node: cst.BaseExpression) -> cst.Name:
    """The last name of the callee of a call. Raises TypeError if it has none."""
    if isinstance(node, cst.Call):
        name = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
        if isinstance(name, cst.Name):
            return name
    raise TypeError("there is no call of a named function")


def renamed(call: cst.Call, name: str) -> cst.Call:
    """The call with another last name of the callee. Raises TypeError if it has none."""
    new = called_name(call).with_changes(value=name)
    func = call.func.with_changes(attr=new) if isinstance(call.func, cst.Attribute) else new
    return call.with_changes(func=func)


def _in_parentheses(arg: cst.Arg) -> cst.Arg:
    """The argument, in parentheses if it is a generator expression, which needs them beside other arguments."""
    value = arg.value
    if not isinstance(value, cst.GeneratorExp) or value.lpar:
        return arg
    return arg.with_changes(value=value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()]))
