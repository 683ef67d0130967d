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
    from gpusync_lint.model.units import Unit


class PathKind(Enum):
    """What decides how often the statements inside it run."""

    LOOP = "loop"
    GUARD = "guard"
    """A block that runs in few steps only: ``if step % 100 == 0``."""
    FEW = "few"
    """A block that runs in few iterations of the loop around it: ``for i, layer in enumerate(layers): if i == 0:``."""
    EXIT = "exit"
    """A block that leaves the loop around it."""
    ERROR = "error"
    """A block that raises an exception, or ends the program."""
    CAPTURE = "capture"
    """The statements from which a CUDA graph is captured."""
    COMPILED = "compiled"
    """A function that `torch.compile` captures in CUDA graphs."""
    FULL_GRAPH = "full graph"
    """The same, with `fullgraph=True`."""
    EAGER = "eager"
    """A block that does not run during a capture: the first call runs it, or its condition says so."""
    DEFAULT = "default"
    """A block that runs only if the caller leaves out an argument: ``if lengths is None: lengths = ...``."""


CAPTURES = frozenset({PathKind.CAPTURE, PathKind.COMPILED, PathKind.FULL_GRAPH})
"""The kinds of captures."""


class PathNode(NamedTuple):
    """One loop, guard, exit or error on the path to a statement."""

    kind: PathKind
    line: int = 0
    """The first line of a loop, capture or periodic guard, which identifies it within its function; 0 for others."""
    parameter: str = ""
    """The name of the parameter of a `DEFAULT` block."""


Path = tuple[PathNode, ...]
"""What lies between the entry of a function and a statement in it, from the outermost to the innermost."""


def loops_of(path: Path) -> tuple[int, ...]:
    """The lines of the loops on a path, from the outermost to the innermost."""
    return tuple(node.line for node in path if node.kind is PathKind.LOOP)


def guards_in_loop(path: Path) -> tuple[int, ...]:
    """The lines of the periodic guards on a path, within its innermost loop."""
    lines: list[int] = []
    for node in reversed(path):
        if node.kind is PathKind.LOOP:
            break
        if node.kind in (PathKind.GUARD, PathKind.FEW) and node.line:
            lines.append(node.line)
    return tuple(lines)


class StepEvidence(IntEnum):
    """What shows that code is part of a step of a training or generation loop."""

    LAYER = 1
    """A module calls a part of itself."""
    MODEL = 2
    """A model is called."""
    UPDATE = 3
    """An optimizer makes its step, or gradients are cleared."""
    TRAINING = 4
    """A loss is differentiated."""
    STEP_LOOP = 5
    """A loop of steps runs that do not train."""
    ACCUMULATION = 6
    """A loop runs that differentiates losses and leaves the update to the code around it."""
    TRAINING_LOOP = 7
    """A loop of training steps runs."""
    PASS = 8
    """A loop over data runs, or a loop of epochs."""


class Evidence(NamedTuple):
    """Evidence of a step in a function."""

    kind: StepEvidence
    path: Path
    """The path to its statement."""


class LoopForm(Enum):
    """What a loop repeats, as far as its header shows."""

    EPOCHS = "epochs"
    """``for epoch in range(epochs)``."""
    STEPS = "steps"
    """``while step < max_steps``."""
    DATA = "data"
    """Batches or samples, one after the other: ``for start in range(0, len(data), batch_size)``."""
    PART = "part"
    """Parts of one step: parameters, layers, a small constant number of updates."""
    HANDFUL = "handful"
    """A handful of iterations: ``for index in range(3)``. They are parts of a step, or samples that are shown."""
    CASES = "cases"
    """Listed settings: ``for dtype in (torch.float, torch.double)``. What is done with each is a part, or a check."""


class Call(NamedTuple):
    """A call of a function of the project by another one."""

    callee: Key
    path: Path
    repeated: bool
    """Whether it is inside a comprehension."""
    consumer: int = 0
    """The line of the loop that iterates over what the callee yields; 0 for none."""
    given: tuple[tuple[str, str], ...] = ()
    """The parameters of `DEFAULT` blocks that the call passes.

    Each with the caller's parameter that is passed on, if it is one with the default None; else empty.
    """


class Unseen(Enum):
    """What the name of a function says about how often it runs, if no call of it is visible."""

    NOTHING = "nothing"
    MODEL = "model"
    """In every step, if it runs a model: ``update``, or ``get_features`` of a module."""
    STEP = "step"
    """In every step: ``select_action``, ``focal_loss``, or ``decode`` of a module."""


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
    unit: Unit | None = None
    """What a framework calls the function once per, as far as its name, its class and its decorators show."""
    unit_loops: tuple[tuple[tuple[int, ...], Unit], ...] = ()
    """The loops that are recognized by their form, each preceded by the loops around it, and what they repeat."""
    forms: tuple[tuple[int, LoopForm], ...] = ()
    """The forms of its loops, by their lines, as far as they are known."""
    unseen: Unseen = Unseen.NOTHING
    outer: Call | None = None
    """For a function that is defined in another one: that function, and the path in it to the definition."""
    yield_loops: tuple[int, ...] = ()
    """The lines of its loops that yield, if it is a generator."""
    feeds_loader: bool = False
    """Whether a data loader iterates over what it yields, by the class that it belongs to."""
    is_task: bool = False
    """Whether it runs elsewhere, once for each call: under ``@ray.remote``."""


CallGraph = dict["Key", FunctionNode]
"""The functions of some files. They may call functions of other files."""


class LoopKind(Enum):
    """What a loop repeats, if that is more than the statements in it."""

    STEPS = "steps"
    EPOCHS = "epochs"


class Capture(NamedTuple):
    """A capture of CUDA graphs, and how code is reached from it."""

    kind: PathKind
    """One of `CAPTURES`."""
    path: str
    line: int
    """Where the capture is."""
    calls: tuple[str, ...] = ()
    """The qualified names of the functions that lead from the capture to the code; none if it is in the capture."""
    given: frozenset[str] = frozenset()
    """The parameters of the last of these functions that every captured call passes."""


class Entry(NamedTuple):
    """How often a function is entered."""

    heat: Heat
    unit: Unit | None
    """What it is entered once per, if it is entered in every step and that is known."""


class FunctionHeat(NamedTuple):
    """How often a function runs, and what its loops repeat."""

    entry: Heat
    """How often the function is entered."""
    loops: Mapping[int, LoopKind]
    """By the lines of its loops."""
    unit: Unit | None = None
    """What the function is entered once per, if it is entered in every step and that is known."""
    loop_units: Mapping[int, Unit] = {}
    """By the lines of loops of steps, what they repeat, if that is known."""
    capture: Capture | None = None
    """The capture that the function runs in; None if it does not run in one."""
    training_guards: frozenset[int] = frozenset()
    """The lines of the periodic guards whose blocks train: ``if step % accumulate == 0: optimizer.step()``."""


class Place(NamedTuple):
    """The position of a finding in the call graph."""

    function: Key
    path: Path
    repeated: bool = False
    """Whether it is inside a comprehension."""
    deferred: bool = False
    """Whether it is inside code that may be called later, or never."""
