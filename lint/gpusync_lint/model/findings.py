"""Findings and what they are made of: plain data shared by the engine, the outputs and the fixes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusync_lint.catalogue.schema import Barrier
    from gpusync_lint.model.levels import Confidence, Heat
    from gpusync_lint.model.operations import Operation
    from gpusync_lint.model.placement import Graph, Place
    from gpusync_lint.model.spans import Span


class UserError(ValueError):
    """Something given by the user that cannot be used, in one line."""


MARKER = "gpusync:"
"""What a comment that speaks to the linter holds."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file to lint. It is read, never executed."""

    path: str
    """As it is shown: relative to the working directory where it lies below it, with forward slashes."""
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A change that removes the sync. `safe` means that value, type and timing of errors are unchanged."""

    title: str
    """An imperative: "Build the tensor on the device"."""
    operations: tuple[Operation, ...]
    """`rewrite.codemod` writes all of them or none."""
    safe: bool
    hazard: str | None = None
    """What can go wrong with an unsafe fix, in one sentence."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One barrier call that a rule decided to report."""

    code: str
    name: str
    path: str
    span: Span
    message: str
    remedy: str
    heat: Heat
    confidence: Confidence
    framework: str
    key: str
    """Identifies the finding without its line number: path, function, code, normalized source and its ordinal there."""
    fix: Fix | None = None
    suppressed: str | None = None
    """The reason of the allow comment that covers it; None when it is live."""


@dataclass(frozen=True, slots=True)
class FileError:
    """A file that could not be linted, in one line."""

    path: str
    line: int | None
    message: str
    cell: int | None = None
    """Of a notebook: the number of the cell that `line` counts in."""

    @property
    def told(self) -> str:
        """The message, with the cell that it is about."""
        if self.cell is None:
            return self.message
        return f"cell {self.cell}{'' if self.line is None else f', line {self.line}'}: {self.message}"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the user may tell the engine about their project."""

    torch_version: tuple[int, int] = (2, 11)
    """Oldest torch that the project runs on; version-dependent barriers are reported when they wait on it."""
    step_functions: tuple[str, ...] = ()
    """Extra functions, by name or dotted name, that run every step."""
    barriers: tuple[Barrier, ...] = ()
    """The project's own."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """What the engine found in a set of files: all codes and all heats, unsuppressed, in path and line order."""

    findings: tuple[Finding, ...]
    errors: tuple[FileError, ...]
    files: int
    running: Running | None = None
    """Of files that are a part of what belongs together: what their heat depends on."""


@dataclass(frozen=True, slots=True)
class Running:
    """How the functions of a part run, for the heat of its findings once the other parts are known."""

    graph: Graph
    places: tuple[Place | None, ...]
    """Of each finding where it stands; None for one whose heat its rule has decided."""
    depends: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """What had a say of the files around it, by their numbers: labels, as in `definitions`, each with its digest."""
