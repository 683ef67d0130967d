"""GS205: device tensors that are converted to Python numbers, or used as an index."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.catalogue import signatures
from gpusync_lint.catalogue.signatures import Argument
from gpusync_lint.domain import python_api
from gpusync_lint.domain.lattice import element
from gpusync_lint.domain.values import Device, Kind, Value, contents
from gpusync_lint.rules.base.context import (
    Report,
    Rule,
    RuleContext,
    arguments,
    indices,
    method,
    positional,
)
from gpusync_lint.rules.fixes.deferred_reads import defer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpusync_lint.catalogue.signatures import Signature
    from gpusync_lint.model.levels import Confidence

_SIZED = frozenset({"expand", "narrow", "new_empty", "new_full", "new_ones", "new_zeros", "repeat", "view"})
"""Methods that take sizes, and that hardly anything but a tensor has."""
_DEPTH = 2
_SEQUENCES = frozenset({Kind.TUPLE, Kind.LIST})
_INDEXED = (Kind.TENSOR, Kind.LIST, Kind.TUPLE, Kind.ARRAY)
_MODULE_LISTS = ("torch.nn.ModuleList", "torch.nn.Sequential")
_CONVERSIONS = frozenset({f"builtins.{name}" for name in ("bool", "complex", "float", "int")})
"""What `map` may be told to convert tensors with."""
_FROM_NUMBERS = frozenset({"torch.tensor", "torch.as_tensor", "torch.asarray", "torch.FloatTensor", "torch.LongTensor"})
_TEXT_METHODS = frozenset(
    {"center", "ljust", "rjust", "zfill", "split", "rsplit", "startswith", "endswith", "find", "index"}
)


class ScalarConversion(Rule):
    """`float(t)`, `int(t)`, `range(t)`, `math.f(t)`, `map(float, t)`, and `torch.tensor` of device scalars."""

    nodes = (ast.Call,)
    calls = (
        *sorted(python_api.CONVERSIONS),
        "builtins.map",
        "math.*",
        *sorted(_FROM_NUMBERS),
        "new_tensor",
        *sorted(_TEXT_METHODS),
    )
    barriers = ("scalar-conversion", "tensor-of-scalars")
    VALID: ClassVar = (
        "float(3)",
        "int(x.size(0))",
        "s.float()",
        "math.sqrt(2)",
        "torch.stack([s, s2])",
        "math.prod([s, s2])",
        "list(map(abs, v))",
        "torch.tensor([1.0])",
        "random.uniform(0, s)",
        "x.split(2)",
    )
    INVALID: ClassVar = (
        "float(s)",
        "int(s)",
        "range(si)",
        "math.isnan(s)",
        "torch.tensor([s, s2])",
        "torch.tensor([s] * 2)",
        "torch.tensor([[s], [s2]])",
        "torch.LongTensor([si])",
        "list(map(float, v))",
        "'a b'.split(' ', si)",
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        dotted = context.qualified_name(node.func)
        if dotted in _FROM_NUMBERS or (not dotted and method(node) == "new_tensor"):
            yield from self._tensor_of_scalars(node, context)
        elif dotted == "builtins.map":
            if len(node.args) == 2 and context.qualified_name(node.args[0]) in _CONVERSIONS:
                confidence = context.truth_confidence(element(context.value(node.args[1])))
                if confidence is not None:
                    yield Report("scalar-conversion", node, confidence)
        elif _is_conversion(dotted) or _is_method_of_text(node, context):
            yield from self._conversion(node, dotted, context)

    def _tensor_of_scalars(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        data = next(iter(positional(node)), None)
        if isinstance(data, ast.BinOp) and isinstance(data.op, ast.Mult):  # `[t] * n`
            data = data.left
        # What a list holds that is not written here may be numbers, unless it is known better.
        judge = context.confidence if isinstance(data, (ast.List, ast.Tuple)) else context.truth_confidence
        confidence = _inside(context.value(data), judge, 0)
        if confidence is not None:
            yield Report("tensor-of-scalars", node, confidence)

    def _conversion(self, node: ast.Call, dotted: str, context: RuleContext) -> Iterator[Report]:
        given = arguments(node)
        for arg in given[1:] if dotted in python_api.TAKE_ITEMS else given:
            value = context.value(arg)
            if value.kind in _SEQUENCES and dotted.startswith(("math.", "statistics.")):
                value = element(value)
            confidence = context.truth_confidence(value) if dotted == "builtins.range" else context.confidence(value)
            if confidence is not None:
                is_float = dotted == "builtins.float" and given == node.args
                yield Report("scalar-conversion", node, confidence, fix=defer(node, arg, context) if is_float else None)
                return


def _is_conversion(dotted: str) -> bool:
    return dotted in python_api.CONVERSIONS or (dotted.startswith("math.") and dotted not in python_api.COMPUTED)


def _is_method_of_text(node: ast.Call, context: RuleContext) -> bool:
    func = node.func
    return (
        isinstance(func, ast.Attribute)
        and func.attr in _TEXT_METHODS
        and isinstance(context.value(func.value).const, str)
    )


class TensorAsNumber(Rule):
    """A device tensor where an operator of torch takes a Python number: a size, a position, a bound, a factor."""

    nodes = (ast.Call,)
    calls = tuple({name.rpartition(".")[2] for name in signatures.names()})
    barriers = ("tensor-as-number",)
    VALID: ClassVar = (
        "torch.full((4,), 3.0, device=dev)",
        "torch.zeros(x.size(0))",
        "x.index_fill_(0, idx, 1.0)",
        "x.clamp(s, s2)",
        "torch.add(x, s)",
        "x.narrow(0, 0, 2)",
    )
    INVALID: ClassVar = (
        "torch.full((4,), s)",
        "torch.zeros(si, device=dev)",
        "torch.arange(0, si)",
        "x.index_fill_(0, idx, s)",
        "x.narrow(0, 0, si)",
        "x.clamp(0, s)",
        "x.expand(si, -1)",
        "torch.add(x, x, alpha=s)",
        "x.masked_fill(m, s)",
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        given = (*node.args, *(item.value for item in node.keywords if item.arg))
        if not any(map(_holds_tensor, map(context.value, given))):
            return
        args = [(arg, context.value(arg)) for arg in node.args]
        keywords = {item.arg: (item.value, context.value(item.value)) for item in node.keywords if item.arg}
        dotted = _called(node, context)
        reads = dotted.rpartition(".")[2] in context.catalogue.barriers["tensor-as-number"].methods
        fitting = [
            read
            for signature in signatures.signatures(dotted)
            if (read := _read_as_numbers(signature, args, keywords, reads)) is not None
        ]
        if not fitting:
            return
        # torch prefers the signature that takes a tensor as a tensor.
        found = [context.truth_confidence(value) for value in min(fitting, key=len)]
        confidence = min((one for one in found if one is not None), key=lambda one: one.rank, default=None)
        if confidence is not None:
            yield Report("tensor-as-number", node, confidence)


class IndexByValue(Rule):
    """`items[t]`, `x[:t]`, `x[i0]` with an index on the device."""

    nodes = (ast.Subscript,)
    barriers = ("index-by-value",)
    VALID: ClassVar = ("x[idx]", "x[0]", "x[:, None]", "lst[0]")
    INVALID: ClassVar = ("lst[si]", "x[:si]", "x[si]", "torch.nn.ModuleList([model])[si]")

    def check(self, node: ast.Subscript, context: RuleContext) -> Iterator[Report]:
        """Check a subscript."""
        base = context.value(node.value)
        is_text = isinstance(base.const, str)
        if base.kind in (Kind.LIST, Kind.TUPLE) and isinstance(node.slice, ast.Tuple):
            return  # sequences take one index, so this is something else
        for part in indices(node):
            if isinstance(part, ast.Slice):
                values = [context.value(bound) for bound in (part.lower, part.upper, part.step)]
            else:
                value = context.value(part)
                on_host = base.kind is Kind.TENSOR and base.device is Device.CPU
                if base.kind is Kind.TENSOR and not on_host and (not value.zero_dim or value.boolean):
                    continue
                if base.kind not in _INDEXED and base.ref not in _MODULE_LISTS and not is_text:
                    continue
                values = [value]
            for value in values:
                # A tensor on the host takes no index from the device but by its value, however many elements it has.
                table = base.kind is Kind.TENSOR and base.device is Device.CPU and base.certain
                confidence = context.confidence(value) if table else context.truth_confidence(value)
                if confidence is not None:
                    yield Report("index-by-value", node, confidence)
                    return


class SequenceRepeat(Rule):
    """`[0] * t` with a number that lies on the device."""

    nodes = (ast.BinOp,)
    barriers = ("index-by-value",)
    VALID: ClassVar = ("x * si", "[0] * 4", "2 * si")
    INVALID: ClassVar = ("[0] * si", "si * (1, 2)", "'-' * si")

    def check(self, node: ast.BinOp, context: RuleContext) -> Iterator[Report]:
        """Check a product."""
        if not isinstance(node.op, ast.Mult):
            return
        for one, other in ((node.left, node.right), (node.right, node.left)):
            sequence = context.value(one)
            if sequence.kind in _SEQUENCES or isinstance(sequence.const, str):
                confidence = context.truth_confidence(context.value(other))
                if confidence is not None:
                    yield Report("index-by-value", node, confidence)
                    return


def _called(node: ast.Call, context: RuleContext) -> str:
    """The dotted name of a function of torch or of a method of a tensor; empty for anything else."""
    if isinstance(node.func, ast.Attribute):
        kind = context.value(node.func.value).kind
        if kind is Kind.TENSOR or (kind is Kind.UNKNOWN and node.func.attr in _SIZED):
            return f"torch.Tensor.{node.func.attr}"
    return context.qualified_name(node.func)


_Given = tuple[ast.expr, Value]


def _read_as_numbers(
    signature: Signature, args: Sequence[_Given], keywords: Mapping[str, _Given], reads_tensors: bool
) -> list[Value] | None:
    """The device tensors that a call passes where the signature takes numbers; None if the call does not fit it.

    `reads_tensors`: whether the operator reads the value of a 0-dimensional tensor even where it takes a tensor.
    """
    pairs = _bound(signature, args, keywords)
    if pairs is None or not all(_fits(argument, value, len(pairs)) for argument, value in pairs):
        return None
    read: list[Value] = []
    for argument, value in pairs:
        is_on_device = value.kind is Kind.TENSOR and value.on_device
        if argument.type in ("l", "d"):
            read += [value] if is_on_device else []
            read += [item for item in contents(value) if item.on_device]
        elif is_on_device and (argument.type == "n" or (reads_tensors and value.zero_dim is True)):
            read.append(value)
    return read


def _bound(
    signature: Signature, args: Sequence[_Given], keywords: Mapping[str, _Given]
) -> list[tuple[Argument, Value]] | None:
    """The arguments of a signature with the values that a call passes; None if their number or names do not fit."""
    if signature.takes_sizes and args and args[0][1].kind not in _SEQUENCES:
        pairs = [(Argument("size", "n"), value) for _, value in args]
    elif len(args) > len(signature.positional):
        return None
    else:
        pairs = [(argument, value) for argument, (_, value) in zip(signature.positional, args, strict=False)]
    by_name = {argument.name: argument for argument in (*signature.positional, *signature.keywords)}
    for name, (_, value) in keywords.items():
        if name in by_name:
            pairs.append((by_name[name], value))
        elif name not in signatures.IGNORED:
            return None
    return pairs


def _fits(argument: Argument, value: Value, count: int) -> bool:
    """Whether a value can be passed for an argument, in a call with `count` arguments."""
    is_tensor = value.kind is Kind.TENSOR
    if argument.type == "t":
        return value.kind not in _SEQUENCES and (value.kind not in (Kind.HOST, Kind.NONE) or value.const is None)
    if argument.type == "s":
        return not is_tensor and all(item.kind is not Kind.HOST for item in contents(value))
    if argument.type == "l":
        return count == 1 or not (is_tensor or value.kind is Kind.HOST)
    if argument.type == "n":
        return value.kind not in _SEQUENCES
    return argument.type != "o" or not _holds_tensor(value)


def _holds_tensor(value: Value) -> bool:
    return value.on_device or (value.kind in _SEQUENCES and any(item.on_device for item in contents(value)))


def _inside(value: Value, judge: Callable[[Value], Confidence | None], depth: int) -> Confidence | None:
    """The confidence that a list, or a list in it, holds a tensor on the device; None if it is no list."""
    if value.kind not in _SEQUENCES or depth > _DEPTH:
        return None
    inside = contents(value)
    found = [judge(item) or _inside(item, judge, depth + 1) for item in inside]
    return min((one for one in found if one is not None), key=lambda one: one.rank, default=None)
