"""Operators and conditional expressions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import foreign
from gpusync_lint.domain.lattice import element, join, join_all, join_elements
from gpusync_lint.domain.tensor_ops import combine, device_comparison, is_gpu_string, multiplied_gradient
from gpusync_lint.domain.values import (
    ARRAY,
    ARRAY_ELEMENT,
    COALESCED,
    GPU_ABSENT,
    GPU_PRESENT,
    HOST,
    UNCOALESCED,
    UNKNOWN,
    Device,
    Gradient,
    Kind,
    Value,
    dict_of,
    foreign_value,
    host_constant,
    is_number,
    list_of,
    tensor,
)
from gpusync_lint.inference.tables import evaluates
from gpusync_lint.inference.transfer.assignments import MAX_KEYS
from gpusync_lint.inference.transfer.narrowing import narrow, tests_class

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame

_SEQUENCES = frozenset({Kind.LIST, Kind.TUPLE})
_HOST_KINDS = frozenset({Kind.HOST, Kind.FLAG})
_EITHER = ({Kind.TENSOR, Kind.ARRAY}, {Kind.TENSOR, Kind.HOST})
"""Kinds of results of a function that takes tensors as well as other values: which one it is depends on the caller."""
_OF_BOOLEANS = frozenset({ast.BitAnd, ast.BitOr, ast.BitXor, ast.Mult, ast.Add})
"""Operators whose result is a boolean tensor if both operands are."""
_METHODS = {
    ast.Add: "__add__", ast.Sub: "__sub__", ast.Mult: "__mul__", ast.Div: "__truediv__", ast.MatMult: "__matmul__",
    ast.Pow: "__pow__", ast.FloorDiv: "__floordiv__", ast.Mod: "__mod__", ast.BitAnd: "__and__", ast.BitOr: "__or__",
}  # fmt: skip
"""The methods of classes of the project that operators call."""
_SCALING = frozenset({ast.Mult, ast.Div})


@evaluates(ast.BinOp)
def binary(frame: Frame, node: ast.BinOp) -> Value:
    """`left + right` and other binary operators."""
    left, right = frame.eval(node.left), frame.eval(node.right)
    op = node.op.__class__
    if op is ast.Mod and (isinstance(left.const, str) or isinstance(node.left, ast.JoinedStr)):
        return HOST
    kinds = (left.kind, right.kind)
    if op is ast.BitOr and Kind.DICT in kinds:
        return _merged(left, right)
    if Kind.TENSOR in kinds:
        return _of_tensors(op, left, right)
    if Kind.FOREIGN in kinds:
        return foreign_value(foreign.types()[(left if left.kind is Kind.FOREIGN else right).ref].result)
    if Kind.ARRAY in kinds:
        return ARRAY_ELEMENT if is_number(left) and is_number(right) else ARRAY
    if left.kind in _SEQUENCES:
        return _of_sequence(op, left, right)
    if left.kind in _HOST_KINDS and right.kind in _HOST_KINDS:
        return HOST
    if left.kind is Kind.INSTANCE and op in _METHODS and left.definition is not None:
        method = frame.analysis.project.classes.method(left.definition, _METHODS[op])
        if method is not None:
            return frame.analysis.call(frame, method, [left, right], {})
    return tensor(Device.GPU, certain=False) if Kind.MOVED in kinds else UNKNOWN


def _of_tensors(op: type[ast.operator], left: Value, right: Value) -> Value:
    value = combine(left, right)
    boolean = op in _OF_BOOLEANS and left.boolean and right.boolean
    gradient = multiplied_gradient(left, right) if op is ast.MatMult else value.gradient
    certain = value.certain and (left.kind is right.kind or (left.certain and right.certain))
    result = tensor(value.device, certain, value.zero_dim, boolean, gradient=gradient)
    if op in _SCALING and left.ref in (COALESCED, UNCOALESCED) and right.kind is Kind.HOST:
        return result._replace(ref=left.ref)
    return result


def _merged(left: Value, right: Value) -> Value:
    """`{"loss": loss} | {"lr": lr}`."""
    given = [one for one in (left, right) if one.kind is Kind.DICT]
    pairs = dict(pair for one in given for pair in one.items or ())
    rest = [one.elem for one in given if one.elem is not None]
    return dict_of(tuple(pairs.items())[:MAX_KEYS], join_elements(rest) if rest else None)


def _of_sequence(op: type[ast.operator], left: Value, right: Value) -> Value:
    if op is ast.Add and right.kind in _SEQUENCES:
        if left.kind is right.kind is Kind.LIST:
            return join(left, right)
        return list_of(join(element(left), element(right)))
    if op is ast.Mult and left.kind is Kind.LIST:
        return left
    return tensor(Device.GPU, certain=False) if right.kind is Kind.MOVED else UNKNOWN


@evaluates(ast.BoolOp)
def boolean(frame: Frame, node: ast.BoolOp) -> Value:
    """`a and b`, `a or b`."""
    values = [frame.eval(item) for item in node.values]
    flags = [value.const for value in values if value.kind is Kind.FLAG]
    if isinstance(node.op, ast.And):
        if False in flags:
            return GPU_ABSENT
        if flags and all(value.kind in (Kind.FLAG, Kind.UNKNOWN, Kind.HOST) for value in values):
            return GPU_PRESENT
    elif True in flags:
        return GPU_PRESENT
    elif flags and len(flags) == len(values):
        return GPU_ABSENT
    return join_all(values)


@evaluates(ast.UnaryOp)
def unary(frame: Frame, node: ast.UnaryOp) -> Value:
    """`not a`, `~a`, `-a`, `+a`."""
    value = frame.eval(node.operand)
    if isinstance(node.op, ast.Not):
        if value.kind is Kind.FLAG:
            return GPU_ABSENT if value.const else GPU_PRESENT
        return HOST
    if isinstance(node.op, ast.Invert) and value.kind is Kind.TENSOR:
        return value._replace(boolean=True)  # nearly all tensors that are inverted are masks
    if isinstance(node.op, ast.USub) and isinstance(value.const, (int, float)):
        return host_constant(-value.const)
    return value


@evaluates(ast.Compare)
def compare(frame: Frame, node: ast.Compare) -> Value:
    """`a < b`, `a is b`, `a in b`, and chained comparisons."""
    values = [frame.eval(node.left), *(frame.eval(item) for item in node.comparators)]
    op = node.ops[0].__class__
    if op is ast.Is or op is ast.IsNot:
        none_by_default = values[1].kind is Kind.NONE and _is_none_by_default(frame, node.left)
        return host_constant(op is ast.Is) if none_by_default else HOST
    if Kind.NONE in (values[0].kind, values[-1].kind) and any(map(_is_none, (node.left, *node.comparators))):
        return HOST  # `x != None` is no tensor: `None` equals nothing else
    if len(values) == 2:
        flag = device_comparison(op, values[0], values[1], frame.analysis.devices.names_cuda(frame.fn.file))
        if flag is not None:
            return flag
    if op is ast.In or op is ast.NotIn or any(isinstance(value.const, str) for value in values):
        return HOST  # a value that is compared with a string is a string
    return _compared(values)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _compared(values: list[Value]) -> Value:
    tensors = [value for value in values if value.kind is Kind.TENSOR]
    if tensors:
        result = combine(values[0], values[1]) if len(values) == 2 else join_all(tensors)
        # What is compared with a number that certainly is a tensor gives one.
        certain = all(value.certain for value in tensors) or any(one.certain and one.zero_dim for one in tensors)
        # What a 0-dimensional tensor is compared with is a number, if nothing is known about it.
        if result.zero_dim is None and tensors[0].zero_dim and Kind.UNKNOWN in (values[0].kind, values[-1].kind):
            result = result._replace(zero_dim=True)
        return result._replace(boolean=True, certain=certain, gradient=Gradient.NONE)
    for value in values:
        if value.kind is Kind.FOREIGN:
            return foreign_value(foreign.types()[value.ref].result)
    kinds = (values[0].kind, values[1].kind)
    if Kind.ARRAY in kinds:
        return ARRAY
    if Kind.MOVED in kinds:
        return Value(Kind.TENSOR, Device.GPU, certain=False, boolean=True)
    return HOST if all(value.kind in (Kind.HOST, Kind.NONE, Kind.FLAG) for value in values) else UNKNOWN


def _is_none_by_default(frame: Frame, node: ast.expr) -> bool:
    """Whether this is an attribute of a class of settings whose default is None."""
    if not isinstance(node, ast.Attribute):
        return False
    owner = frame.values.get(node.value, UNKNOWN)
    if owner.kind is not Kind.INSTANCE or owner.ref is None:
        return False
    return frame.analysis.project.classes.is_none_by_default(owner.ref, node.attr)


def _eval_narrowed(frame: Frame, node: ast.IfExp, holds: bool) -> Value:
    """One branch of `x.item() if isinstance(x, Tensor) else x`, with what the test shows about `x`."""
    mark = frame.store.mark()
    narrow(frame, node.test, holds)
    value = frame.eval(node.body if holds else node.orelse)
    frame.store.rollback(mark)
    return value


@evaluates(ast.IfExp)
def conditional(frame: Frame, node: ast.IfExp) -> Value:
    """`body if test else orelse`."""
    test = frame.eval(node.test)
    if tests_class(node.test):
        body, orelse = _eval_narrowed(frame, node, True), _eval_narrowed(frame, node, False)
        if {body.kind, orelse.kind} in _EITHER:
            return UNKNOWN
    else:
        body, orelse = frame.eval(node.body), frame.eval(node.orelse)
    if test.kind is Kind.FLAG:
        taken, other = (body, orelse) if test.const else (orelse, body)
        if isinstance(taken.const, bool) and isinstance(other.const, bool) and taken.const is not other.const:
            return GPU_PRESENT if taken.const else GPU_ABSENT  # `True if torch.cuda.is_available() else False`
        return taken
    strings = (body.const, orelse.const)
    if all(isinstance(text, str) for text in strings) and any(is_gpu_string(text) for text in strings):
        return body if is_gpu_string(body.const) else orelse
    return join(body, orelse)
