"""What the rules of races have in common: one analysis of a function serves all of them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.rules.base.context import Report, Rule, RuleContext
from gpusync_lint.rules.ordering.statements import functions_of, may_race, races_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.model.findings import Fix
    from gpusync_lint.rules.ordering.state import Kind, Race

_MARKS = (ast.Attribute, ast.BinOp, ast.Call, ast.Compare, ast.Name, ast.Subscript)
"""The expressions that access memory."""


class UnorderedRule(Rule):
    """What the rules of races have in common: all of them look at the same analysis of a function."""

    nodes = _MARKS
    after_others = True
    kind: ClassVar[Kind]

    def applies_to(self, context: RuleContext) -> bool:
        """Whether the file contains a word without which there is no race."""
        return context.file.uses_framework and may_race(context.file.text)

    def applies_after_others(self, context: RuleContext) -> bool:
        """Whether the file has a race of this kind."""
        return any(race.kind is self.kind for races in _races(context).values() for race, _ in races)

    def check(self, node: ast.expr, context: RuleContext) -> Iterator[Report]:
        """Check an expression."""
        for race, is_first in _races(context).get(node, ()):
            if race.kind is self.kind:
                fix = self.fix(race, context) if is_first else None
                message = self.message(race)
                yield Report(self.barriers[0], node, Confidence.HIGH, message=message, fix=fix, heat=Heat.ANY)

    def message(self, race: Race) -> str:
        """One sentence with the names and lines of a race."""
        raise NotImplementedError

    def fix(self, race: Race, context: RuleContext) -> Fix | None:
        """The wait that is missing. Offered once for each earlier access, since it orders all later ones."""
        raise NotImplementedError


def _races(context: RuleContext) -> dict[ast.expr, list[tuple[Race, bool]]]:
    """The races of the file, by the expression to underline, each with whether it is the first of its access."""
    known: dict[ast.expr, list[tuple[Race, bool]]] | None = context.races
    if known is None:
        known = context.races = {}
        causes: set[tuple[Kind, ast.expr]] = set()
        seen: set[tuple[Kind, ast.expr]] = set()
        for fn in functions_of(context.file):
            for race in races_of(fn, context):
                if (race.kind, race.node) not in seen:
                    seen.add((race.kind, race.node))
                    cause = (race.kind, race.earlier.node)
                    known.setdefault(race.node, []).append((race, cause not in causes))
                    causes.add(cause)
    return known
