"""What the inference knows of one function."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpusync_lint.inference.dependencies import Reader
from gpusync_lint.project.effects import Effects

if TYPE_CHECKING:
    import ast

    from gpusync_lint.domain.lattice import Value
    from gpusync_lint.inference.entry_state import Declared
    from gpusync_lint.project.symbols import FunctionDef


@dataclass(eq=False, slots=True)
class FunctionSummary:
    """What one run of a function, with certain arguments, found out. While it is under way, what was known before."""

    reader: Reader
    """What it depends on."""
    revision: int = 0
    """The revision at which the run began."""
    entered: dict[str, Value] = field(default_factory=dict)
    """What its parameters held."""
    returns: Value | None = None
    """What it gives back; None as long as no run has ended."""
    scope: dict[str, Value] = field(default_factory=dict)
    """What its local names hold at its end: what closures see."""
    effects: Effects = field(default_factory=Effects)
    values: dict[ast.expr, Value] = field(default_factory=dict)
    """What its expressions hold; those that are missing are unknown."""

    def next(self, revision: int) -> FunctionSummary:
        """The summary of the next run, which begins with what this one knows."""
        return FunctionSummary(Reader(self.reader.fn), revision, {}, self.returns, self.scope, Effects(), self.values)


@dataclass(eq=False, slots=True)
class FunctionState:
    """What is kept of a function between its runs."""

    fn: FunctionDef
    summary: FunctionSummary
    """Of the last run, or of the one that is under way."""
    arguments: dict[str, Value] = field(default_factory=dict)
    """What call sites passed, joined."""
    arguments_revision: int = 0
    """The revision in which `arguments` changed last."""
    declared: Declared | None = None
    """What the function declares of its parameters."""
    runs: int = 0
    running: bool = False
    checked: int = 0
    """The revision up to which nothing that the last run read has changed."""
    variants: int = 0
    """Runs in this round for the arguments of one call alone."""
