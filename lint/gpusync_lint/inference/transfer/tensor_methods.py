"""Methods of tensors, and the functions of the same names in torch."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.domain import torch_api
from gpusync_lint.domain.tensor_ops import combine, multiplied_gradient
from gpusync_lint.domain.values import (
    ARRAY,
    COALESCED,
    HOST,
    UNCOALESCED,
    Device,
    Gradient,
    Kind,
    Value,
    list_of,
    tensor_like,
    tuple_of,
)
from gpusync_lint.inference.tables import Call, methods_of
from gpusync_lint.inference.transfer.moves import as_type

if TYPE_CHECKING:
    from collections.abc import Container

    from gpusync_lint.inference.frame import Frame

_MADE_DENSE = frozenset({"coalesce", "to_dense", "to_sparse_csr", "values", "indices"})
"""Methods of a sparse tensor after which products no longer sort its indices."""


_DETACHED = frozenset(
    {"detach", "detach_", "argmax", "argmin", "argsort", "numpy", "tolist", "item", "size", "multinomial", "new_zeros"}
)
"""Operations whose results no gradient passes through."""
_MULTIPLIED = frozenset({"prod", "cumprod"})
_MATRIX_PRODUCTS = frozenset({"mm", "matmul", "spmm"})
_INNER_PRODUCTS = frozenset({"dist", "dot", "vdot"})
"""Reductions of two tensors to one number."""
_ORDERED = frozenset({"nanquantile", "norm", "quantile"})
"""Reductions that take an order before the dimension."""


class _Operation(NamedTuple):
    """The properties of an operation on a tensor that follow from its name."""

    gives: str
    """The kind of result.

    `tensor`: a tensor computed from the operands; `itself`: the receiver; `like`: another tensor like the receiver;
    `pinned`: the receiver in pinned memory; `type`: the receiver, converted; `array`, `numbers`, `host`: on the host.
    """
    dimensions: str
    """The dimensions of the result: `reduced`, those of the `receiver`, or of all `operands`; empty if unknown."""
    parts: str
    """For several results: a `pair` or a `list`, always or depending on the arguments; empty for one result."""
    reshapes: bool
    makes_boolean: bool
    keeps_boolean: bool
    only_tensors: bool
    """Whether only tensors have such a method."""


@lru_cache(20_000)
def _operation(name: str) -> _Operation:
    known = torch_api.tensors()
    return _Operation(
        _first(
            name,
            array=("numpy",),
            numbers=("tolist",),
            host=known.host_methods,
            like=known.makes_another,
            pinned=("pin_memory",),
            type=("type",),
            itself=known.in_place,
        )
        or "tensor",
        _first(name, reduced=known.reduces, receiver=known.keep_dimensions, operands=known.elementwise),
        _first(
            name,
            pair=known.always_with_indices,
            pair_along_dim=known.with_indices,
            list=known.splits,
            list_with_arguments=("unique", "unique_consecutive"),
            list_as_tuple=("nonzero",),
        ),
        name in known.reshapes,
        name in known.booleans,
        name in known.keep_boolean,
        name in known.torch_only,
    )


def _first(name: str, **groups: Container[str]) -> str:
    """The first group that contains a name; empty if none does."""
    return next((group for group, names in groups.items() if name in names), "")


@methods_of(Kind.TENSOR)
def tensor_method(frame: Frame, call: Call) -> Value:
    """The result of a method of a tensor. What has keys is a dict of tensors, or a batch, in truth."""
    if call.method == "items":
        return list_of(tuple_of([HOST, call.receiver._replace(zero_dim=None)]))
    if call.method == "keys":
        return list_of(HOST)
    if call.method in _MADE_DENSE and call.receiver.ref in (UNCOALESCED, COALESCED):
        return call.receiver._replace(ref=COALESCED if call.method == "coalesce" else None)
    if call.method == "requires_grad_" and call.first.const is not False:
        return call.receiver._replace(gradient=max(call.receiver.gradient, Gradient.FLOWS))
    if call.method == "type_as" and call.first.kind is Kind.TENSOR:
        return call.receiver._replace(device=call.first.device, boolean=call.first.boolean, pinned=False)
    return operation(call.method, call.receiver, call.args, call.kwargs)


def operation(name: str, receiver: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The result of a method of tensors, or of the function of the same name in torch."""
    properties = _operation(name)
    if properties.gives != "tensor":
        made = _special(properties.gives, receiver, args)
        return made._replace(gradient=_gradient(name, receiver, args)) if made.gradient else made
    base = receiver
    if not properties.reshapes:
        for other in (*args, *kwargs.values()) if kwargs else args:
            if other.kind is Kind.TENSOR:
                base = combine(base, other)
    zero_dim: bool | None = None
    if properties.dimensions == "reduced":
        zero_dim = _reduces_all(name, args, kwargs)
    elif properties.dimensions:
        zero_dim = receiver.zero_dim if properties.dimensions == "receiver" else base.zero_dim
    boolean = properties.makes_boolean or (receiver.boolean and properties.keeps_boolean)
    gradient = Gradient.NONE
    if (base.gradient or receiver.gradient) and not properties.makes_boolean and name not in _DETACHED:
        gradient = max(base.gradient, _gradient(name, receiver, args))
    result = tensor_like(base, base.certain or properties.only_tensors, zero_dim, boolean, False, gradient)
    return _in_parts(properties.parts, result, args, kwargs) if properties.parts else result


def _reduces_all(name: str, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether a reduction is over all dimensions, so that its result is 0-dimensional."""
    if name in _INNER_PRODUCTS:
        return True
    dimensions = args[1:] if name in _ORDERED else args  # `x.norm(2)` is a number, `x.norm(2, 0)` is not
    return not (dimensions or "dim" in kwargs or "axis" in kwargs)


def _gradient(name: str, receiver: Value, args: list[Value]) -> Gradient:
    """What the backward pass through an operation does."""
    if name in _DETACHED:
        return Gradient.NONE
    if name in _MULTIPLIED and receiver.gradient and receiver.device is not Device.CPU:
        return max(receiver.gradient, Gradient.THROUGH_PRODUCT)
    if name in _MATRIX_PRODUCTS and args:
        return multiplied_gradient(receiver, args[0])
    return receiver.gradient


def _special(gives: str, receiver: Value, args: list[Value]) -> Value:
    if gives == "array":
        return ARRAY
    if gives == "numbers":
        return list_of(HOST)
    if gives == "like":
        return receiver._replace(zero_dim=None, pinned=False)
    if gives == "pinned":
        return receiver._replace(pinned=True)
    if gives == "type" and args:
        return as_type(receiver, args[0])
    return receiver if gives == "itself" else HOST


def _in_parts(parts: str, result: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    along_dim = (bool(args) and args[0].kind is Kind.HOST) or "dim" in kwargs
    if parts == "pair" or (parts == "pair_along_dim" and along_dim):
        return tuple_of([result._replace(zero_dim=None), result._replace(zero_dim=None, boolean=False)])
    several = (
        parts == "list"
        or (parts == "list_with_arguments" and (bool(kwargs) or len(args) > 1))
        or (parts == "list_as_tuple" and "as_tuple" in kwargs)
    )
    return list_of(result) if several else result
