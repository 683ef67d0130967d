"""Fixes of one call: add an argument, call another function, or create a tensor on the device."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusync_lint.domain import accelerators
from gpusync_lint.domain.values import Kind
from gpusync_lint.model.operations import AddFirstArgument, AddKeyword, RenameCalled, ReplaceExpression, Template
from gpusync_lint.rewrite.layout import MAX_DEPTH
from gpusync_lint.rules.base.context import keyword, positional
from gpusync_lint.rules.fixes.known_sizes import classes_of, total_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.model.findings import Fix
    from gpusync_lint.model.operations import Operation
    from gpusync_lint.rules.base.context import RuleContext

_EX_FIELDS = {"cholesky": "L", "inv": "inverse", "solve": "result"}
"""The field of the result of an `_ex` function that the function without `_ex` returns."""
_EX_PARTS = frozenset({"lu_factor", "ldl_factor"})
"""Functions whose `_ex` variant returns the same values, followed by `info`."""
_NOT_MOVED = frozenset({"device", "out", "pin_memory", "requires_grad"})
"""Arguments that prevent the fix. `requires_grad` is one since a tensor that was moved is not a leaf."""
_EXACT = frozenset({"zeros", "ones", "empty", "eye"})
"""Factory functions whose numbers are exact in every dtype."""
_TENSOR_KEYWORDS = frozenset({"device", "dtype", "requires_grad"})
_FLOATING = frozenset({"float", "float16", "float32", "float64", "bfloat16", "half", "double"})
_UNCHECKED = "A matrix that cannot be factorized no longer raises an error. Check `info` of the `_ex` function instead."
_RACE = "If a pinned buffer is overwritten before the copy has finished, wrong data is copied."
_CLASSES = "The result has a column for every class, even if the last classes do not occur in the data."
_TOTAL = "A total that differs from the sum of the repeats is no longer detected."
_ROUNDED = "Fractions are computed on the device, where the last bit may differ."


def add_non_blocking(node: ast.Call, context: RuleContext) -> Fix | None:
    """`x.to(device)` to `x.to(device, non_blocking=True)`, unless the file changes `x` in place.

    The copy reads `x` later: a program that refills it in the next step would race with it.
    """
    if isinstance(node.func, ast.Attribute) and is_changed_in_place(node.func.value, context):
        return None
    added = AddKeyword(context.span(node), "non_blocking", Template("True"))
    return context.fix("Copy without blocking the host", added, hazard=_RACE)


def is_changed_in_place(tensor: ast.expr, context: RuleContext) -> bool:
    """Whether the file may write to the memory of `tensor`, a name or an attribute: by a method in place, through an
    element or a part, as an `out=`, or through an array.
    """
    while isinstance(tensor, ast.Subscript):
        tensor = tensor.value
    if not isinstance(tensor, (ast.Name, ast.Attribute)):
        return False  # made by the expression itself
    return ast.dump(tensor) in context.once(_changed_in_place, context.file.tree)


def _changed_in_place(tree: ast.Module) -> frozenset[str]:
    """The expressions to whose memory a file may write, as `ast.dump` writes them."""
    changed: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            in_place = (name.endswith("_") and not name.endswith("__")) or name in ("numpy", "data_ptr", "copyto")
            if in_place and isinstance(node.func, ast.Attribute):
                changed.append(node.func.value)
            if name == "copyto":
                changed += node.args[:1]
            changed += [keyword.value for keyword in node.keywords if keyword.arg == "out"]
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            changed += [target.value for target in targets if isinstance(target, ast.Subscript)]
            if isinstance(node, ast.AugAssign):
                changed.append(node.target)
    return frozenset(part for expression in changed for part in _parts_of(expression))


def _parts_of(expression: ast.expr) -> Iterator[str]:
    """The names and attributes that an expression is a part of, and itself."""
    for _ in range(MAX_DEPTH):
        if isinstance(expression, (ast.Name, ast.Attribute)):
            yield ast.dump(expression).replace("ctx=Store()", "ctx=Load()")
        if isinstance(expression, ast.Call):
            expression = expression.func
        elif isinstance(expression, (ast.Attribute, ast.Subscript)):
            expression = expression.value
        else:
            return


def add_num_classes(node: ast.Call, context: RuleContext) -> Fix | None:
    """`F.one_hot(logits.argmax(-1))` with `num_classes=logits.size(-1)`."""
    args = positional(node)
    classes = (
        classes_of(args[0], context.function, context) if len(args) == len(node.args + node.keywords) == 1 else None
    )
    if classes is None:
        return None
    added = AddKeyword(context.span(node), "num_classes", classes)
    return context.fix("Specify the number of classes", added, hazard=_CLASSES)


def add_output_size(node: ast.Call, repeats: ast.expr, context: RuleContext) -> Fix | None:
    """`x.repeat_interleave(counts, 0)` with `output_size=sum(lengths)`, if `counts` was created from `lengths`."""
    total = total_of(repeats, context.function, context)
    if total is None:
        return None
    added = AddKeyword(context.span(node), "output_size", total)
    return context.fix("Specify the length of the result", added, hazard=_TOTAL)


def full_instead_of_tensor(node: ast.Call, context: RuleContext) -> Fix | None:
    """`torch.tensor(1.0, device=d)` to `torch.full((), 1.0, device=d)`: the same value, dtype and shape.

    Also for a list of equal numbers: `[0.0, 0.0]` or `[0.0] * n`.
    """
    if len(node.args) != 1 or not isinstance(node.func, ast.Attribute) or not node.keywords:
        return None
    if isinstance(node.args[0], ast.Starred) or any(given.arg not in _TENSOR_KEYWORDS for given in node.keywords):
        return None
    filled = _filled(node.args[0], context)
    dtype = keyword(node, "dtype")
    if filled is None or (dtype is not None and not filled.whole and not _is_floating(dtype)):
        return None
    return _fill(node, "full", filled, context)


def full_instead_of_new_tensor(node: ast.Call, context: RuleContext) -> Fix | None:
    """`x.new_tensor(1.0)` to `x.new_full((), 1.0)`, for integers, which are the same in every dtype."""
    if len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
        return None
    filled = _filled(node.args[0], context)
    return _fill(node, "new_full", filled, context) if filled is not None and filled.whole else None


@dataclass(frozen=True, slots=True)
class _Filled:
    """Data whose elements are all the same number."""

    number: ast.expr
    shape: Template
    length: int | None
    """The number of elements of a list display; None for other data."""

    @property
    def whole(self) -> bool:
        """Whether the number has an integer value. `True` and `False` do not count."""
        value = _number(self.number)
        return type(value) is int or (type(value) is float and value.is_integer())


def _fill(node: ast.Call, label: str, filled: _Filled, context: RuleContext) -> Fix | None:
    call, data = context.span(node), node.args[0]
    operations: list[Operation] = [RenameCalled(call, label), AddFirstArgument(call, filled.shape)]
    if filled.number is not data:
        operations.append(ReplaceExpression(context.span(data), context.template("{}", filled.number)))
    return context.fix("Fill the tensor on the device", *operations, safe=True)


def _filled(data: ast.expr, context: RuleContext) -> _Filled | None:
    """The number and the shape of a literal, of `[0.0, 0.0]`, or of `[0.0] * n`; None for other data."""
    if isinstance(data, ast.BinOp) and isinstance(data.op, ast.Mult):
        one = _filled(data.left, context)
        count = context.value(data.right)
        whole = count.kind is Kind.HOST and (_is_integer(data.right) or isinstance(count.const, int))
        if one is None or one.length != 1 or not whole:
            return None
        return _Filled(one.number, context.template("({},)", data.right), None)
    if isinstance(data, (ast.List, ast.Tuple)):
        if len({ast.dump(element) for element in data.elts}) != 1 or _number(data.elts[0]) is None:
            return None
        return _Filled(data.elts[0], Template(f"({len(data.elts)},)"), len(data.elts))
    return None if _number(data) is None else _Filled(data, Template("()"), None)


def _number(node: ast.expr) -> int | float | None:
    """The value of a numeric literal; None for other expressions."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        positive = _number(node.operand)
        return None if positive is None else -positive
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, (int, float)) else None


