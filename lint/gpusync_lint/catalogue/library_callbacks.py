"""The methods that libraries call in every step, by the class that people derive from: `library_callbacks.json`."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources


@cache
def per_step(base: str) -> frozenset[str]:
    """The methods of a base class, given by the last part of its name, that its library calls in every step."""
    return _methods().get(base, frozenset())


@cache
def _methods() -> dict[str, frozenset[str]]:
    written = resources.files("gpusync_lint.catalogue").joinpath("library_callbacks.json").read_text("utf-8")
    found: dict[str, frozenset[str]] = {}
    for library in json.loads(written).values():
        classes: dict[str, list[str]] = library["classes"]
        derived: dict[str, str] = library["derived"]
        for name, of in {**{name: name for name in classes}, **derived}.items():
            found[name] = found.get(name, frozenset()) | frozenset(classes[of])
    return found
