"""The fixpoint iteration: which function runs when, and what functions learn from each other.

Functions are run when they are called, with what their call sites pass, joined. The whole project is gone through
twice, so that what a later file shows (attributes, arguments) reaches the earlier ones; in the second round only the
functions run again that read a fact which has changed since. No function runs more than a fixed number of times.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import CPU_TENSOR, UNKNOWN, Device, Kind, Value
from gpusync_lint.inference import call_targets, loop_carried
from gpusync_lint.inference import transfer as transfer  # fills the tables
from gpusync_lint.inference.annotations import Annotations
from gpusync_lint.inference.callers import Callers
from gpusync_lint.inference.class_facts import ClassFacts
from gpusync_lint.inference.dependencies import BUILT_ON_DEVICE, Reader, Revisions
from gpusync_lint.inference.device_policy import DevicePolicy
from gpusync_lint.inference.entry_state import EntryStates
from gpusync_lint.inference.frame import Frame
from gpusync_lint.inference.summaries import FunctionState, FunctionSummary
from gpusync_lint.inference.tracing import Tracing
from gpusync_lint.inference.transfer.library_calls import data_loader
from gpusync_lint.inference.usage_evidence import UsageEvidence
from gpusync_lint.project.effects import CallSite, Effects
from gpusync_lint.project.symbols import ClassDef, binding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusync_lint.inference.named_barriers import NamedBarriers
    from gpusync_lint.model.levels import Heat
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import FunctionDef, ModuleDef

_PASSES = 3
"""Passes over what has become outdated in the second round, at most."""
_MAX_DEPTH = 12
"""Calls that are followed into each other, at most."""
_ON_DEMAND_DEPTH = 6
"""How many calls one counts of a function that is read on demand."""
_MAX_RUNS = 6
"""Runs of one function in a round, at most."""
_MAX_VARIANTS = 16
"""Runs of one short function in a round for the arguments of single calls, at most."""
_WITH_ATTRIBUTES = frozenset({Kind.MODULE, Kind.INSTANCE, Kind.RECORDS, Kind.CLASS})


class Inference:
    """The abstract interpretation of a project, and its answers."""

    def __init__(self, project: Project, named: NamedBarriers) -> None:
        self.project = project
        self.named = named
        self.revisions = Revisions()
        self.classes = ClassFacts(project.classes, self.revisions)
        self._callers = Callers(project, self.effects)
        self.devices = DevicePolicy(project, self.classes, self._callers)
        self.tracing = Tracing(project, self._callers)
        self._callbacks: dict[FunctionDef, Heat] = {}
        self.evidence = UsageEvidence()
        self._annotations = Annotations(project, self.classes, self)
        self._entries = EntryStates(self, project.classes, self.devices, self._annotations, self.revisions)
        self._states: dict[FunctionDef, FunctionState] = {}
        self._imported: dict[ModuleDef, dict[str, Value | None]] = {}
        """What files bind names to by import, `def` or `class`, for those that were asked for."""
        self._instances: dict[tuple[ClassDef | None, Device | None], Value] = {}
        """By class, and for modules the device that is assumed: instances as their own methods see them."""
        self._results: dict[tuple[object, ...], Value] = {}
        """In this round, what short functions give back for the arguments of single calls."""
        self._targets: dict[tuple[str, str], list[FunctionDef]] = {}
        self._carried: dict[ast.stmt, frozenset[str]] = {}
        self._built_on_device = False
        self._depth = 0

    # results

    def effects(self, fn: FunctionDef) -> Effects:
        """What running a function does; nothing for one that has not run."""
        return self.state(fn).summary.effects

    def values(self, fn: FunctionDef) -> Mapping[ast.expr, Value]:
        """What the expressions of a function hold; those that are missing are unknown."""
        return self.state(fn).summary.values

    def returns(self, fn: FunctionDef) -> Value | None:
        """What a function gives back; None for one that has not run."""
        return self.state(fn).summary.returns

    def has_run(self, fn: FunctionDef) -> bool:
        """Whether a function was run at all."""
        return self.state(fn).runs > 0

    def callback_heat(self, fn: FunctionDef) -> Heat | None:
        """How often a framework calls a function that it was given; None for one that it was not given."""
        return self._callbacks.get(fn)

    def is_passed(self, fn: FunctionDef, parameter: str) -> bool:
        """Whether some call is known to pass a parameter of a function."""
        return parameter in self.state(fn).arguments

    def release(self) -> None:
        """Break the references between the parts, which the garbage collector would have to find."""
        self.__dict__.clear()

    # the iteration

    def run(self) -> None:
        """Run every file that has to do with a framework, and what it calls."""
        files = [file for file in self.project.files if self.project.relevant(file)]
        self._begin_round(1)
        self._run_all(files)
        self._begin_round(2)
        self._forget_arguments_of_data_preparation(files)
        for _ in range(_PASSES):
            if not self._run_outdated():
                break
            self._forget_results()
        for file in self.project.files:  # what could not run again when its arguments grew
            for fn in file.all_functions:
                state = self.state(fn)
                if state.runs and self._is_called_with_more(state):
                    self._run(state)
        self._callers.forget()

    def _begin_round(self, number: int) -> None:
        """Begin a round: what was concluded from calls before is concluded anew."""
        self._entries.round = number
        self.devices.begin_round(uses_callers=number > 1)
        self._forget_results()

    def _run_all(self, files: list[ModuleDef]) -> None:
        for file in files:
            self._run(self.state(file.body))
        for file in files:
            for fn in file.all_functions:
                state = self.state(fn)
                if not state.runs:
                    self._run(state)

    def _run_outdated(self) -> bool:
        """Run what read a fact that has changed since; whether there was any."""
        files = list(self.project.files)  # more may be read on the way
        most = self._entries.round * _MAX_RUNS
        found = False
        for fn in [*(file.body for file in files), *(fn for file in files for fn in file.all_functions)]:
            state = self.state(fn)
            if 0 < state.runs < most and self._is_outdated(state):
                found = True
                self._run(state)
                if fn.is_short:  # what it gives back for some arguments may be new
                    self.revisions.change(fn)
        return found

    def _forget_results(self) -> None:
        self._results.clear()
        for state in self._states.values():
            state.variants = 0

    def _forget_arguments_of_data_preparation(self, files: list[ModuleDef]) -> None:
        """Now that calls are known, what only prepares data forgets what was assumed of its arguments."""
        self._callers.forget()
        for file in files:
            for fn in file.all_functions:
                state = self.state(fn)
                if state.arguments and self._callers.of(fn) and self.devices.prepares_data(fn):
                    state.arguments.clear()
                    state.arguments_revision = self.revisions.advance()

    def state(self, fn: FunctionDef) -> FunctionState:
        """What is kept of a function between its runs."""
        state = self._states.get(fn)
        if state is None:
            state = self._states[fn] = FunctionState(fn, FunctionSummary(Reader(fn)))
        return state

    def _run(self, state: FunctionState) -> None:
        """Run a function with all arguments that it is called with, unless it is running already."""
        if state.running:
            return
        fn = state.fn
        if fn.file.called_only and not fn.is_module:
            self._read_body(fn.file)
        before = state.summary
        state.runs += 1
        state.checked = 0
        state.summary = before.next(self.revisions.current)
        self.devices.note_run(fn)
        self._interpret(state, state.summary, state.arguments)
        if state.summary.returns != before.returns:
            self.revisions.change(fn)
        if fn.is_module and fn is not fn.file.body:  # a part of the body, read on demand
            scope, found = fn.file.scope, state.summary.scope
            self._note_scope(fn.file.body, {name: scope[name] for name in found if name in scope}, found)
            scope.update(found)

    def _interpret(self, state: FunctionState, summary: FunctionSummary, arguments: Mapping[str, Value]) -> None:
        """Fill the summary of a run with some arguments."""
        fn = state.fn
        depth = 1 if fn.file.outline is None else _ON_DEMAND_DEPTH
        self._depth += depth
        state.running = True
        try:
            summary.entered = self._entries.of(state, arguments, summary.reader)
            Frame(self, fn, summary, self.evidence.of(fn)).run(fn.node.body)
        except RecursionError:  # nested too deeply to follow; nothing is known of it
            summary.returns = summary.returns or UNKNOWN
        finally:
            state.running = False
            self._depth -= depth

    def _is_outdated(self, state: FunctionState) -> bool:
        """Whether a fact that the last run of a function read has changed since."""
        if state.runs == 0 or self._is_called_with_more(state) or self.devices.has_changed(state.fn):
            return True
        summary = state.summary
        if self.revisions.changed_after(summary.reader.dependencies, since=state.checked):
            return True
        state.checked = self.revisions.current
        return any(
            self.revisions.new_attribute_since(name, summary.revision) and self._known_attribute(cls, name) is not None
            for cls, name in summary.reader.missing
        )

    def _is_called_with_more(self, state: FunctionState) -> bool:
        """Whether the parameters of a function hold something else than when it ran last."""
        if state.arguments_revision <= state.summary.revision:
            return False
        return self._holds_other_arguments(state)

    def _holds_other_arguments(self, state: FunctionState) -> bool:
        return self._entries.of(state, state.arguments, state.summary.reader) != state.summary.entered

    # functions

    def call(self, caller: Frame, fn: FunctionDef, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        """Call a project function: its parameters learn what is passed, the caller learns what it returns."""
        caller.summary.effects.calls.append(CallSite(fn, caller.statement, caller.repeated > 0))
        state = self.state(fn)
        grew = self._entries.pass_arguments(state, args, kwargs)
        node = fn.node
        if isinstance(node, ast.Module):
            return UNKNOWN
        if self._depth < _MAX_DEPTH and (state.summary.returns is None or self._is_due(state, grew)):
            self._run(state)
        caller.reader.dependencies.setdefault(fn, self.revisions.current)
        result = state.summary.returns
        if result is None:
            result = UNKNOWN
        if result.kind is not Kind.HOST and fn.is_short:
            result = self._result_for(state, tuple(args), kwargs, result)
        if result.kind is Kind.UNKNOWN and node.returns is not None:
            return self.annotation(caller.reader, node.returns)
        return result

    def _is_due(self, state: FunctionState, grew: bool) -> bool:
        """Whether to run a called function again before its result is used."""
        if state.runs >= self._entries.round * _MAX_RUNS:
            return False
        if self._entries.round > 1 and not state.running and self._is_outdated(state):
            return True
        return grew and self._holds_other_arguments(state)

    def _result_for(
        self, state: FunctionState, args: tuple[Value, ...], kwargs: Mapping[str, Value], joined: Value
    ) -> Value:
        """What a short function gives back for these arguments alone, not for those of all its callers together."""
        key = (state.fn, args, tuple(kwargs.items()))
        known = self._results.get(key)
        if known is not None:
            return known
        if state.variants >= _MAX_VARIANTS or state.running or self._depth >= _MAX_DEPTH:
            return joined
        result = joined
        arguments: dict[str, Value] = {}
        self._entries.join_arguments(state.fn, arguments, args, kwargs)
        reader = state.summary.reader
        if self._entries.of(state, arguments, reader) != state.summary.entered:
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
        """The methods that a call of something unknown may mean."""
        key = ((path or "").rpartition(".")[2], name)
        known = self._targets.get(key)
        if known is None:
            known = self._targets[key] = call_targets.call_targets(self.project.classes, *key)
        return known

    def pass_batches(self, fn: FunctionDef) -> None:
        """Note that a function `update(engine, batch)` is called with what a data loader yields."""
        self._entries.pass_arguments(self.state(fn), [UNKNOWN, CPU_TENSOR._replace(certain=False)], {})

    def note_callback(self, fn: FunctionDef, heat: Heat) -> None:
        """Note how often a framework calls a function that it was given."""
        self._callbacks[fn] = heat

    def note_traced(self, fn: FunctionDef) -> None:
        """Note that another framework traces a function."""
        self.tracing.note(fn)

    def wrapper(self, fn: FunctionDef) -> str:
        """The type of value that a decorator of another framework makes of a function; empty for none."""
        return self.tracing.wrapper(fn)

    def carried_names(self, loop: ast.For | ast.AsyncFor | ast.While) -> frozenset[str]:
        """The names through which one iteration of a loop may reach the next."""
        known = self._carried.get(loop)
        if known is None:
            known = self._carried[loop] = loop_carried.read_first(loop)
        return known

    # names

    def publish_scope(self, frame: Frame) -> None:
        """Let closures, and other functions of a module, see the names of a run."""
        fn, found = frame.fn, frame.store.values
        if fn.is_module or fn.nested:
            self._note_scope(fn, fn.file.scope if fn is fn.file.body else frame.summary.scope, found)
        frame.summary.scope = found
        if fn is fn.file.body:
            fn.file.scope = found

    def _note_scope(self, fn: FunctionDef, old: Mapping[str, Value], new: Mapping[str, Value]) -> None:
        """Note which names of a function, or of a module, hold something else."""
        for name, value in new.items():
            known = old.get(name)
            if known is not value and known != value:
                self.revisions.change((fn, name))
        for name in old.keys() - new.keys():
            self.revisions.change((fn, name))

    def outer_name(self, reader: Reader, name: str) -> Value | None:
        """What a name holds in the functions and the module around a run; None for a name that nothing binds."""
        fn, now = reader.fn, self.revisions.current
        outer = fn.outer
        while outer is not None and not outer.is_module:
            reader.dependencies.setdefault((outer, name), now)
            found = self.state(outer).summary.scope.get(name)
            if found is not None:
                return found
            outer = outer.outer
        file = fn.file
        reader.dependencies.setdefault((file.body, name), now)
        found = file.scope.get(name)
        if found is not None:
            return found
        imported = self._imported.get(file)
        if imported is None:
            imported = self._imported[file] = {}
        if name in imported:
            found = imported[name]
        else:
            found = imported[name] = self.project.named(file, name)
        return self._read_name(file, name) if found is None and file.outline is not None else found

    def module_name(self, reader: Reader, name: str) -> Value | None:
        """What the body of the module of a reader binds a name to; None for a name that it does not bind."""
        reader.dependencies.setdefault((reader.fn.file.body, name), self.revisions.current)
        return self._read_name(reader.fn.file, name)

    def member(self, reader: Reader, file: ModuleDef, name: str) -> Value:
        """What a module of the project holds under a name."""
        reader.dependencies.setdefault((file.body, name), self.revisions.current)
        self._read_body(file)
        if file.outline is not None and self.project.named(file, name) is None:
            self._read_name(file, name)
        return self.project.member(file, name)

    def _read_body(self, file: ModuleDef) -> None:
        """Run the body of a file that runs on demand."""
        state = self.state(file.body)
        if file.called_only and file.outline is None and not state.runs:
            self._run(state)

    def _read_name(self, file: ModuleDef, name: str) -> Value | None:
        """What the body of a file binds a name to; of a file read on demand, only what binds the name is run."""
        if name not in file.scope and file.outline is not None:
            piece = binding(file, name)
            if piece is not None and not self.state(piece).runs:
                self._run(self.state(piece))
        return file.scope.get(name)

    def annotation(self, reader: Reader, node: ast.expr) -> Value:
        """The value that a type annotation declares."""
        return self._annotations.of(reader, node)

    # classes

    def attribute(self, reader: Reader, cls: ClassDef, name: str) -> Value | None:
        """What an attribute of instances holds, inherited ones included; None when it was never seen."""
        for base in self.project.classes.project_lineage(cls):
            if name not in base.attributes and base.file.called_only:
                self._read_attribute(base, name)
            value = base.attributes.get(name)
            if value is not None:
                reader.dependencies.setdefault((base, name), self.revisions.current)
                return value
        reader.missing[cls, name] = None
        return None

    def _known_attribute(self, cls: ClassDef, name: str) -> Value | None:
        lineage = self.project.classes.project_lineage(cls)
        return next((base.attributes[name] for base in lineage if name in base.attributes), None)

    def _read_attribute(self, cls: ClassDef, name: str) -> None:
        """Run, of a class in a file that runs on demand, the methods that mention an attribute."""
        self._read_body(cls.file)
        piece = cls.file.pieces.get(cls.name)
        if piece is not None and not self.state(piece).runs:
            self._run(self.state(piece))
        if self._depth >= _MAX_DEPTH:
            return
        for method in cls.mentioning(name):
            if not self.state(method).runs:
                self._run(self.state(method))

    def set_attribute(self, owner: Value, name: str, value: Value) -> None:
        """Note that an attribute of a class's instances may hold a value."""
        cls = owner.ref
        if cls.__class__ is not ClassDef or owner.kind not in _WITH_ATTRIBUTES:
            return
        if owner.kind is Kind.MODULE and value.kind is Kind.MODULE and value.device is Device.CPU:
            value = value._replace(device=self.assumed_device(cls.file.body))  # a submodule goes where its parent goes
        self.classes.widen_attribute(cls, name, value)

    def define_attribute(self, cls: ClassDef, name: str, value: Value) -> None:
        """Note that the body of a class binds an attribute."""
        self.classes.set_attribute(cls, name, value)

    def instance(self, method: FunctionDef) -> Value:
        """An instance of the class of a method, as the method itself sees it."""
        cls = method.cls
        if method.kind == "class":
            return Value(Kind.CLASS, ref=cls)
        device: Device | None = None
        if cls is not None and self.project.classes.is_module(cls):
            device = self.assumed_device(method)
        made = self._instances.get((cls, device))
        if made is None:
            if device is not None:
                made = Value(Kind.MODULE, device, ref=cls)
            else:
                is_records = cls is not None and self.classes.is_records(cls)
                made = Value(Kind.RECORDS if is_records else Kind.INSTANCE, ref=cls)
            self._instances[cls, device] = made
        return made

    def instantiate(self, caller: Frame, cls: ClassDef, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        """Make an instance of a project class."""
        made = self._new_instance(caller, cls, kwargs)
        init = self.project.classes.method(cls, "__init__")
        if init is not None:
            self.call(caller, init, [made, *args], kwargs)
        else:
            fields = [item.target.id for item in cls.node.body if _is_field(item)]  # type: ignore[attr-defined]
            for name, value in [*zip(fields, args, strict=False), *kwargs.items()]:
                if name in fields:
                    self.set_attribute(made, name, value)
        return made

    def _new_instance(self, caller: Frame, cls: ClassDef, kwargs: dict[str, Value]) -> Value:
        if self.project.classes.is_module(cls):
            return Value(Kind.MODULE, Device.CPU, ref=cls, made_with=self.named.made_of(cls, kwargs))
        if self.classes.is_records(cls):
            return Value(Kind.RECORDS, ref=cls)
        external = self.project.classes.external_bases(cls)
        if any(base.startswith("torch.optim") for base in external):
            return Value(Kind.OPTIMIZER)
        if any(base.endswith("DataLoader") for base in external):
            return data_loader(caller, "", kwargs)
        return Value(Kind.INSTANCE, ref=cls)

    def is_moved(self, reader: Reader, cls: ClassDef) -> bool:
        """Whether some instance of a class was moved to a device."""
        return self.classes.is_moved(reader, cls)

    def note_moved(self, cls: ClassDef) -> None:
        """Note that an instance of a class was moved to a device."""
        self.classes.note_moved(cls)

    # devices

    def assumed_device(self, fn: FunctionDef) -> Device:
        """Where the tensors of a function lie, if its code is conventional."""
        return self.devices.assumed_device(fn)

    def uses_gpu_by_default(self, file: ModuleDef) -> bool:
        """Whether new tensors are made on the GPU unless told otherwise."""
        return self.devices.uses_gpu_by_default(file)

    def is_built_on_device(self, reader: Reader) -> bool:
        """Whether some `with device:` block of the project makes its modules on a device."""
        reader.dependencies.setdefault(BUILT_ON_DEVICE, self.revisions.current)
        return self._built_on_device

    def note_built_on_device(self) -> None:
        """Note that there is such a block."""
        if not self._built_on_device:
            self._built_on_device = True
            self.revisions.change(BUILT_ON_DEVICE)


def _is_field(item: ast.stmt) -> bool:
    return isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
