"""torch's functions, tensors and modules, as its catalogue describes them. Lookups are cached."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import registry, roots
from gpusync_lint.model.placement import PathKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusync_lint.catalogue.schema import Engine, ModuleOperations, Returns, TensorOperations

TRANSFORMER_PARTS = {"encoder": "torch.nn.TransformerEncoder", "decoder": "torch.nn.TransformerDecoder"}
"""The attributes that a class derived from `torch.nn.Transformer` inherits, with their classes."""

_CUDAGRAPH_MODES = frozenset({"reduce-overhead", "max-autotune"})
"""The modes of `torch.compile` that use CUDA graphs."""
CUDAGRAPHS = "triton.cudagraphs"
"""The option of `torch.compile` that switches CUDA graphs on."""
_TYPE_NAME = re.compile(r"torch\.(cuda\.)?(sparse\.)?[A-Z]\w*Tensor")


@cache
def tensors() -> TensorOperations:
    """The attributes and methods of tensors."""
    operations = registry.catalogue("torch").tensor_operations
    assert operations is not None
    return operations


@cache
def modules() -> ModuleOperations:
    """The methods of modules."""
    operations = registry.catalogue("torch").module_operations
    assert operations is not None
    return operations


@lru_cache(20_000)
def returns(name: str) -> tuple[Returns, ...]:
    """The entries that match a function or class of torch, in the order in which they apply.

    Args:
        name: its dotted name, without `torch.`.
    """
    last = name.rpartition(".")[2]
    found = tuple(
        entry
        for entry in registry.catalogue("torch").returns
        if (last in entry.anywhere or matches(entry.functions, name)) and (not entry.classes or last[:1].isupper())
    )
    # The modules of other accelerators have the functions of `torch.cuda`.
    is_accelerator = not found and f"torch.{name.partition('.')[0]}" in _accelerator_modules()
    return returns(f"cuda.{name.partition('.')[2]}") if is_accelerator else found


@cache
def _accelerator_modules() -> frozenset[str]:
    return frozenset(one.module for one in roots.accelerators().values())


@lru_cache(20_000)
def is_factory(name: str) -> bool:
    """Whether a function of torch, given without `torch.`, creates a tensor from sizes or data."""
    entries = returns(name)
    return bool(entries) and entries[0].gives == "factory"


@cache
def engines() -> dict[str, Engine]:
    """By last name, the classes whose objects move models and data to the device."""
    return {engine.name: engine for library in roots.libraries() for engine in library.engines}


@lru_cache(20_000)
def is_batch_attribute(name: str) -> bool:
    """Whether an attribute of a batch object is on the host."""
    return matches(tensors().batch_attributes, name)


def matches(patterns: Iterable[str], name: str) -> bool:
    """Whether a name is in a list of names and `prefix*` patterns."""
    return any(name.startswith(pattern[:-1]) if pattern[-1] == "*" else name == pattern for pattern in patterns)


def tensor_type(dotted: object) -> str:
    """`cpu` or `cuda` for the name of a legacy tensor type such as `torch.cuda.FloatTensor`; empty for any other."""
    match = _TYPE_NAME.fullmatch(dotted) if isinstance(dotted, str) else None
    return "" if match is None else "cuda" if match[1] else "cpu"


def kind_of_compilation(mode: object, cudagraphs: object, fullgraph: object) -> PathKind | None:
    """The kind of capture that the arguments of `torch.compile` ask for; None if it does not use CUDA graphs.

    Args:
        mode: its argument `mode`.
        cudagraphs: the entry `CUDAGRAPHS` of its argument `options`.
        fullgraph: its argument `fullgraph`.
    """
    if mode not in _CUDAGRAPH_MODES and cudagraphs is not True:
        return None
    return PathKind.FULL_GRAPH if fullgraph is True else PathKind.COMPILED
