"""The fixpoint iteration: the order in which functions are run, and the calls between them.

A function is run when it is called, with the join of the arguments of all its call sites. The project is analyzed in
two rounds, so that the facts of later files (attributes, arguments) reach earlier ones. The second round runs only
functions that are outdated: that read a fact which has changed since. The number of runs of a function is limited.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain.serving_loops import Schedule, schedule_of
from gpusync_lint.domain.training_idioms import is_test_path
from gpusync_lint.domain.values import CPU_TENSOR, UNKNOWN, Kind, Value
from gpusync_lint.inference import call_targets, loop_carried
from gpusync_lint.inference import transfer as transfer  # fills the tables
from gpusync_lint.inference.annotations import Annotations
from gpusync_lint.inference.callers import Callers
from gpusync_lint.inference.class_facts import ClassFacts
from gpusync_lint.inference.dependencies import Reader, Revisions
from gpusync_lint.inference.device_policy import DevicePolicy
from gpusync_lint.inference.entry_state import EntryStates
from gpusync_lint.inference.frame import Frame
from gpusync_lint.inference.handler_flow import injected, responses
from gpusync_lint.inference.instances import Instances
from gpusync_lint.inference.scopes import Scopes
from gpusync_lint.inference.summaries import FunctionState, FunctionSummary
from gpusync_lint.inference.tracing import Tracing
from gpusync_lint.inference.usage_evidence import UsageEvidence
from gpusync_lint.model.levels import Heat
from gpusync_lint.model.units import Unit
from gpusync_lint.project.effects import CallSite, Effects
from gpusync_lint.project.symbols import TOO_DEEP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusync_lint.inference.named_barriers import NamedBarriers
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import FunctionDef, ModuleDef

_PASSES = 3
"""The maximum number of passes over outdated functions in the second round."""
_MAX_DEPTH = 12
"""The maximum depth of nested calls that are followed."""
_ON_DEMAND_DEPTH = 6
"""How much a call of a function in a file that is read on demand adds to the depth."""
_MAX_RUNS = 6
"""The maximum number of runs of a function per round."""
_MAX_VARIANTS = 16
"""The maximum number of runs of a short function per round for the arguments of single calls."""


class Inference:
    """The abstract interpretation of a project, and its results."""

    def __init__(self, project: Project, named: NamedBarriers) -> None:
        self.project = project
        self.named = named
        self.revisions = Revisions()
        self.classes = ClassFacts(project.classes, self.revisions)
        self._callers = Callers(project, self.effects)
        self.devices = DevicePolicy(project, self.classes, self._callers, self.revisions)
        self.scopes = Scopes(project, self, self.revisions)
        self.instances = Instances(project.classes, self.classes, self.devices, self.scopes, self, self.revisions)
        self.annotations = Annotations(project, self.classes, self.scopes, self.devices)
        self.tracing = Tracing(project, self._callers)
        self.evidence = UsageEvidence()
        self._entries = EntryStates(
            project.classes, self.scopes, self.instances, self.devices, self.annotations, self.revisions
        )
        self._states: dict[FunctionDef, FunctionState] = {}
        self._callbacks: dict[FunctionDef, tuple[Heat, Unit | None]] = {}
        self._lambdas: dict[ast.Lambda, dict[ast.stmt, FunctionDef]] = {}
        self._results: dict[tuple[object, ...], Value] = {}
        """By function and arguments, the return values of short functions in this round."""
        self._targets: dict[tuple[str, str], list[FunctionDef]] = {}
        self._carried: dict[ast.stmt, frozenset[str]] = {}
        self._schedules: dict[ast.For, Schedule | None] = {}
        self._tests = frozenset(file for file in project.files if is_test_path(file.path))
        self._depth = 0

    # results

    def effects(self, fn: FunctionDef) -> Effects:
        """The effects of a function; none if it has not run."""
        return self.state(fn).summary.effects

    def values(self, fn: FunctionDef) -> Mapping[ast.expr, Value]:
        """The values of the expressions of a function. Missing expressions are unknown."""
        return self.state(fn).summary.values

    def returns(self, fn: FunctionDef) -> Value | None:
        """The return value of a function; None if it has not run."""
        return self.state(fn).summary.returns

    def has_run(self, fn: FunctionDef) -> bool:
        """Whether a function has run."""
        return self.state(fn).runs > 0

    def callback_heat(self, fn: FunctionDef) -> Heat | None:
        """How often a framework calls a function that was passed to it; None if it was not passed to one."""
        return self._callbacks.get(fn, (None, None))[0]

    def callback_unit(self, fn: FunctionDef) -> Unit | None:
        """What a framework calls a function that was passed to it once per; None if that is not known."""
        return self._callbacks.get(fn, (None, None))[1]

    def is_passed(self, fn: FunctionDef, parameter: str) -> bool:
        """Whether a call in the project passes an argument for a parameter."""
        return parameter in self.state(fn).arguments

    def release(self) -> None:
        """Break the reference cycles between the parts, so that no garbage collection is needed to free them."""
        self.__dict__.clear()

    # the iteration

    def run(self) -> None:
        """Analyze all files that use a framework, and the functions that they call."""
        files = [file for file in self.project.files if self.project.relevant(file)]
        self._begin_round(1)
        self._run_all(files)
        self._begin_round(2)
        self._discard_arguments_of_data_preparation(files)
        for _ in range(_PASSES):
            self._pass_responses(files)
            if not self._run_outdated():
                break
            self._discard_results()
        self._run_with_new_arguments()
        self._callers.invalidate()

    def _begin_round(self, number: int) -> None:
        self._entries.round = number
        self.devices.begin_round(uses_callers=number > 1)
        self._discard_results()

    def _run_all(self, files: list[ModuleDef]) -> None:
        for file in files:
            self._run(self.state(file.body))
        for file in files:
            for fn in file.all_functions:
                self.run_once(fn)

    def _run_outdated(self) -> bool:
        """Run the functions that are outdated. Returns whether there are any."""
        files = list(self.project.files)  # a run may read more files
        max_runs = self._entries.round * _MAX_RUNS
        any_outdated = False
        for fn in [*(file.body for file in files), *(fn for file in files for fn in file.all_functions)]:
            state = self.state(fn)
            if 0 < state.runs < max_runs and self._is_outdated(state):
                any_outdated = True
                self._run(state)
                if fn.is_short:  # its result for the arguments of a single call may have changed
                    self.revisions.change(fn)
        return any_outdated

    def _run_with_new_arguments(self) -> None:
        """Run the functions whose arguments have changed when the limit of runs was reached."""
        for file in self.project.files:
            for fn in file.all_functions:
                state = self.state(fn)
                if state.runs and self._has_new_arguments(state):
                    self._run(state)

    def _pass_responses(self, files: list[ModuleDef]) -> None:
        """Pass what a method of a handler returns to the one that its server calls next, and to a handler what its
        server calls before it.
        """
        for method, value in responses(files, self.project.classes, self):
            self._entries.pass_arguments(self.state(method), [UNKNOWN, value], {})
        for one in injected(files, self.project, self.scopes, self):
            self.record_callback(one.called, Heat.STEP, Unit.REQUEST)
            if one.handler is not None and one.value.kind is not Kind.UNKNOWN:
                self._entries.pass_arguments(self.state(one.handler), [], {one.parameter: one.value})

    def _discard_results(self) -> None:
        self._results.clear()
        for state in self._states.values():
            state.variants = 0

    def _discard_arguments_of_data_preparation(self, files: list[ModuleDef]) -> None:
        """Discard the arguments that were passed under the assumption that the caller's tensors are on the device."""
        self._callers.invalidate()
        for file in files:
            for fn in file.all_functions:
                state = self.state(fn)
                if state.arguments and self._callers.of(fn) and self.devices.prepares_data(fn):
                    state.arguments.clear()
                    state.arguments_revision = self.revisions.advance()

    # runs

    def summary(self, fn: FunctionDef) -> FunctionSummary:
        """The results of a function, empty ones if it has not run."""
        return self.state(fn).summary

    def run_once(self, fn: FunctionDef) -> None:
        """Run a function, unless it has run."""
        state = self.state(fn)
        if not state.runs:
            self._run(state)

    def is_too_deep(self) -> bool:
        """Whether the maximum depth of nested calls is reached."""
        return self._depth >= _MAX_DEPTH

    def state(self, fn: FunctionDef) -> FunctionState:
        """The state of a function between runs."""
        state = self._states.get(fn)
        if state is None:
            state = self._states[fn] = FunctionState(fn, FunctionSummary(Reader(fn)))
        return state

    def _run(self, state: FunctionState) -> None:
        """Run a function with the arguments of all its call sites, unless it is running already."""
        if state.running:
            return
        fn = state.fn
        if not fn.is_module:
            self.scopes.read_body(fn.file)
        before = state.summary
        state.runs += 1
        state.checked = 0
        state.summary = before.next(self.revisions.current)
        self.devices.record_run(fn)
        self._interpret(state, state.summary, state.arguments)
        if state.summary.returns != before.returns or state.summary.tuples != before.tuples:
            self.revisions.change(fn)
        if fn.is_module and fn is not fn.file.body:
            self.scopes.extend_module(state.summary)

    def _interpret(self, state: FunctionState, summary: FunctionSummary, arguments: Mapping[str, Value]) -> None:
        """Run a function with arguments, and fill the summary."""
        fn = state.fn
        depth = 1 if fn.file.outline is None else _ON_DEMAND_DEPTH
        self._depth += depth
        state.running = True
        try:
            summary.entry = self._entries.of(state, arguments, summary.reader)
            Frame(self, fn, summary, self.evidence.of(fn)).run(fn.node.body)
        except RecursionError:
            fn.file.limits.setdefault(TOO_DEEP, getattr(fn.node, "lineno", 1))
            summary.returns = summary.returns or UNKNOWN
        finally:
            state.running = False
            self._depth -= depth

    def _is_outdated(self, state: FunctionState) -> bool:
        """Whether a fact that the last run of a function read has changed since."""
        if state.runs == 0 or self._has_new_arguments(state) or self.devices.has_changed(state.fn):
            return True
        summary = state.summary
        if self.revisions.changed_after(summary.reader.dependencies, since=state.checked):
            return True
        state.checked = self.revisions.current
        return any(
            self.revisions.new_attribute_since(name, summary.revision) and self.classes.attribute(cls, name) is not None
            for cls, name in summary.reader.missing
        )

    def _has_new_arguments(self, state: FunctionState) -> bool:
        """Whether the arguments of a function have changed since its last run in a way that changes its entry."""
        return state.arguments_revision > state.summary.revision and self._has_another_entry(state)

    def _has_another_entry(self, state: FunctionState) -> bool:
        return self._entries.of(state, state.arguments, state.summary.reader) != state.summary.entry

    # calls

    def call(
        self,
        caller: Frame,
        fn: FunctionDef,
        args: Sequence[Value],
        kwargs: Mapping[str, Value],
        of_layer: bool = False,
    ) -> Value:
        """Call a function of the project: pass the arguments to its parameters, and return its result."""
        caller.summary.effects.calls.append(CallSite(fn, caller.statement, caller.comprehensions > 0, of_layer))
        state = self.state(fn)
        # Tests run on the host what their project runs elsewhere.
        is_tested = caller.fn.file in self._tests and fn.file not in self._tests
        widened = not is_tested and self._entries.pass_arguments(state, args, kwargs)
        node = fn.node
        if isinstance(node, ast.Module):
            return UNKNOWN
        if self._depth < _MAX_DEPTH and (state.summary.returns is None or self._is_due(state, widened)):
            self._run(state)
        caller.reader.dependencies.setdefault(fn, self.revisions.current)
        result = state.summary.returns
        if result is None:
            result = UNKNOWN
        if result.kind is not Kind.HOST and fn.is_short:
            result = self._result_for(state, tuple(args), kwargs, result)
        if node.returns is not None and (result.kind is Kind.UNKNOWN or result.kind is Kind.TENSOR):
            declared = self.annotations.of(caller.reader, node.returns)
            if result.kind is Kind.UNKNOWN or declared.kind is Kind.MODULE:  # a tensor is no module
                return declared
        return result

    def _is_due(self, state: FunctionState, widened: bool) -> bool:
        """Whether to run a function again before its result is used."""
        if state.runs >= self._entries.round * _MAX_RUNS:
            return False
        if self._entries.round > 1 and not state.running and self._is_outdated(state):
            return True
        return widened and self._has_another_entry(state)

    def _result_for(
        self, state: FunctionState, args: tuple[Value, ...], kwargs: Mapping[str, Value], joined: Value
    ) -> Value:
        """The return value of a short function for the arguments of one call; `joined` is that for all calls."""
        key = (state.fn, args, tuple(kwargs.items()))
        result = self._results.get(key)
        if result is not None:
            return result
        if state.variants >= _MAX_VARIANTS or state.running or self.is_too_deep():
            return joined
        result = joined
        arguments: dict[str, Value] = {}
        self._entries.join_arguments(state.fn, arguments, args, kwargs)
        reader = state.summary.reader
        if self._entries.of(state, arguments, reader) != state.summary.entry:
            state.variants += 1
            variant = state.summary.next(self.revisions.current)
            self._interpret(state, variant, arguments)
            for fact, revision in variant.reader.dependencies.items():
                reader.dependencies.setdefault(fact, revision)
            reader.missing.update(variant.reader.missing)
            result = variant.returns if variant.returns is not None else joined
        self._results[key] = result
        return result

    def call_targets(self, path: str | None, name: str) -> list[FunctionDef]:
        """The methods that a call on something unknown may call; `path` is the dotted path of the receiver."""
        key = ((path or "").rpartition(".")[2], name)
        targets = self._targets.get(key)
        if targets is None:
            targets = self._targets[key] = call_targets.call_targets(self.project.classes, *key)
        return targets

    def pass_batches(self, fn: FunctionDef) -> None:
        """Record that a framework calls `update(engine, batch)` with batches of a data loader."""
        self._entries.pass_arguments(self.state(fn), [UNKNOWN, CPU_TENSOR._replace(certain=False)], {})

    def record_callback(self, fn: FunctionDef, heat: Heat, unit: Unit | None = None) -> None:
        """Record how often a framework calls a function that is passed to it."""
        self._callbacks[fn] = heat, unit

    def record_lambda(self, node: ast.Lambda, caller: FunctionDef, statement: ast.stmt) -> None:
        """Record which statement calls a lambda."""
        self._lambdas.setdefault(node, {})[statement] = caller

    def lambda_calls(self, node: ast.Lambda) -> Mapping[ast.stmt, FunctionDef]:
        """The statements that call a lambda, each with its function."""
        return self._lambdas.get(node, {})

    def carried_names(self, loop: ast.For | ast.AsyncFor | ast.While) -> frozenset[str]:
        """The names that may carry a value from one iteration of a loop to the next."""
        names = self._carried.get(loop)
        if names is None:
            names = self._carried[loop] = loop_carried.read_first(loop)
        return names

    def schedule_of(self, loop: ast.For) -> Schedule | None:
        """The timesteps or noise levels of a denoising loop; None for any other loop."""
        if loop not in self._schedules:
            self._schedules[loop] = schedule_of(loop)
        return self._schedules[loop]
