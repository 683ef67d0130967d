"""Sees every operator of the host on pinned memory, and no other operator.

A pinned tensor gets one more dispatch key, which its views inherit. torch has a key for tests that nobody uses; the
kernels registered for it see the operator before autograd does, and then call it without the key. A tensor made from
the storage alone does not have the key. Methods that read memory without an operator are replaced in :mod:`torch_api`.
"""

from __future__ import annotations

import sys
from functools import cache, partial
from typing import Any, Final, NamedTuple

import torch
from torch._C import DispatchKeySet

from pytest_gpusync.simulated.base.native import cells
from pytest_gpusync.simulated.races import device_work, extents, pinned_memory

Tensor = torch.Tensor
_KEY: Final = "TESTING_ONLY_GenericWrapper"
_KEYS: Final = DispatchKeySet(torch._C._dispatch_key_parse(_KEY))
_BIT: Final = _KEYS.raw_repr()
_without_key = torch._C._ExcludeDispatchKeyGuard
_TENSOR_WORDS: Final = 23
"""Words of a tensor's structure that every release has."""
_fallback: torch.library.Library | None = None
_kernels: dict[str, Any] = {}
"""The libraries of the kernels, by namespace; they live as long as the process."""


class _Offset:
    key_set: int | None = None
    """The word of a tensor's structure with its dispatch keys; None where it was not found: then nothing is marked."""


def install() -> None:
    """Register the fallback, once per process, and find where tensors keep their keys."""
    global _fallback
    if _fallback is not None:
        return
    _fallback = torch.library.Library("_", "IMPL")
    _fallback.fallback(_observe, _KEY)
    with torch.inference_mode(mode=False):
        tensors = [torch.zeros(3, device="cpu"), torch.zeros(3, device="meta")]
    with torch.inference_mode():
        tensors.append(torch.zeros(3, device="cpu"))
    places = [
        n
        for n in range(2, _TENSOR_WORDS)
        if all(cells[(x._cdata >> 3) + n] == torch._C._dispatch_keys(x).raw_repr() for x in tensors)
    ]
    _Offset.key_set = places[0] if len(places) == 1 else None


def mark(tensor: Tensor) -> None:
    """See the operators on `tensor`, a CPU tensor, and on its views."""
    if _Offset.key_set is not None:
        if not _kernels:
            _register_kernels()
        cells[(tensor._cdata >> 3) + _Offset.key_set] |= _BIT


def _register_kernels() -> None:
    """Register a kernel for each operator that exists by now; the fallback serves those that are made later.

    While a dispatch mode is active (FlopCounterMode, selective checkpointing, FakeTensorMode), torch finds a Python
    kernel only if it was registered for the operator; at a Python fallback it ends with an internal error.
    """
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        op = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
        if namespace not in _kernels:
            _kernels[namespace] = torch._C._dispatch_library("IMPL", namespace, "", __file__, 1)
        _kernels[namespace].impl(rest, _KEY, partial(_observe, op))


class _Plan(NamedTuple):
    """What an operator does to its tensor arguments, by position."""

    names: tuple[str, ...]
    tensors: tuple[int, ...]
    """Positions of tensors, and of lists of tensors."""
    written: frozenset[int]
    may_be_view: bool
    """The result may be a view of an argument, or a copy."""


@cache
def _plan(op: Any) -> _Plan | None:
    """Return what an operator does; None if it looks at no element."""
    schema = op._schema
    if device_work.reads_nothing(schema.name):
        return None
    aliases = [argument.alias_info for argument in schema.arguments]
    return _Plan(
        tuple(argument.name for argument in schema.arguments),
        tuple(n for n, argument in enumerate(schema.arguments) if "Tensor" in str(argument.type)),
        frozenset(n for n, alias in enumerate(aliases) if alias is not None and alias.is_write),
        any(alias is not None and not alias.is_write for alias in aliases),
    )


def _observe(op: Any, *arguments: Any, **keywords: Any) -> Any:
    if not pinned_memory.pending:
        with _without_key(_KEYS):
            return op._op(*arguments, **keywords)
    plan = _plan(op)
    if plan is None:
        with _without_key(_KEYS):
            return op._op(*arguments, **keywords)
    used = [
        (tensor, position in plan.written)
        for position in plan.tensors
        for tensor in _tensors(arguments[position] if position < len(arguments) else keywords.get(plan.names[position]))
    ]
    if any(tensor.is_cuda for tensor, _ in used):
        # A copy between host and device, or an operator that waits for one: its CUDA kernel says what happens.
        with _without_key(_KEYS):
            return op._op(*arguments, **keywords)
    frame = sys._getframe(1)
    if not plan.may_be_view:
        _use(used, frame)
        with _without_key(_KEYS):
            return op._op(*arguments, **keywords)
    with _without_key(_KEYS):
        result = op._op(*arguments, **keywords)
    results = _tensors(result)
    ours = {extents.base_of(tensor) for tensor, _ in used if tensor.numel()}
    if not any(tensor.is_cuda or (tensor.numel() and extents.base_of(tensor) in ours) for tensor in results):
        _use(used, frame)
    return result


def _use(used: list[tuple[Tensor, bool]], frame: Any) -> None:
    for tensor, is_write in used:
        if tensor.layout is torch.strided:
            pinned_memory.host_uses(tensor, is_write, frame)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [item for item in value if isinstance(item, Tensor)] if isinstance(value, (list, tuple)) else []
