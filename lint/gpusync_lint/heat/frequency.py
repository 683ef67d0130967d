"""How often a line runs: the call graph of the project, from what the inference found in its functions.

A loop is a loop of steps if its body makes a training step (a backward call, the step of an optimizer), iterates over a
data loader, or calls a model, itself or through a function that it calls. A loop that contains a whole pass over data
is a loop of epochs; one that only contains another loop of steps is judged by its header and by what else is in it. Any
other loop only repeats what is in it. A function is as hot as the most frequent of its calls; some functions are known
by convention.
"""

from __future__ import annotations

import ast
from collections import Counter
from functools import cached_property, partial
from typing import TYPE_CHECKING

from gpusync_lint.domain.training_idioms import is_test_path
from gpusync_lint.domain.values import Kind
from gpusync_lint.heat.call_graph import heat_at, propagate, repeated_entries, unit_at
from gpusync_lint.heat.capture import capture_at
from gpusync_lint.heat.capture_regions import CaptureRegions
from gpusync_lint.heat.control_paths import ControlPaths
from gpusync_lint.heat.left_out import left_out, spreads_arguments
from gpusync_lint.heat.loop_units import shows_steps, unit_loops
from gpusync_lint.heat.memoization import is_memoized, memoized_methods
from gpusync_lint.heat.optional_arguments import OptionalArguments
from gpusync_lint.model.levels import Heat
from gpusync_lint.model.placement import (
    Call,
    Evidence,
    FunctionNode,
    PathKind,
    PathNode,
    Place,
    StepEvidence,
    loops_of,
)
from gpusync_lint.project.entry_points import unit_of_convention
from gpusync_lint.project.framework_callbacks import convention_heat, feeds_loader, is_task, unseen_heat
from gpusync_lint.project.symbols import ClassDef
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusync_lint.heat.left_out import Defaults
    from gpusync_lint.heat.memoization import Methods
    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.placement import CallGraph, Capture, Entry, FunctionHeat, Path
    from gpusync_lint.model.units import Unit
    from gpusync_lint.project.effects import CallSite, Runs
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import FunctionDef, ModuleDef

_YIELDS = (ast.Yield, ast.YieldFrom)


