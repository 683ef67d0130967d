"""Sizes that are known on the host, for `num_classes=` and `output_size=`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain.values import Kind
from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from gpusync_lint.model.operations import Template
    from gpusync_lint.project.symbols import FunctionDef
    from gpusync_lint.rules.base.context import RuleContext

_FROM_LIST = frozenset({"torch.tensor", "torch.as_tensor", "torch.LongTensor", "torch.IntTensor"})
_CHANGES = frozenset({"append", "extend", "insert", "pop", "remove", "clear"})


def classes_of(labels: ast.expr, fn: FunctionDef, context: RuleContext) -> Template | None:
    """The number of values of labels: `logits.size(-1)` for `logits.argmax(-1)`, `n` for `torch.randint(n, ...)`."""
    made = _made(labels, fn)
    if not isinstance(made, ast.Call) or not isinstance(made.func, ast.Attribute):
        return None
    dotted = _dotted(made.func, context)
    if dotted == "torch.randint":
        return _high(made, context)
    if made.func.attr != "argmax" or dotted not in ("", "torch.argmax"):
        return None
    logits, rest = (made.args[0], made.args[1:]) if dotted and made.args else (made.func.value, made.args)
    dims = [*rest[:1], *(keyword.value for keyword in made.keywords if keyword.arg == "dim")]
    path = dotted_path(logits)
    if path is None or len(dims) != 1:
        return None
    if not isinstance(dims[0], (ast.Constant, ast.UnaryOp)):
        return None
    same = made is labels or len(_stores(path.partition(".")[0], fn)) <= 1
    return context.template("{}.size({})", logits, dims[0]) if same else None


def total_of(repeats: ast.expr, fn: FunctionDef, context: RuleContext) -> Template | None:
    """The sum of repeats that were created from a list on the host: `sum(lengths)` for `torch.tensor(lengths, ...)`."""
    made = _made(repeats, fn)
    if not isinstance(made, ast.Call) or _dotted(made.func, context) not in _FROM_LIST or len(made.args) != 1:
        return None
    source = made.args[0]
    value = context.value(source)
    if value.kind is not Kind.LIST or value.elem is None or value.elem.kind is not Kind.HOST:
        return None
    if not isinstance(source, ast.Name) or len(_stores(source.id, fn)) > 1:
        return None
    return context.template("sum({})", source) if not _changed(source.id, made.lineno, fn) else None


def _made(node: ast.expr, fn: FunctionDef) -> ast.expr | None:
    """The expression itself or, for a name, the value of the only assignment to it."""
    if not isinstance(node, ast.Name):
        return node
    stores = _stores(node.id, fn)
    found = [
        other.value
        for other in walk_block(fn.node.body)
        if isinstance(other, ast.Assign) and len(other.targets) == 1 and other.targets[0] in stores
    ]
    return found[0] if len(stores) == len(found) == 1 else None


def _stores(label: str, fn: FunctionDef) -> list[ast.Name]:
    return [
        node
        for node in walk_block(fn.node.body)
        if isinstance(node, ast.Name) and node.id == label and not isinstance(node.ctx, ast.Load)
    ]


def _changed(label: str, line: int, fn: FunctionDef) -> bool:
    """Whether a list may be changed after a line."""
    for node in walk_block(fn.node.body):
        if getattr(node, "lineno", 0) < line:
            continue
        if isinstance(node, ast.Attribute) and node.attr in _CHANGES and dotted_path(node.value) == label:
            return True
        stored = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        if stored and isinstance(node, ast.Subscript) and dotted_path(node.value) == label:
            return True
    return False


def _high(call: ast.Call, context: RuleContext) -> Template | None:
    """The upper bound of `torch.randint(high, size)` or `torch.randint(low, high, size)`."""
    sizes = [isinstance(arg, (ast.Tuple, ast.List)) for arg in call.args]
    if any(keyword.arg in ("low", "high") for keyword in call.keywords) or not call.args:
        return None
    if sizes in ([False], [False, True]):
        high = call.args[0]
    elif sizes == [False, False, True]:
        high = call.args[1]
    else:
        return None
    return context.template("{}", high) if isinstance(high, (ast.Constant, ast.Name)) else None


def _dotted(node: ast.expr, context: RuleContext) -> str:
    return context.value(node).dotted_name
