"""Which top-level modules belong to a framework: the one list of frameworks, read from the catalogues.

A file is of interest when it imports one of `frameworks()`. What the linter may conclude from an import depends on
whose it is: torch's own or a library's on top of it (`torch_family()`), another framework's (`foreign.modules()`), or
one whose arrays are easily taken for tensors (`lookalikes()`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import foreign, registry

if TYPE_CHECKING:
    from gpusync_lint.catalogue.schema import Accelerator, Catalogue


@cache
def libraries() -> tuple[Catalogue, ...]:
    """The catalogues of libraries on top of torch."""
    return tuple(each for each in _all() if each.on)


@cache
def library_of() -> dict[str, Catalogue]:
    """The catalogue of a library on top of torch, by each of its top-level modules."""
    return {module: each for each in libraries() for module in each.modules}


@cache
def engines() -> frozenset[str]:
    """The public names of classes of libraries that move models and data: `accelerate.Accelerator`."""
    return frozenset(f"{module}.{one.name}" for module, library in library_of().items() for one in library.engines)


@cache
def accelerator_catalogues() -> tuple[Catalogue, ...]:
    """The catalogues of accelerators other than CUDA's."""
    return tuple(each for each in libraries() if each.accelerator is not None)


@cache
def accelerators() -> dict[str, Accelerator]:
    """The accelerators other than CUDA's, by the names of their catalogues."""
    return {each.framework: each.accelerator for each in accelerator_catalogues() if each.accelerator is not None}


def modules_of(framework: str) -> tuple[str, ...]:
    """The top-level modules of a framework."""
    return registry.catalogue(framework).modules


@cache
def torch_family() -> frozenset[str]:
    """Modules whose import shows that a file works with torch's tensors."""
    catalogues = (registry.catalogue("torch"), *libraries())
    return frozenset(module for each in catalogues if each.shows_torch for module in each.modules)


@cache
def frameworks() -> frozenset[str]:
    """Modules whose import makes a file one to analyze."""
    return torch_family() | foreign.modules()


@cache
def lookalikes() -> frozenset[str]:
    """Modules of array libraries other than torch, whose arrays have methods of the same names as its tensors."""
    return frozenset(module for each in _all() for module in each.lookalikes)


@cache
def module_classes() -> tuple[str, ...]:
    """Beginnings of the dotted names of classes that are `torch.nn.Module`s."""
    return tuple(prefix for each in _all() for prefix in each.module_classes)


@cache
def only_logging() -> tuple[str, ...]:
    """Modules of the torch family whose import does not show that a file works with tensors."""
    return tuple(module for each in _all() for module in each.only_logging)


@cache
def device_words() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What shows a text to use a GPU: parts of words, and whole words."""
    words = [word for each in _all() for word in each.device_words]
    parts = tuple(word.removesuffix("*") for word in words if word.endswith("*"))
    return parts, tuple(word for word in words if not word.endswith("*"))


@cache
def no_device_words() -> tuple[str, ...]:
    """Text that contains one of these words and shows nothing."""
    return tuple(word for each in _all() for word in each.no_device_words)


def _all() -> tuple[Catalogue, ...]:
    return tuple(map(registry.catalogue, registry.frameworks()))