class FrequencyRecorder:
    """How often the statements of a project run. The inference must have finished."""

    def __init__(self, project: Project, runs: Runs, own: Sequence[ModuleDef], step_functions: Iterable[str]) -> None:
        """`own` are the files that are reported on; `step_functions` run in every step, as the user says."""
        self._project = project
        self._classes = project.classes
        self._runs = runs
        self._step_functions = frozenset(step_functions)
        self._own = own
        self._captures = CaptureRegions(project)
        self._optional = OptionalArguments()
        self._may_be_captured: dict[FunctionDef, bool] = {}
        self._paths: dict[FunctionDef, ControlPaths] = {}
        self._yield_statements: dict[FunctionDef, list[ast.stmt]] = {}
        self._may_yield: dict[ModuleDef, bool] = {}
        """Whether the text of a file contains the word `yield`."""
        self._methods: dict[ClassDef, dict[str, list[ast.stmt]]] = {}
        self._overrides: dict[FunctionDef, list[FunctionDef]] = {}
        self._memoized: dict[ClassDef, frozenset[str]] = {}
        self._names: dict[FunctionDef, str] = {}
        """The names of functions in their keys."""
        self._calls = _calls(project, runs)
        graph: CallGraph = {}
        own_files = frozenset(own)
        for fn in _with_callees(project, runs):
            graph[self._key(fn)] = self._node(fn)
            if fn.file not in own_files:  # no finding will be in it
                self._paths.pop(fn, None)
        own_paths = frozenset(file.path for file in own)
        self.own: CallGraph = {key: node for key, node in graph.items() if key[0] in own_paths}
        """The functions of the files that are reported on."""
        self._graph = graph

    @cached_property
    def _heats(self) -> dict[Key, FunctionHeat]:
        """How often each function is entered. A part of a component rarely asks: its heat is decided later."""
        return propagate(self._graph)

    def repeated_entries(self) -> dict[Key, Entry]:
        """The functions that are entered repeatedly."""
        return repeated_entries(self._heats)

    def heat(self, fn: FunctionDef, statement: ast.stmt) -> Heat:
        """How often a statement of a function runs."""
        return self.heat_at(self.place(fn, statement))

    def heat_at(self, place: Place) -> Heat:
        """How often a place runs, as far as the files of this project show."""
        return heat_at(place, self._heats)

    def unit_at(self, place: Place) -> Unit | None:
        """What a place runs once per, if it runs in every step."""
        return unit_at(place, self._heats)

    @property
    def is_part(self) -> bool:
        """Whether the files are a part of a component. Functions of its other parts may call those of these files."""
        return self._project.lazy is not None

    @cached_property
    def captures_graphs(self) -> bool:
        """Whether a CUDA graph may be captured anywhere."""
        if self.is_part:
            return True
        reached = any(one.capture is not None and one.capture.kind is PathKind.CAPTURE for one in self._heats.values())
        return reached or any(self._captures.has_capture(fn) for file in self._own for fn in file.all_functions)

    def capture_at(self, place: Place) -> Capture | None:
        """The capture of CUDA graphs that a place runs in, as far as the files of this project show."""
        return capture_at(place, self._heats)

    def may_be_captured(self, fn: FunctionDef) -> bool:
        """Whether a function may be called during a capture, or contains one."""
        if self.is_part:
            return True
        known = self._may_be_captured.get(fn)
        if known is None:
            known = self._may_be_captured[fn] = self.is_captured(fn) or self._captures.has_capture(fn)
        return known

    def is_captured(self, fn: FunctionDef) -> bool:
        """Whether a function is called during a capture."""
        heat = self._heats.get(self._key(fn))
        return heat is not None and heat.capture is not None

    def place(self, fn: FunctionDef, statement: ast.stmt, repeated: bool = False, deferred: bool = False) -> Place:
        """The position of a statement in the call graph."""
        return Place(self._key(fn), self._path(fn, statement), repeated, deferred)

    def _path(self, fn: FunctionDef, statement: ast.stmt) -> Path:
        """The path to a statement, and the captures around it."""
        return self._paths_of(fn).to(statement) + self._captures.around(fn, statement)

    def _path_of_call(self, fn: FunctionDef, site: CallSite) -> Path:
        """The path to a call, without a loop over layers. The header of a loop calls `__next__` once per iteration."""
        path = self._path(fn, site.statement)
        if site.of_layer:
            inner = max((at for at, node in enumerate(path) if node.kind is PathKind.LOOP), default=len(path))
            return (*path[:inner], *path[inner + 1 :])
        if site.callee.name == "__next__" and isinstance(site.statement, (ast.For, ast.AsyncFor)):
            return (*path, PathNode(PathKind.LOOP, site.statement.lineno))
        return path

    def _key(self, fn: FunctionDef) -> Key:
        name = self._names.get(fn)
        if name is None:
            times: Counter[str] = Counter()
            for one in fn.file.all_functions:
                times[one.qualname] += 1
                count = times[one.qualname]
                self._names[one] = one.qualname if count == 1 else f"{one.qualname}#{count}"
            name = self._names[fn]
        return fn.file.path, name

    def _paths_of(self, fn: FunctionDef) -> ControlPaths:
        paths = self._paths.get(fn)
        if paths is None:
            methods = {} if fn.cls is None else self._methods_of(fn.cls)
            is_tested, defaults = partial(self._optional.is_tested, fn), self._left_out(fn)
            paths = self._paths[fn] = ControlPaths(fn.node.body, methods, is_tested, defaults, fn.file.text)
        return paths

    def _left_out(self, fn: FunctionDef) -> Defaults:
        """The parameters that every call of a function leaves out; none unless all calls are known."""
        calls = self._calls.get(fn)
        if self.is_part or not calls or self._runs.callback_heat(fn) is not None:
            return {}
        found = left_out(fn, lambda name: self._runs.is_passed(fn, name))
        return {} if found and any(map(spreads_arguments, calls)) else found

    def _methods_of(self, cls: ClassDef) -> Methods:
        """The bodies of the methods of a class, inherited ones included."""
        bodies = self._methods.get(cls)
        if bodies is None:
            bodies = self._methods[cls] = {}
            for base in self._classes.lineage(cls):
                if isinstance(base, ClassDef):
                    for name, method in base.methods.items():
                        bodies.setdefault(name, method.node.body)
        return bodies

    def _memoized_methods(self, cls: ClassDef | None) -> frozenset[str]:
        """The methods of a class that its constructor memoizes."""
        if cls is None:
            return frozenset()
        known = self._memoized.get(cls)
        if known is None:
            methods = self._methods_of(cls) if "cache" in cls.file.text else {}
            known = memoized_methods([*methods.get("__init__", ()), *methods.get("__post_init__", ())])
            self._memoized[cls] = known
        return known

    def _node(self, fn: FunctionDef) -> FunctionNode:
        is_step_function = fn.name in self._step_functions or fn.qualname in self._step_functions
        memoized = is_memoized(fn.node) or fn.name in self._memoized_methods(fn.cls)
        passed = None if memoized else self._runs.callback_heat(fn)
        node = FunctionNode(
            convention=Heat.STEP if is_step_function else passed or convention_heat(fn, self._classes),
            memoized=memoized,
            is_helper=fn.cls is not None and fn.name != "forward",
            in_module=fn.cls is not None and self._classes.is_module(fn.cls),
            unit=self._runs.callback_unit(fn) or unit_of_convention(fn, self._classes),
            unseen=unseen_heat(fn, self._classes),
            outer=self._definition(fn),
            is_task=is_task(fn),
        )
        effects = self._runs.effects(fn)
        recognized = unit_loops(fn)
        wrappers = self._wrappers(fn)
        yields = self._yields(fn)
        captured = self._captured_by(fn)
        shown = (effects.step_evidence, effects.calls, effects.unread, effects.batch_loops)
        if not any((*shown, recognized, wrappers, yields, captured)):
            return node
        paths = self._paths_of(fn)
        by_unit = [(path, unit) for loop, unit in recognized.items() for path in paths.loops({loop})]
        evidence = [Evidence(kind, paths.to(statement)) for kind, statement in effects.step_evidence]
        evidence += [Evidence(StepEvidence.MODEL, path) for path, unit in by_unit if shows_steps(fn, unit)]
        calls = [
            Call(
                self._key(site.callee),
                self._path_of_call(fn, site),
                site.repeated,
                self._consumer(site),
                self._optional.given(fn, site.statement, site.callee),
            )
            for site in effects.calls
        ]
        calls += [
            Call(self._key(override), self._path(fn, site.statement), site.repeated)
            for site in effects.calls
            for override in self._overrides_of(site.callee)
        ]
        calls += [
            Call(key, self._path(fn, at), repeated, given=self._optional.given_by_name(fn, at, key[1]))
            for key, at, repeated in effects.unread
        ]
        calls += [Call(self._key(wrapper), (), False) for wrapper in wrappers]
        calls += captured
        data_loops = map(loops_of, paths.loops(effects.batch_loops)) if effects.batch_loops else ()
        return node._replace(
            evidence=tuple(dict.fromkeys(evidence)),
            calls=tuple(dict.fromkeys(calls)),
            data_loops=tuple(dict.fromkeys(data_loops)),
            unit_loops=tuple((loops_of(path), unit) for path, unit in by_unit),
            forms=paths.forms(),
            yield_loops=tuple({loops[-1]: None for one in yields if (loops := loops_of(paths.to(one)))}),
            feeds_loader=bool(yields) and feeds_loader(fn, self._classes),
        )

    def _overrides_of(self, fn: FunctionDef) -> list[FunctionDef]:
        """The overrides that have run of a method without a body of its own, however many there are."""
        known = self._overrides.get(fn)
        if known is None:
            found = self._classes.overrides(fn)
            known = self._overrides[fn] = [override for override in found if self._runs.has_run(override)]
        return known

    def _captured_by(self, fn: FunctionDef) -> list[Call]:
        """The functions of which a function has CUDA graphs captured, as calls; for a module, by their decorators."""
        captured = self._runs.effects(fn).captured
        calls = [Call(self._key(callee), (PathNode(kind, at.lineno),), False) for callee, at, kind in captured]
        if fn.is_module:
            for one in fn.file.all_functions:
                node = self._captures.compiled(one)
                if node is not None:
                    calls.append(Call(self._key(one), (node,), False))
        return calls

    def _definition(self, fn: FunctionDef) -> Call | None:
        """The function in which another one is defined, and the path to the definition."""
        outer = fn.outer
        if outer is None or outer.is_module or not isinstance(fn.node, ast.stmt) or not self._runs.has_run(outer):
            return None
        return Call(self._key(outer), self._paths_of(outer).to(fn.node), False)

    def _wrappers(self, fn: FunctionDef) -> list[FunctionDef]:
        """The functions that decorators of the project define around a function; they run whenever it runs."""
        found: list[FunctionDef] = []
        for decorator in getattr(fn.node, "decorator_list", ()):
            value = self._project.static(fn.file, decorator.func if isinstance(decorator, ast.Call) else decorator)
            if value.kind is Kind.FUNCTION:
                stack = list(value.ref.nested.values())
                while stack:
                    found.append(stack.pop())
                    stack += found[-1].nested.values()
        return [wrapper for wrapper in found if not wrapper.nested and self._runs.has_run(wrapper)]

    def _yields(self, fn: FunctionDef) -> list[ast.stmt]:
        """The statements of a function that yield."""
        known = self._yield_statements.get(fn)
        if known is None:
            known = []
            may_yield = self._may_yield.get(fn.file)
            if may_yield is None:
                may_yield = self._may_yield[fn.file] = "yield" in fn.file.text
            if may_yield and "yield" in fn.file.source_of(fn.node):
                known = [
                    statement
                    for statement in walk_block(fn.node.body)
                    if isinstance(statement, (ast.Expr, ast.Assign)) and isinstance(statement.value, _YIELDS)
                ]
            self._yield_statements[fn] = known
        return known

    def _consumer(self, site: CallSite) -> int:
        """The line of the loop that iterates over what a call yields; 0 for none."""
        is_loop = isinstance(site.statement, (ast.For, ast.AsyncFor))
        return site.statement.lineno if is_loop and self._yields(site.callee) else 0


def _calls(project: Project, runs: Runs) -> dict[FunctionDef, list[ast.stmt]]:
    """The statements that call each function, except those of tests and of the function itself."""
    found: dict[FunctionDef, list[ast.stmt]] = {}
    for file in project.files:
        if not is_test_path(file.path):
            for fn in file.all_functions:
                for site in runs.effects(fn).calls:
                    if site.callee is not fn:
                        found.setdefault(site.callee, []).append(site.statement)
    return found


def _with_callees(project: Project, runs: Runs) -> list[FunctionDef]:
    """The functions that the inference has run, and those that they call, file by file."""
    relevant = (fn for file in project.files if project.relevant(file) for fn in file.all_functions)
    functions = [fn for fn in relevant if runs.has_run(fn)]
    seen = set(functions)
    for fn in functions:
        for site in runs.effects(fn).calls:
            if site.callee not in seen:
                seen.add(site.callee)
                functions.append(site.callee)
    return functions
