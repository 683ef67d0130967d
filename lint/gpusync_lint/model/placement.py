"""The call graph of a project as plain data, and the position of a finding in it.

Nothing here refers to syntax trees: worker processes send these values to the process that joins the parts of a
project, and the cache keeps them.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.levels import Heat


class PathKind(Enum):
    """What decides how often the statements inside it run."""

    LOOP = "loop"
    GUARD = "guard"
    """A block that runs in few steps only: ``if step % 100 == 0``."""
    EXIT = "exit"
    """A block that leaves the loop around it."""
    ERROR = "error"
    """A block that raises an exception."""


class PathNode(NamedTuple):
    """One loop, guard, exit or error on the path to a statement."""

    kind: PathKind
    line: int = 0
    """The first line of a loop, which identifies it within its function; 0 for the other kinds."""


Path = tuple[PathNode, ...]
"""What lies between the entry of a function and a statement in it, from the outermost to the innermost."""


def loops_of(path: Path) -> tuple[int, ...]:
    """The lines of the loops on a path, from the outermost to the innermost."""
    return tuple(node.line for node in path if node.kind is PathKind.LOOP)


class StepEvidence(IntEnum):
    """What shows that code is part of a step of a training or generation loop, from the weakest to the strongest."""

    LAYER = 1
    """A module calls a part of itself."""
    MODEL = 2
    """A model is called."""
    UPDATE = 3
    """An optimizer makes its step, or gradients are cleared."""
    TRAINING = 4
    """A loss is differentiated."""
    STEP_LOOP = 5
    """A whole loop of steps runs."""


class Evidence(NamedTuple):
    """Evidence of a step in a function."""

    kind: StepEvidence
    loops: tuple[int, ...]
    """The loops around it, as in `loops_of`."""


class Call(NamedTuple):
    """A call of a function of the project by another one."""

    callee: Key
    path: Path
    repeated: bool
    """Whether it is inside a comprehension."""


class FunctionNode(NamedTuple):
    """All that decides how often the lines of one function run, without its source."""

    convention: Heat
    """How often a framework calls the function, as far as its name and its class show."""
    memoized: bool = False
    """Whether a decorator keeps its results."""
    is_helper: bool = False
    """Whether it is a method other than ``forward``."""
    in_module: bool = False
    """Whether it is a method of a ``torch.nn.Module``."""
    evidence: tuple[Evidence, ...] = ()
    calls: tuple[Call, ...] = ()
    data_loops: tuple[tuple[int, ...], ...] = ()
    """The loops over a data loader, each preceded by the loops around it, as in `loops_of`."""


CallGraph = dict["Key", FunctionNode]
"""The functions of some files. They may call functions of other files."""


class LoopKind(Enum):
    """What a loop repeats, if that is more than the statements in it."""

    STEPS = "steps"
    EPOCHS = "epochs"


class FunctionHeat(NamedTuple):
    """How often a function runs, and what its loops repeat."""

    entry: Heat
    """How often the function is entered."""
    loops: Mapping[int, LoopKind]
    """By the lines of its loops."""


class Place(NamedTuple):
    """The position of a finding in the call graph."""

    function: Key
    path: Path
    repeated: bool = False
    """Whether it is inside a comprehension."""
    deferred: bool = False
    """Whether it is inside code that may be called later, or never."""
