"""What torch's functions, tensors and modules give back, looked up in its catalogue."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import registry, roots

if TYPE_CHECKING:
    from gpusync_lint.catalogue.schema import Engine, ModuleOperations, Returns, TensorOperations

PARTS = {"encoder": "torch.nn.TransformerEncoder", "decoder": "torch.nn.TransformerDecoder"}
"""What classes derived from `torch.nn.Transformer` inherit."""

_TYPE_NAME = re.compile(r"torch\.(cuda\.)?(sparse\.)?[A-Z]\w*Tensor")


@cache
def tensors() -> TensorOperations:
    """What attributes and methods of tensors give."""
    found = registry.catalogue("torch").tensor_operations
    assert found is not None
    return found


@cache
def modules() -> ModuleOperations:
    """What methods of modules give."""
    found = registry.catalogue("torch").module_operations
    assert found is not None
    return found


@lru_cache(20_000)
def returns(name: str) -> tuple[Returns, ...]:
    """The entries about a function or class of torch, without `torch.` before it, in the order in which they count."""
    last = name.rpartition(".")[2]
    return tuple(
        entry
        for entry in registry.catalogue("torch").returns
        if (last in entry.anywhere or covers(entry.functions, name)) and (not entry.classes or last[:1].isupper())
    )


@lru_cache(20_000)
def is_factory(name: str) -> bool:
    """Whether a function of torch, without `torch.` before it, makes a tensor: on the host, unless told otherwise."""
    entries = returns(name)
    return bool(entries) and entries[0].gives == "factory"


@cache
def engines() -> dict[str, Engine]:
    """The classes whose objects move what they are given to the device, by their last names."""
    return {engine.name: engine for each in roots.libraries() for engine in each.engines}


@lru_cache(20_000)
def is_batch_attribute(name: str) -> bool:
    """Whether an attribute of a batch object is on the host."""
    return any(covers((pattern,), name) for pattern in tensors().batch_attributes)


def covers(patterns: tuple[str, ...], name: str) -> bool:
    """Whether a name is among some names, or begins like one that ends in `*`."""
    return any(name.startswith(one[:-1]) if one[-1] == "*" else name == one for one in patterns)


def tensor_type(dotted: object) -> str:
    """Where `torch.FloatTensor` and the like put a tensor: `cpu` or `cuda`; empty for any other name."""
    found = _TYPE_NAME.fullmatch(dotted) if isinstance(dotted, str) else None
    return "" if found is None else "cuda" if found[1] else "cpu"
