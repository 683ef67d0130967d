"""What running a function does, beside giving back a value: for the call graph and for the rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import ast

    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.levels import Heat
    from gpusync_lint.project.symbols import FunctionDef


@dataclass(eq=False, slots=True, repr=False)
class CallSite:
    """A call of one project function by another."""

    callee: FunctionDef
    statement: ast.stmt
    repeated: bool
    """Inside a comprehension."""


@dataclass(eq=False, slots=True, repr=False)
class Effects:
    """What one run of a function did."""

    calls: list[CallSite] = field(default_factory=list)
    unread: list[tuple[Key, ast.stmt, bool]] = field(default_factory=list)
    """Calls of functions that are known by name only, for there was no room to read them; otherwise like `calls`."""
    step_evidence: list[tuple[str, ast.stmt]] = field(default_factory=list)
    """Evidence of a training step, and the statement that holds it: `strong` (backward, optimizer), `weak` (a model is
    called) or `layer` (a module calls a part of itself)."""
    batch_loops: set[ast.stmt] = field(default_factory=set)
    """Loops that iterate over a data loader."""
    calls_unknown: bool = False
    """Whether it hands tensors to something of which nothing is known."""
    dead: set[ast.stmt] = field(default_factory=set)
    """Statements that run only where there is no GPU."""


class Runs(Protocol):
    """What is known of the functions of a project once they have been run."""

    def effects(self, fn: FunctionDef) -> Effects:
        """What running a function does; nothing for one that has not run."""

    def has_run(self, fn: FunctionDef) -> bool:
        """Whether a function was run at all."""

    def callback_heat(self, fn: FunctionDef) -> Heat | None:
        """How often a framework calls a function that it was given; None for one that it was not given."""
