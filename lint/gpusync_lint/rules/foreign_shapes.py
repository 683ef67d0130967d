"""Barriers of other frameworks that need more than a catalogue entry: kernels of Numba."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain.values import Kind
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.context import Report, Rule, RuleContext, arguments

if TYPE_CHECKING:
    from collections.abc import Iterator


class HostArgument(Rule):
    """A call of a Numba kernel with a NumPy array."""

    nodes = (ast.Call,)
    barriers = ("numba.host-argument",)
    VALID: ClassVar = ("print(np.ones(3))",)
    INVALID: ClassVar = ()

    def applies_to(self, context: RuleContext) -> bool:
        """Whether the file uses another framework, or contains values of one."""
        return context.uses_foreign_values

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        called = context.value(node.func)
        if called.kind is not Kind.FOREIGN or called.ref != "numba.launch":
            return
        for arg in arguments(node):
            if context.value(arg).kind is Kind.ARRAY and context.value(arg).certain:
                yield Report("numba.host-argument", arg, Confidence.MEDIUM)
                return
