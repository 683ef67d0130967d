"""GS710: streams that are created in every step."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.catalogue import registry
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.blocks import around
from gpusync_lint.rules.base.context import Report, Rule, RuleContext

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENTRIES = {
    name: key
    for key, barrier in registry.all_barriers().items()
    if key.endswith("stream-per-step")
    for name in barrier.functions
}
"""The entries of the functions and classes that create a stream, by their dotted names."""


_ONCE = ("__init__", "__post_init__")
"""Methods in which a stream is created once for its object."""


class StreamPerStep(Rule):
    """`torch.cuda.Stream()` in a loop, but not where it is created only if there is none yet."""

    nodes = (ast.Call,)
    calls = frozenset(_ENTRIES)
    barriers = tuple(dict.fromkeys(_ENTRIES.values()))
    VALID: ClassVar = ("side = torch.cuda.current_stream()", "with torch.cuda.stream(None):\n    y = x @ x2")
    INVALID: ClassVar = (
        "side = torch.cuda.Stream()\nwith torch.cuda.stream(side):\n    y = x @ x2",
        "with torch.cuda.stream(torch.cuda.Stream(priority=-1)):\n    y = x @ x2",
        "sides = [torch.cuda.Stream() for _ in range(4)]",
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        entry = _ENTRIES.get(context.qualified_name(node.func))
        if entry is not None and context.function.name not in _ONCE and not _is_kept(context):
            yield Report(entry, node, Confidence.HIGH)


def _is_kept(context: RuleContext) -> bool:
    """Whether the statement stands under a test for None, or for something missing: `if self.stream is None`."""
    tests = (
        block[at].test  # type: ignore[attr-defined]
        for block, at in around(context.function, context.statement)
        if isinstance(block[at], ast.If)
    )
    return any(
        isinstance(node, (ast.Is, ast.IsNot, ast.NotIn)) or (isinstance(node, ast.Name) and node.id == "hasattr")
        for test in tests
        for node in ast.walk(test)
    )
