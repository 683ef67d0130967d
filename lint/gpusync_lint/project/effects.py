"""The effects of running a function, apart from its result, which the call graph and the rules need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import ast

    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.levels import Heat
    from gpusync_lint.model.placement import PathKind, StepEvidence
    from gpusync_lint.model.units import Unit
    from gpusync_lint.project.symbols import FunctionDef


@dataclass(eq=False, slots=True, repr=False)
class CallSite:
    """A call of one project function by another."""

    callee: FunctionDef
    statement: ast.stmt
    repeated: bool
    """Inside a comprehension."""
    of_layer: bool = False
    """Whether the loop around it iterates over modules, and calls each of them."""


@dataclass(eq=False, slots=True, repr=False)
class Effects:
    """What one run of a function did."""

    calls: list[CallSite] = field(default_factory=list)
    unread: list[tuple[Key, ast.stmt, bool]] = field(default_factory=list)
    """Calls of functions that were not read: their keys, and otherwise the same as `calls`."""
    step_evidence: list[tuple[StepEvidence, ast.stmt]] = field(default_factory=list)
    """What shows that the function is part of a step, each with its statement."""
    captured: list[tuple[FunctionDef, ast.stmt, PathKind]] = field(default_factory=list)
    """Functions that are passed to something that captures CUDA graphs of them, with the kind of capture."""
    batch_loops: set[ast.stmt] = field(default_factory=set)
    """Loops that iterate over a data loader."""
    calls_unknown: bool = False
    """Whether it passes tensors to something unknown."""
    dead: set[ast.stmt] = field(default_factory=set)
    """Statements that run only if there is no GPU."""


class Runs(Protocol):
    """What the inference has found out about the functions of a project."""

    def effects(self, fn: FunctionDef) -> Effects:
        """The effects of a function; none if it was not run."""

    def has_run(self, fn: FunctionDef) -> bool:
        """Whether a function was run at all."""

    def is_passed(self, fn: FunctionDef, parameter: str) -> bool:
        """Whether a call in the project passes an argument for a parameter."""

    def callback_heat(self, fn: FunctionDef) -> Heat | None:
        """How often a framework calls a function that was passed to it; None if it was not passed to one."""

    def callback_unit(self, fn: FunctionDef) -> Unit | None:
        """What a framework calls such a function once per; None if that is not known."""
