"""The state of one run of a function, on which transfer functions operate."""

from __future__ import annotations

import ast
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from gpusync_lint.domain.environment import Environment
from gpusync_lint.domain.lattice import join, widened
from gpusync_lint.domain.training_idioms import stops_gradients
from gpusync_lint.domain.values import HOST, UNKNOWN, Gradient, Kind, Value, any_tensor, with_gradient
from gpusync_lint.inference.summaries import Interpreter
from gpusync_lint.inference.tables import EXPRESSIONS, STATEMENTS
from gpusync_lint.project.class_hierarchy import is_stub
from gpusync_lint.project.effects import Effects
from gpusync_lint.project.symbols import TOO_DEEP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusync_lint.domain.serving_loops import Schedule
    from gpusync_lint.domain.values import Device
    from gpusync_lint.inference.annotations import Annotations
    from gpusync_lint.inference.class_facts import ClassFacts
    from gpusync_lint.inference.device_policy import DevicePolicy
    from gpusync_lint.inference.instances import Instances
    from gpusync_lint.inference.named_barriers import NamedBarriers
    from gpusync_lint.inference.scopes import Scopes
    from gpusync_lint.inference.summaries import FunctionSummary
    from gpusync_lint.inference.tracing import Tracing
    from gpusync_lint.inference.usage_evidence import Evidence
    from gpusync_lint.model.levels import Heat
    from gpusync_lint.model.placement import StepEvidence
    from gpusync_lint.model.units import Unit
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import FunctionDef

_COMPUTING = (ast.Call, ast.BinOp, ast.UnaryOp, ast.Subscript, ast.IfExp)
"""Expressions that compute tensors. Others give another name to one, or hold several."""
_MAX_RUNS = 2
"""How often a body is executed if an iteration of a loop reads a value that a later statement of the loop binds."""


class Interprocedural(Interpreter, Protocol):
    """The parts of the analysis of a project that transfer functions use. `Inference` implements it.

    A `reader` argument is the run that reads a fact. It depends on the fact, and is repeated if the fact changes.
    """

    project: Project
    named: NamedBarriers
    annotations: Annotations
    scopes: Scopes
    classes: ClassFacts
    instances: Instances
    devices: DevicePolicy
    tracing: Tracing

    def call(
        self,
        caller: Frame,
        fn: FunctionDef,
        args: Sequence[Value],
        kwargs: Mapping[str, Value],
        of_layer: bool = False,
    ) -> Value:
        """Call a function of the project: pass the arguments to its parameters, and return its result.

        `of_layer` says that the loop around the call iterates over modules, and calls each of them.
        """

    def call_targets(self, path: str | None, name: str) -> list[FunctionDef]:
        """The methods that a call on something unknown may call; `path` is the dotted path of the receiver."""

    def record_callback(self, fn: FunctionDef, heat: Heat, unit: Unit | None = None) -> None:
        """Record how often a framework calls a function that is passed to it."""

    def record_lambda(self, node: ast.Lambda, caller: FunctionDef, statement: ast.stmt) -> None:
        """Record which statement calls a lambda."""

    def pass_batches(self, fn: FunctionDef) -> None:
        """Record that a framework calls `update(engine, batch)` with batches of a data loader."""

    def schedule_of(self, loop: ast.For) -> Schedule | None:
        """The timesteps or noise levels of a denoising loop; None for any other loop."""

    def carried_names(self, loop: ast.For | ast.AsyncFor | ast.While) -> frozenset[str]:
        """The names that may carry a value from one iteration of a loop to the next."""


class FunctionEnds(Exception):
    """Raised in a run for a single call by a statement after which none is reached."""


