"""Function summaries: the results of a run of a function, and the state of a function between runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gpusync_lint.inference.dependencies import Reader
from gpusync_lint.project.effects import Effects

if TYPE_CHECKING:
    import ast
    from collections.abc import Mapping

    from gpusync_lint.domain.values import Device, Value
    from gpusync_lint.inference.dependencies import Fact
    from gpusync_lint.project.symbols import FunctionDef


class Parameter(NamedTuple):
    """A parameter of a function, as the function declares it."""

    name: str
    argument: str
    """The key of its argument in `FunctionState.arguments`; empty if it has none: `self`, `**kwargs`."""
    fallback: Value
    """The value if the call sites do not show it."""
    on_host: bool = False
    """Whether its annotation is that of a number or a string, which overrides the arguments."""
    default_name: str = ""
    """The name of the module that is its default value; empty if the default is something else."""
    is_module: bool = False
    """Whether its annotation is that of a module, which a tensor is not."""
    on_cpu: bool = False
    """Whether its default is the device `"cpu"`, which holds if all calls in the project leave it out."""


class Signature(NamedTuple):
    """The parameters of a function, and what they depend on."""

    round: int
    parameters: list[Parameter]
    dependencies: Mapping[Fact, int]
    device: Device | None
    """The assumed device that was read; None if none was."""


@dataclass(eq=False, slots=True)
class FunctionSummary:
    """The results of one run of a function.

    During the run, `returns`, `scope` and `values` are those of the run before, for recursive calls and closures;
    `effects` are until it begins.
    """

    reader: Reader
    """What the run depends on."""
    revision: int = 0
    """The revision at which the run began."""
    entry: dict[str, Value] = field(default_factory=dict)
    """The values of the parameters."""
    returns: Value | None = None
    """The return value; None if no run has ended."""
    tuples: dict[int, Value] = field(default_factory=dict)
    """By length, the tuples among the return values, of a function that returns other values as well."""
    scope: dict[str, Value] = field(default_factory=dict)
    """The values of the local names at the end of the body, which closures see."""
    effects: Effects = field(default_factory=Effects)
    values: dict[ast.expr, Value] = field(default_factory=dict)
    """The values of the expressions. Missing expressions are unknown."""

    def next(self, revision: int) -> FunctionSummary:
        """The summary for the next run, which begins at a revision."""
        return FunctionSummary(
            Reader(self.reader.fn), revision, {}, self.returns, self.tuples, self.scope, self.effects, self.values
        )


@dataclass(eq=False, slots=True)
class FunctionState:
    """The state of a function between runs."""

    fn: FunctionDef
    summary: FunctionSummary
    """The results of the last run, or of the run in progress."""
    arguments: dict[str, Value] = field(default_factory=dict)
    """By parameter, the join of the arguments of all call sites."""
    arguments_revision: int = 0
    """The revision in which `arguments` changed last."""
    signature: Signature | None = None
    """The parameters as the function declares them."""
    runs: int = 0
    running: bool = False
    checked: int = 0
    """The last revision at which the last run was found not to be outdated."""
    variants: int = 0
    """The number of runs for the arguments of single calls in this round."""


class Interpreter(Protocol):
    """Runs functions on demand. `Inference` implements it."""

    def summary(self, fn: FunctionDef) -> FunctionSummary:
        """The results of a function, empty ones if it has not run."""

    def run_once(self, fn: FunctionDef) -> None:
        """Run a function, unless it has run."""

    def is_too_deep(self) -> bool:
        """Whether as many calls as possible are being followed into each other."""
