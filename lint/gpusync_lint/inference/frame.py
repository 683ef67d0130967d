"""The state of one abstract run of a function, and what transfer functions may ask of the rest of the project."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from gpusync_lint.domain.environment import Environment
from gpusync_lint.domain.lattice import HOST, Value, any_tensor, join
from gpusync_lint.inference.tables import EXPRESSIONS, STATEMENTS
from gpusync_lint.project.effects import Effects

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable, Mapping, Sequence

    from gpusync_lint.domain.lattice import Device
    from gpusync_lint.inference.dependencies import Reader
    from gpusync_lint.inference.named_barriers import NamedBarriers
    from gpusync_lint.inference.summaries import FunctionSummary
    from gpusync_lint.model.levels import Heat
    from gpusync_lint.model.placement import StepEvidence
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import ClassDef, FunctionDef, ModuleDef

_MAX_RUNS = 2
"""Runs through a body whose loops carry values from one iteration to the next."""


class Interprocedural(Protocol):
    """What transfer functions ask of the rest of the project, and tell it.

    `reader` is who asks: it depends on the answer, and a run is repeated when that changes. `caller` is the run that
    calls.
    """

    project: Project
    named: NamedBarriers

    # names
    def outer_name(self, reader: Reader, name: str) -> Value | None:
        """What a name holds in the functions and the module around a run; None for a name that nothing binds."""

    def module_name(self, reader: Reader, name: str) -> Value | None:
        """What a name holds in the module of a run."""

    def member(self, reader: Reader, file: ModuleDef, name: str) -> Value:
        """What a module of the project holds under a name."""

    def annotation(self, reader: Reader, node: ast.expr) -> Value:
        """The value that a type annotation declares."""

    # classes
    def attribute(self, reader: Reader, cls: ClassDef, name: str) -> Value | None:
        """What an attribute of instances holds; None when it was never seen."""

    def set_attribute(self, owner: Value, name: str, value: Value) -> None:
        """Note that an attribute of a class's instances may hold a value."""

    def define_attribute(self, cls: ClassDef, name: str, value: Value) -> None:
        """Note that the body of a class binds an attribute."""

    def instantiate(self, caller: Frame, cls: ClassDef, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        """Make an instance of a project class."""

    def instance(self, method: FunctionDef) -> Value:
        """An instance of the class of a method, as the method itself sees it."""

    def is_moved(self, reader: Reader, cls: ClassDef) -> bool:
        """Whether some instance of a class was moved to a device."""

    def note_moved(self, cls: ClassDef) -> None:
        """Note that an instance of a class was moved to a device."""

    # functions
    def publish_scope(self, frame: Frame) -> None:
        """Let closures, and other functions of a module, see the names of a run."""

    def call(self, caller: Frame, fn: FunctionDef, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        """Call a project function: its parameters learn what is passed, the caller learns what it returns."""

    def call_targets(self, path: str | None, name: str) -> list[FunctionDef]:
        """The methods that a call of something unknown may mean."""

    def wrapper(self, fn: FunctionDef) -> str:
        """The type of value that a decorator of another framework makes of a function; empty for none."""

    def note_traced(self, fn: FunctionDef) -> None:
        """Note that another framework traces a function."""

    def note_callback(self, fn: FunctionDef, heat: Heat) -> None:
        """Note how often a framework calls a function that it was given."""

    def pass_batches(self, fn: FunctionDef) -> None:
        """Note that a function `update(engine, batch)` is called with what a data loader yields."""

    def carried_names(self, loop: ast.For | ast.AsyncFor | ast.While) -> frozenset[str]:
        """The names through which one iteration of a loop may reach the next."""

    # devices
    def assumed_device(self, fn: FunctionDef) -> Device:
        """Where the tensors of a function lie, if its code is conventional."""

    def uses_gpu_by_default(self, file: ModuleDef) -> bool:
        """Whether new tensors are made on the GPU unless told otherwise."""

    def is_built_on_device(self, reader: Reader) -> bool:
        """Whether some `with device:` block of the project makes its modules on a device."""

    def note_built_on_device(self) -> None:
        """Note that there is such a block."""


class Frame:
    """One run of a function. Transfer functions read and change it; nothing else does."""

    def __init__(
        self,
        analysis: Interprocedural,
        fn: FunctionDef,
        summary: FunctionSummary,
        evidence: tuple[frozenset[str], frozenset[str]],
    ) -> None:
        self.analysis = analysis
        self.fn = fn
        self.summary = summary
        """What is found out; filled during the run."""
        self.reader = summary.reader
        """What the run depends on."""
        self.values: dict[ast.expr, Value] = {}
        """What is known of expressions."""
        self.store: Environment
        """What names and dotted paths hold at this point."""
        self.names: dict[str, Value]
        """The values of `store`."""
        self.statement: ast.stmt
        """The statement that is being executed."""
        self.repeated = 0
        """How many comprehensions are around the expression."""
        self.device_blocks: list[Device] = []
        """The devices of the `with device:` blocks around the statement."""
        self.loops: list[ast.stmt] = []
        """The loops around the statement."""
        self.carried: dict[ast.stmt, dict[str, Value]] = {}
        """By loop, what its iterations bind, for the next run."""
        self.is_incomplete = False
        """Whether an iteration of a loop may read what a later part of the body bound."""
        self.lambdas: list[ast.Lambda] = []
        """The lambdas that are being called."""
        self.backward_paths, self.module_paths = evidence
        """Paths on which `backward()` is called, and paths on which methods are called that only modules have."""
        self._returns: Value | None = None

    def run(self, body: list[ast.stmt]) -> None:
        """Execute a body, given what the parameters hold; fills the summary."""
        for _ in range(_MAX_RUNS):
            self.store = Environment(dict(self.summary.entered))
            self.names = self.store.values
            self.summary.effects = Effects()
            self._returns = None
            self.is_incomplete = False
            if self.fn.is_module:
                for statement in body:
                    with suppress(RecursionError):  # nested too deeply to follow; the next ones are not
                        self.execute([statement])
            else:
                self.execute(body)
            self.analysis.publish_scope(self)
            if not self.is_incomplete:
                break
        self.summary.values = self.values
        self.summary.returns = self._returns if self._returns is not None else HOST

    def execute(self, body: list[ast.stmt]) -> None:
        """Execute the statements of a block in order."""
        for statement in body:
            self.statement = statement
            STATEMENTS[statement.__class__](self, statement)

    def eval(self, node: ast.expr) -> Value:
        """What an expression holds; kept for the rules when anything is known."""
        value: Value = EXPRESSIONS[node.__class__](self, node)
        if value.kind:
            self.values[node] = value
        return value

    def assumed_device(self) -> Device:
        """Where tensors of conventional training code lie."""
        return self.analysis.assumed_device(self.fn)

    def declared(self, annotation: ast.expr) -> Value:
        """The value that a type annotation declares."""
        return self.analysis.annotation(self.reader, annotation)

    def note_return(self, value: Value) -> None:
        """Note what the function gives back."""
        self._returns = value if self._returns is None else join(self._returns, value)

    def note_step_evidence(self, kind: StepEvidence) -> None:
        """Note that the statement shows that its code is part of a step."""
        self.summary.effects.step_evidence.append((kind, self.statement))

    def note_unknown_call(self, args: Iterable[Value], kwargs: Mapping[str, Value]) -> None:
        """Note that something of which nothing is known is called."""
        effects = self.summary.effects
        if not effects.calls_unknown:
            effects.calls_unknown = any_tensor(args, kwargs)

    def is_in_batch_loop(self) -> bool:
        """Whether the statement stands in a loop over a data loader."""
        return any(loop in self.summary.effects.batch_loops for loop in self.loops)

    def is_in_module(self) -> bool:
        """Whether the function is a method of a `torch.nn.Module`."""
        return self.fn.cls is not None and self.analysis.project.classes.is_module(self.fn.cls)
