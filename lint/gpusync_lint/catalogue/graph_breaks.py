"""Which waits break a graph of torch.compile, measured by benchmarks/graph_breaks.py.

The file graph_breaks.json has an entry for each release, and in it for each barrier the effect by the form of the
expression: the name of what is called, or ``*`` for all other forms. What it does not contain is not known.
"""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("graph_breaks.json")

CAPTURED: Final = "captured"
"""It becomes a part of the graph."""
BREAKS: Final = "breaks"
"""It breaks the graph, whatever the settings."""
DEPENDS: Final = "breaks-by-default"
"""It breaks the graph with the default settings; whether a setting changes that depends on its operands."""

SCALARS: Final = "capture_scalar_outputs"
SHAPES: Final = "capture_dynamic_output_shape_ops"
ALL_SETTINGS: Final = frozenset({SCALARS, SHAPES})
SETTINGS: Final = {
    (SCALARS,): SCALARS,
    (SHAPES,): SHAPES,
    (SCALARS, SHAPES): f"{SCALARS} and {SHAPES}",
}
"""Effects that name the settings of ``torch._dynamo.config`` with which it does not break the graph."""


def effect(barrier: str, node: ast.expr, release: tuple[int, int]) -> str | None:
    """What Dynamo does with an expression that waits, in a release of torch; None if that is not known.

    If the release was not measured, the next newer one that was stands for it, else the newest.
    """
    found = _effects(release).get(barrier, {})
    return found.get(form(node)) or found.get("*")


def is_captured_with(effect: str, enabled: frozenset[str]) -> bool:
    """Whether an expression with this effect becomes a part of the graph if these settings are enabled."""
    if effect == DEPENDS:
        return bool(enabled)
    return effect == CAPTURED or any(effect == name and enabled.issuperset(needed) for needed, name in SETTINGS.items())


def form(node: ast.expr) -> str:
    """The name of what an expression calls; empty for an expression that is no call."""
    if not isinstance(node, ast.Call):
        return ""
    func = node.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


@cache
def _effects(release: tuple[int, int]) -> dict[str, dict[str, str]]:
    releases = json.loads(FILE.read_text(encoding="utf-8"))
    known = {tuple(map(int, name.split("."))): entry["effects"] for name, entry in releases.items()}
    newer = [each for each in known if each >= release]
    found: dict[str, dict[str, str]] = known[min(newer) if newer else max(known)]
    return found
