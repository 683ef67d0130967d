"""GS206 and GS207: device tensors that are formatted as text, or passed to a tracker that converts them to numbers."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain import python_api
from gpusync_lint.domain.values import Kind, Value
from gpusync_lint.rules.base.context import Report, Rule, RuleContext, arguments, method

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.model.levels import Confidence

_DEPTH = 3


class TensorToText(Rule):
    """`print(t)`, `f"{t}"`, `"%s" % t`, `"{}".format(t)`, `str(t)`, `logger.info(..., t)`."""

    nodes = (ast.Call, ast.FormattedValue, ast.BinOp)
    calls = ("print", "str", "repr", "format", "map", *python_api.TRACKERS, *python_api.LOGGERS)
    barriers = ("tensor-to-text", "tensor-to-tracker")
    VALID: ClassVar = (
        "print(x.shape)",
        "print(loss_value)",
        "f'{len(x)}'",
        "'%d' % 3",
        "7 % si",
        "list(map(abs, v))",
        "writer.add_scalar('a', 1.0, 2)",
    )
    INVALID: ClassVar = (
        "print(s)", "f'{s:.3f}'", "'%s' % s", "'{:.3f}'.format(s)", "log.info('loss %s', s)",
        "writer.add_scalar('a', s, 1)", "','.join(map(str, v))",
    )  # fmt: skip

    def check(self, node: ast.AST, context: RuleContext) -> Iterator[Report]:
        """Check a call, a replacement field of an f-string, or a `%`."""
        if isinstance(node, ast.FormattedValue):
            confidence = text_confidence(context, context.value(node.value))
            if confidence is not None:
                yield Report("tensor-to-text", node.value, confidence)
        elif isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Mod) and _is_text(context, node.left):
                confidence = text_confidence(context, context.value(node.right))
                if confidence is not None:
                    yield Report("tensor-to-text", node, confidence)
        elif isinstance(node, ast.Call):
            yield from self._call(node, context)

    def _call(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        barrier = self._barrier(node, context)
        if not barrier:
            return
        found = [text_confidence(context, context.value(arg)) for arg in arguments(node)]
        sure = [confidence for confidence in found if confidence is not None]
        if sure:
            yield Report(barrier, node, min(sure, key=lambda confidence: confidence.rank))

    def _barrier(self, node: ast.Call, context: RuleContext) -> str:
        dotted = context.qualified_name(node.func)
        if dotted in ("builtins.print", "builtins.str", "builtins.repr", "builtins.format"):
            return "tensor-to-text"
        if dotted == "builtins.map":
            converts = len(node.args) == 2 and context.qualified_name(node.args[0]) in ("builtins.str", "builtins.repr")
            return "tensor-to-text" if converts else ""
        if dotted.startswith("logging.") and dotted.rpartition(".")[2] in python_api.LOGGERS:
            return "tensor-to-text"
        if not isinstance(node.func, ast.Attribute):
            return ""
        called = method(node)
        if called == "format" and _is_text(context, node.func.value):
            return "tensor-to-text"
        if called in python_api.TRACKERS:
            # A tracker of the project converts what it is given where it does so.
            is_own = context.value(node.func).kind is Kind.FUNCTION
            return "" if is_own or context.barriers_by_name(node) else "tensor-to-tracker"
        receiver = node.func.value
        label = receiver.id if isinstance(receiver, ast.Name) else getattr(receiver, "attr", "")
        if called in python_api.LOGGERS and called != "log" and "log" in label.lower():
            return "tensor-to-text"
        return ""


def text_confidence(context: RuleContext, value: Value, depth: int = 0) -> Confidence | None:
    """The confidence that formatting a value as text reads a device tensor: the value, or one that it contains."""
    confidence = context.confidence(value)
    if confidence is not None or depth > _DEPTH:
        return confidence
    inside: list[Value] = []
    if value.kind is Kind.TUPLE:
        inside = list(value.items or ())
    elif value.kind is Kind.DICT:
        inside = [item for _, item in value.items or ()]
    if value.kind in (Kind.LIST, Kind.DICT) and value.elem is not None:
        inside.append(value.elem)
    found = [text_confidence(context, item, depth + 1) for item in inside]
    sure = [item for item in found if item is not None]
    return min(sure, key=lambda item: item.rank) if sure else None


def _is_text(context: RuleContext, node: ast.expr) -> bool:
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))):
        return True
    value = context.value(node)
    return isinstance(value.const, str) or (value.kind is Kind.HOST and value.const is None)
