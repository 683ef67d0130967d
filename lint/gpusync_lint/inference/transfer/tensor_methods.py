"""Methods of tensors, and the functions of the same names in torch."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.domain import torch_api
from gpusync_lint.domain.tensor_ops import combine
from gpusync_lint.domain.values import ARRAY, HOST, Kind, Value, list_of, tensor_like, tuple_of
from gpusync_lint.inference.tables import Call, methods_of
from gpusync_lint.inference.transfer.moves import as_type

if TYPE_CHECKING:
    from collections.abc import Container

    from gpusync_lint.inference.frame import Frame


class _Operation(NamedTuple):
    """What an operation on a tensor gives, as far as its name shows."""

    gives: str
    """`tensor`, computed from the operands; `array`, `numbers` or `host`; `itself`; `like` it; `pinned`; a `type`."""
    dimensions: str
    """Which operands the result has no dimensions for: it is `reduced`, or has those of the `receiver` or of all
    `operands`; empty where that is not known."""
    parts: str
    """Of several tensors: a `pair`, or a `list`, always or depending on the arguments; empty for one."""
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
    """The first group that holds a name; empty for none."""
    return next((group for group, names in groups.items() if name in names), "")


@methods_of(Kind.TENSOR)
def tensor_method(frame: Frame, call: Call) -> Value:
    """What a method of a tensor gives back."""
    return operation(call.method, call.receiver, call.args, call.kwargs)


def operation(name: str, receiver: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What a tensor method, or the function of the same name in torch, gives back."""
    what = _operation(name)
    if what.gives != "tensor":
        return _special(what.gives, receiver, args)
    base = receiver
    if not what.reshapes:
        for other in (*args, *kwargs.values()) if kwargs else args:
            if other.kind is Kind.TENSOR:
                base = combine(base, other)
    zero_dim: bool | None = None
    if what.dimensions == "reduced":
        zero_dim = not (args or "dim" in kwargs or "axis" in kwargs)
    elif what.dimensions:
        zero_dim = receiver.zero_dim if what.dimensions == "receiver" else base.zero_dim
    boolean = what.makes_boolean or (receiver.boolean and what.keeps_boolean)
    result = tensor_like(base, base.certain or what.only_tensors, zero_dim, boolean, False)
    return _in_parts(what.parts, result, args, kwargs) if what.parts else result


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
