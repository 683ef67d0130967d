"""Which of several GPUs an expression names, or lies on, where the source shows it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain.values import Device, Kind
from gpusync_lint.rules.base.context import keyword, positional
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusync_lint.domain.values import Value
    from gpusync_lint.project.symbols import FunctionDef
    from gpusync_lint.rules.base.context import RuleContext

Gpu = tuple[str, int]
"""The number of a GPU, or the index in a list of devices that has the name; two can be compared if the names agree."""

_LISTS = ("devices", "gpus")
"""Ends of the names of lists of devices."""
_MAX_DEPTH = 6
"""Names and expressions that are followed into each other, at most."""


def are_different(one: Gpu | None, other: Gpu | None) -> bool:
    """Whether the source shows that two GPUs are not the same."""
    return one is not None and other is not None and one[0] == other[0] and one[1] != other[1]


def gpus_of_statements(window: Sequence[ast.stmt], context: RuleContext) -> frozenset[Gpu]:
    """The GPUs on which everything lies that statements compute with; empty if one of them is unknown."""
    found = {
        _gpu(node, context, 0)
        for node in walk_block(list(window))
        if isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Load)
        and _is_on_device(node, context)
    }
    return frozenset() if None in found else frozenset(gpu for gpu in found if gpu is not None)


def synchronized_gpu(node: ast.Call, context: RuleContext) -> Gpu | None:
    """The GPU that a call of `torch.cuda.synchronize` waits for; None if the source does not show it."""
    given = keyword(node, "device") or next(iter(positional(node)), None)
    if given is None or (isinstance(given, ast.Constant) and given.value is None):
        return _current(context)
    return _gpu(given, context, 0)


def _current(context: RuleContext) -> Gpu | None:
    """The current GPU: the first one, unless the file chooses one."""
    text = context.file.text
    return None if "set_device" in text or "cuda.device(" in text or "CUDA_VISIBLE" in text else ("", 0)


def _is_on_device(node: ast.expr, context: RuleContext) -> bool:
    value = context.value(node)
    return value.on_device or (value.kind is Kind.MODULE and value.device > Device.CPU)


def _gpu(node: ast.expr, context: RuleContext, depth: int) -> Gpu | None:
    if depth > _MAX_DEPTH:
        return None
    if isinstance(node, ast.Constant):
        return _named(node.value, context)
    if isinstance(node, ast.Name):
        found = {_gpu(value, context, depth + 1) for value in _assigned(node.id, context)}
        return found.pop() if len(found) == 1 else None
    if isinstance(node, ast.Subscript):
        return _element(node, context, depth)
    if isinstance(node, ast.Call):
        return _of_call(node, context, depth)
    inside = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
    return _shared(inside, context, depth)


def _named(value: object, context: RuleContext) -> Gpu | None:
    """A device by its number, or by its name: `cuda:1`, `cuda`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "", value
    if value == "cuda":
        return _current(context)
    number = value.removeprefix("cuda:") if isinstance(value, str) else ""
    return ("", int(number)) if number.isdigit() else None


def _of_call(node: ast.Call, context: RuleContext, depth: int) -> Gpu | None:
    """The GPU of a device that is created, of a tensor that is moved or created, or of what is computed from others."""
    device = keyword(node, "device")
    if device is not None:
        return _gpu(device, context, depth + 1)
    func = node.func
    args = positional(node)
    if (
        isinstance(func, ast.Attribute)
        and func.attr in ("to", "cuda")
        and context.value(func.value).kind is not Kind.NAME
    ):
        return _gpu(args[0], context, depth + 1) if args else _current(context)
    if context.value(node).kind is Kind.DEVICE and args:
        last = args[-1]
        return _gpu(last, context, depth + 1)
    receiver = [func.value] if isinstance(func, ast.Attribute) else []
    return _shared([*receiver, *args], context, depth)


def _element(node: ast.Subscript, context: RuleContext, depth: int) -> Gpu | None:
    """An element of a list of devices; of a tensor, the tensor's."""
    index = node.slice
    base = node.value
    if isinstance(base, ast.Name) and isinstance(index, ast.Constant) and isinstance(index.value, int):
        listed = next(iter(_assigned(base.id, context)), None)
        if isinstance(listed, (ast.List, ast.Tuple)) and -len(listed.elts) <= index.value < len(listed.elts):
            return _gpu(listed.elts[index.value], context, depth + 1)
        if base.id.lower().endswith(_LISTS):
            return base.id, index.value
    return _gpu(base, context, depth + 1)


def _shared(nodes: Sequence[ast.expr], context: RuleContext, depth: int) -> Gpu | None:
    """The GPU on which all those expressions lie that lie on one."""
    found = {_gpu(node, context, depth + 1) for node in nodes if _is_on_device(node, context)}
    return found.pop() if len(found) == 1 else None


def _assigned(name: str, context: RuleContext) -> list[ast.expr]:
    """The values that a name is assigned, in the function or around it, without the device of a machine without GPU."""
    fn: FunctionDef | None = context.function
    while fn is not None:
        count, values = fn.assignments.get(name, (0, []))
        if count:
            on_gpu = [value for value in values if not _is_host(context.value(value))]
            return on_gpu if count == len(values) else []
        args = getattr(fn.node, "args", None)
        if args is not None and any(arg.arg == name for arg in ast.walk(args) if isinstance(arg, ast.arg)):
            return []
        fn = fn.outer if not fn.is_module else None
    return []


def _is_host(value: Value) -> bool:
    return value.kind is Kind.DEVICE and value.device is Device.CPU