def _is_integer(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _is_floating(dtype: ast.expr) -> bool:
    return isinstance(dtype, ast.Attribute) and dtype.attr in _FLOATING


def factory_on_device(node: ast.Call, factory: ast.expr, label: str, context: RuleContext) -> Fix | None:
    """`torch.zeros(n).to(device)` to `torch.zeros(n, device=device)`, `.cuda()` to `device="cuda"`."""
    if not isinstance(factory, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if len(node.args) + len(node.keywords) > 1:
        return None
    moved = node.func.attr
    if moved == "type_as" or (moved == "to" and context.value(next(iter(positional(node)), None)).kind is Kind.TENSOR):
        return _factory_like(node, factory, label, context)
    device = _device_of(node, moved, context) if moved in ("to", "cuda", *accelerators.moves()) else None
    if device is None or _has_stars(factory) or any(given.arg in _NOT_MOVED for given in factory.keywords):
        return None
    exact = label != "arange" or all(_is_whole(given, context) for given in factory.args)
    added = AddKeyword(context.span(factory), "device", device)
    return _make_there(node, factory, [added], context, hazard=None if exact else _ROUNDED)


def _factory_like(node: ast.Call, factory: ast.Call, label: str, context: RuleContext) -> Fix | None:
    """`torch.eye(n).type_as(x)` to `torch.eye(n, dtype=x.dtype, device=x.device)`."""
    other = next(iter(positional(node)), None)
    named = {given.arg for given in factory.keywords}
    if label not in _EXACT or named & {*_NOT_MOVED, "dtype"} or _has_stars(factory):
        return None
    if not isinstance(other, (ast.Name, ast.Attribute)) or any(isinstance(one, ast.Call) for one in ast.walk(other)):
        return None
    span = context.span(factory)
    added = [AddKeyword(span, name, context.template(f"{{}}.{name}", other)) for name in ("dtype", "device")]
    return _make_there(node, factory, added, context)


def _make_there(
    node: ast.Call, factory: ast.Call, added: list[AddKeyword], context: RuleContext, hazard: str | None = None
) -> Fix | None:
    """The fix that replaces a move of a new tensor by the factory call with more arguments."""
    moved = ReplaceExpression(context.span(node), context.template("{}", factory))
    return context.fix("Create the tensor on the device", *added, moved, safe=hazard is None, hazard=hazard)


def _has_stars(node: ast.Call) -> bool:
    return len(positional(node)) < len(node.args) or any(given.arg is None for given in node.keywords)


def _device_of(node: ast.Call, moved: str, context: RuleContext) -> Template | None:
    """The device argument of `.to(...)` or `.cuda(...)`; None if the argument may be a dtype."""
    if node.keywords:
        given = node.keywords[0]
        return context.template("{}", given.value) if given.arg == "device" else None
    if not node.args:
        quoted = context.occurrence.string is not None  # `"` may end the f-string around it
        return Template(f'"{moved}"') if moved != "to" and not quoted else None
    arg = node.args[0]
    if isinstance(arg, (ast.Starred, ast.NamedExpr)):
        return None
    if context.value(arg).kind not in (Kind.DEVICE, Kind.HOST):
        return None  # `.to(x)` takes the dtype of `x` as well
    return context.template("{}", arg)


def _is_whole(node: ast.expr, context: RuleContext) -> bool:
    if isinstance(node, ast.Call):
        label = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        return label in ("len", "size", "dim", "numel")
    return _is_integer(node) or type(context.value(node).const) is int


def without_check(node: ast.Call, context: RuleContext) -> Fix | None:
    """`torch.linalg.inv(a)` to `torch.linalg.inv_ex(a).inverse`, whose error flag stays on the device."""
    func = node.func
    if not isinstance(func, ast.Attribute) or not context.qualified_name(func).startswith("torch.linalg."):
        return None
    label = func.attr
    if _has_stars(node) or keyword(node, "out") is not None:
        return None
    if label in _EX_FIELDS:
        taken = f"{{}}.{_EX_FIELDS[label]}"
    elif label in _EX_PARTS and _is_unpacked(node, context):
        taken = "{}[:2]"
    else:
        return None
    renamed = RenameCalled(context.span(node), f"{label}_ex")
    field = ReplaceExpression(context.span(node), context.template(taken, node))
    return context.fix("Keep the error flag on the device", renamed, field, hazard=_UNCHECKED)


def _is_unpacked(node: ast.Call, context: RuleContext) -> bool:
    statement = context.statement
    if not isinstance(statement, ast.Assign) or statement.value is not node:
        return False
    return all(isinstance(target, ast.Tuple) and len(target.elts) == 2 for target in statement.targets)
