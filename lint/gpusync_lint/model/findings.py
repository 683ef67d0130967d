"""Findings and related plain data, shared by the engine, the outputs and the fixes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusync_lint.catalogue.schema import Barrier
    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.levels import Confidence, Heat
    from gpusync_lint.model.operations import Operation
    from gpusync_lint.model.placement import CallGraph, Capture, Entry, Place
    from gpusync_lint.model.spans import Span
    from gpusync_lint.model.units import Unit


class UserError(ValueError):
    """The user's input cannot be used. The message is one line for the user."""


MARKER = "gpusync:"
"""The text that marks a comment as one for the linter."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file to lint. It is read, never executed."""

    path: str
    """As displayed: relative to the working directory if it is below it, with forward slashes."""
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A change that removes the wait. It is `safe` if values, types and the timing of errors stay the same."""

    title: str
    """An imperative: "Build the tensor on the device"."""
    operations: tuple[Operation, ...]
    """`rewrite.codemod` writes all of them or none."""
    safe: bool
    hazard: str | None = None
    """One sentence about what an unsafe fix may break."""


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A graph of torch.compile that a line breaks."""

    path: str
    """Where the function, or one that calls it, is compiled."""
    line: int
    settings: str | None
    """The settings of ``torch._dynamo.config`` with which the graph does not break; None if none is known."""
    fullgraph: bool
    """Whether it is compiled with ``fullgraph=True``, which enables these settings: then the line is an error."""

    @property
    def sentence(self) -> str:
        """What the line does to the graph, as a clause."""
        what = "is an error with `fullgraph=True`" if self.fullgraph else "breaks the graph"
        unless = "" if self.settings is None else f", unless `torch._dynamo.config` sets {self.settings}"
        return f"{what} ({self.path}:{self.line} compiles it){unless}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of code that a rule reports as a wait."""

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
    """Identifies the finding without its line number; see `finding_keys`."""
    fix: Fix | None = None
    suppressed: str | None = None
    """The reason in the comment that allows it; None if no comment does."""
    unit: Unit | None = None
    """What the line runs once per; None unless its heat is `step`."""
    capture: Capture | None = None
    """The capture of CUDA graphs that the line runs in; None if it runs in none, or that does not matter."""
    graph_break: GraphBreak | None = None
    """The graph that it breaks; None if it is not known to break one."""

    @property
    def advice(self) -> str:
        """The remedy, and what the line does to a graph of torch.compile, for outputs with one text for both."""
        broken = self.graph_break
        return self.remedy if broken is None else f"{self.remedy}; torch.compile: {broken.sentence}"


@dataclass(frozen=True, slots=True)
class FileError:
    """A file that could not be linted."""

    path: str
    line: int | None
    message: str
    cell: int | None = None
    """The number of the cell in which `line` counts; None for a file that is no notebook."""

    @property
    def message_with_cell(self) -> str:
        """The message, preceded by the cell if there is one."""
        if self.cell is None:
            return self.message
        return f"cell {self.cell}{'' if self.line is None else f', line {self.line}'}: {self.message}"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the configuration says about the project."""

    torch_version: tuple[int, int] = (2, 11)
    """The oldest torch that the project runs on. What waits up to some version only is reported if it waits there."""
    step_functions: tuple[str, ...] = ()
    """Functions, by name or dotted name, that run in every step although the source does not show it."""
    barriers: tuple[Barrier, ...] = ()
    """Barriers that the configuration describes."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """What the engine found in a set of files: findings of all codes, heats and confidences, by path and line."""

    findings: tuple[Finding, ...]
    errors: tuple[FileError, ...]
    files: int
    links: PartLinks | None = None
    """For files that are part of a larger component."""
    entries: Mapping[Key, Entry] = field(default_factory=dict, compare=False)
    """For files that are all of their component, the functions that are entered repeatedly."""


@dataclass(frozen=True, slots=True)
class PartLinks:
    """What joins a part with the other parts of its component. The heat of its findings depends on all of them."""

    graph: CallGraph
    places: tuple[Place | None, ...]
    """For each finding, its position in the graph; None if its rule has decided its heat."""
    dependencies: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """What the part uses of other files, by their numbers: labels, as in `outline.Outline`, each with its digest."""
