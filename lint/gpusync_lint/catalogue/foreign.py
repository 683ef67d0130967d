"""The types of values of frameworks other than torch, and how names lead to them: the catalogues, indexed."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import registry

if TYPE_CHECKING:
    from gpusync_lint.catalogue.schema import Barrier, Catalogue, ForeignType


@cache
def others() -> tuple[Catalogue, ...]:
    """The catalogues of frameworks other than torch, without those of libraries on top of it."""
    every = (registry.catalogue(framework) for framework in registry.frameworks() if framework != "torch")
    return tuple(each for each in every if not each.on)


@cache
def modules() -> frozenset[str]:
    """Top-level modules of these frameworks."""
    return frozenset(module for each in others() for module in each.modules)


@cache
def types() -> dict[str, ForeignType]:
    """Every type by its name."""
    return {one.name: one for each in others() for one in each.types}


@cache
def only_methods() -> dict[str, str]:
    """By name, the methods that only values of one type have, and that type."""
    return {method: one.name for one in types().values() for method in one.only_methods}


@cache
def shown_by() -> dict[str, str]:
    """By name, the methods whose first argument is of one type, and that type."""
    return {method: one.name for one in types().values() for method in one.shown_by}


@cache
def framework_of() -> dict[str, str]:
    """The frameworks by their top-level modules."""
    return {module: each.framework for each in others() for module in each.modules}


@cache
def annotated_types() -> dict[str, str]:
    """Names of types by the dotted names that annotations give them."""
    return {dotted: one.name for one in types().values() for dotted in one.annotations}


@cache
def wrappers() -> dict[str, str]:
    """Decorators and transforms of functions, and the type of what they give."""
    return {dotted: one.gives for each in others() for one in each.wrappers for dotted in one.names}


@cache
def tracing_modules() -> tuple[str, ...]:
    """Modules whose functions trace the functions that they are given."""
    return tuple(f"{dotted.partition('.')[0]}." for dotted in wrappers())


@cache
def traced_bases() -> frozenset[str]:
    """Classes whose methods are traced."""
    return frozenset(base for each in others() for base in each.traced_bases)


@cache
def tasks() -> frozenset[str]:
    """Decorators of functions that run elsewhere, once for each call."""
    return frozenset(dotted for each in others() for dotted in each.tasks)


@cache
def module_from() -> dict[str, str]:
    """Functions that give a framework's module itself, and that module."""
    return {dotted: each.modules[0] for each in others() for dotted in each.modules_from}


@cache
def made_by(dotted: str) -> ForeignType | None:
    """The type of what a function or class of a framework gives back."""
    for one in types().values():
        if matches(one.made_by, dotted) and not matches(one.not_made_by, dotted):
            return one
    return None


@cache
def barriers() -> tuple[Barrier, ...]:
    """The barriers of these frameworks that the generic rule judges."""
    return tuple(barrier for each in others() for barrier in each.barriers.values() if not barrier.own_rule)


@cache
def allowing_one_wait() -> frozenset[str]:
    """The frameworks of which one wait in each turn of a loop is right."""
    return frozenset(each.framework for each in others() if each.allows_one_wait)


def matches(patterns: tuple[str, ...], dotted: str) -> bool:
    """Whether a dotted name is in a list of names and `prefix.*` patterns."""
    return any(dotted.startswith(pattern[:-1]) if pattern.endswith(".*") else dotted == pattern for pattern in patterns)