class Frame:
    """One run of a function. Only transfer functions read and change it."""

    def __init__(
        self,
        analysis: Interprocedural,
        fn: FunctionDef,
        summary: FunctionSummary,
        evidence: Evidence,
    ) -> None:
        self.analysis = analysis
        self.fn = fn
        self.summary = summary
        """The results, filled during the run."""
        self.reader = summary.reader
        """The dependencies of the run."""
        self.values: dict[ast.expr, Value] = {}
        """The values of expressions. Missing expressions are unknown."""
        self.store: Environment
        """The values of names and dotted paths at the current statement."""
        self.names: dict[str, Value]
        """The dict inside `store`, for fast access."""
        self.statement: ast.stmt
        """The current statement."""
        self.comprehensions = 0
        """The number of comprehensions around the current expression."""
        self.device_blocks: list[Device] = []
        """The devices of the `with device:` blocks around the current statement."""
        self.blocks_without_gradients = 0
        """The number of `with torch.no_grad():` blocks around the current statement."""
        self.loops: list[ast.stmt] = []
        """The loops around the current statement."""
        self.carried: dict[ast.stmt, dict[str, Value]] = {}
        """By loop, the values that an iteration binds, for the next execution of the body."""
        self.is_incomplete = False
        """Whether the body has to be executed again, because an iteration of a loop reads a value of the one before."""
        self.lambdas: list[ast.Lambda] = []
        """The lambdas that are being called, to stop recursion."""
        self.nested_lambdas = 0
        """The number of calls of lambdas in the current call of a lambda, at any depth."""
        self.last_case: ast.stmt | None = None
        """The last `elif` of a chain that compares the same with several strings: one of them applies."""
        self.evidence = evidence
        self.host_fields = analysis.project.host_fields(fn.file)
        """The names of tensors that the file declares to be kept on the host."""
        self.extended = analysis.scopes.extensions(self.reader)
        """By name, the values of containers that functions inside this one have changed."""
        self.outer_names: set[str] = set()
        """The names that the function declares as global or nonlocal."""
        self._returns: Value | None = None
        self._tuples: dict[int, Value] = {}

    def run(self, body: list[ast.stmt]) -> None:
        """Execute the body of the function, starting at `summary.entry`, and fill the summary."""
        for _ in range(_MAX_RUNS):
            self.store = Environment(dict(self.summary.entry))
            self.names = self.store.values
            self.summary.effects = Effects()
            self._returns = None
            self._tuples = {}
            self.is_incomplete = False
            with suppress(FunctionEnds):
                self.execute(body)
            for name in self.outer_names:
                if name in self.names:
                    self.analysis.scopes.extend(self.reader, name, self.names[name], declared=True)
            self.analysis.scopes.publish(self.summary, self.names)
            if not self.is_incomplete:
                break
        self.summary.values = self.values
        if self._returns is None:
            # A method without a body of its own is overridden in classes that are not known here.
            self._returns = UNKNOWN if self.fn.cls is not None and is_stub(self.fn.node) else HOST
        self.summary.returns = self._returns
        self.summary.tuples = {} if self._returns.kind is Kind.TUPLE else self._tuples

    def execute(self, body: list[ast.stmt]) -> None:
        """Execute the statements of a block in order."""
        for statement in body:
            self.statement = statement
            try:
                STATEMENTS[statement.__class__](self, statement)
            except RecursionError:  # continue with the next statement
                self.fn.file.limits.setdefault(TOO_DEEP, statement.lineno)

    def eval(self, node: ast.expr) -> Value:
        """Evaluate an expression. Its value is stored for the rules, unless it is unknown."""
        value: Value = EXPRESSIONS[node.__class__](self, node)
        if value.kind:
            self.values[node] = value
        return value

    def with_extension(self, name: str, value: Value) -> Value:
        """The value of a name together with what functions inside this one add to it."""
        added = self.extended.get(name)
        return value if added is None else join(value, added)

    def extend_outer(self, name: str, value: Value) -> None:
        """Record a change of a container that a function around this one holds under a name."""
        if not self.fn.is_module and name not in self.summary.entry:
            self.analysis.scopes.extend(self.reader, name, value)

    def assumed_device(self) -> Device:
        """The device of tensors, if nothing else shows it."""
        return self.analysis.devices.assumed_device(self.fn)

    def declared(self, annotation: ast.expr) -> Value:
        """The value of a type annotation."""
        return self.analysis.annotations.of(self.reader, annotation)

    def record_return(self, value: Value) -> None:
        """Join a value into the return value of the function."""
        self._returns = value if self._returns is None else widened(self._returns, value)
        if value.kind is Kind.TUPLE and value.items:
            self._record_tuple(value)
        elif isinstance(self.statement, ast.Return) and isinstance(self.statement.value, ast.Call):
            for one in self.tuples_of_call().values():
                self._record_tuple(one)

    def _record_tuple(self, value: Value) -> None:
        length = len(value.items or ())
        old = self._tuples.get(length)
        self._tuples[length] = value if old is None else widened(old, value)

    def tuples_of_call(self) -> Mapping[int, Value]:
        """The tuples that the function may return which the current statement has called last, by length.

        None unless it returns other values as well: `return loss, logits` in one branch, `return logits` in another.
        """
        calls = self.summary.effects.calls
        if not calls or calls[-1].statement is not self.statement:
            return {}
        return self.analysis.summary(calls[-1].callee).tuples

    def record_step_evidence(self, kind: StepEvidence) -> None:
        """Record that the current statement is evidence of a training step."""
        self.summary.effects.step_evidence.append((kind, self.statement))

    def record_unknown_call(self, args: Iterable[Value], kwargs: Mapping[str, Value]) -> None:
        """Record a call of something unknown."""
        effects = self.summary.effects
        if not effects.calls_unknown:
            effects.calls_unknown = any_tensor(args, kwargs)

    def is_for_one_call(self) -> bool:
        """Whether the run is for the arguments of a single call, and says nothing about others."""
        return self.summary is not self.analysis.summary(self.fn)

    def is_in_batch_loop(self) -> bool:
        """Whether the current statement is inside a loop over a data loader."""
        return any(loop in self.summary.effects.batch_loops for loop in self.loops)

    def computed(self, node: ast.expr) -> Value:
        """The value of an expression. What is computed without a graph has no gradient; another name of it keeps it."""
        value = self.eval(node)
        may_flow = value.gradient or value.kind is Kind.TUPLE
        if may_flow and isinstance(node, _COMPUTING) and not self.tracks_gradients():
            return with_gradient(value, Gradient.NONE)
        return value

    def tracks_gradients(self) -> bool:
        """Whether torch records a graph here, as far as the function shows."""
        return not self.blocks_without_gradients and self._tracks_gradients

    @cached_property
    def _tracks_gradients(self) -> bool:
        """Whether neither a decorator of the function nor the way autograd calls it says that it does not."""
        if self.analysis.project.classes.receives_context(self.fn):
            return False
        return not any(map(stops_gradients, getattr(self.fn.node, "decorator_list", ())))

    def is_in_module(self) -> bool:
        """Whether the function is a method of a `torch.nn.Module`."""
        return self.fn.cls is not None and self.analysis.project.classes.is_module(self.fn.cls)
