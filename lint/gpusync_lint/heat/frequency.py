"""How often a line runs: the call graph of the project, from what the inference found in its functions.

A loop is a loop of steps if its body makes a training step (a backward call, the step of an optimizer), iterates over a
data loader, or calls a model, itself or through a function that it calls. A loop that contains a loop of steps is a
loop of epochs. Any other loop only repeats what is in it. A function is as hot as the most frequent of its calls; some
functions are known by convention.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpusync_lint.heat.call_graph import heat_at, propagate
from gpusync_lint.heat.control_paths import ControlPaths
from gpusync_lint.heat.memoization import is_memoized
from gpusync_lint.model.levels import Heat
from gpusync_lint.model.placement import Call, Evidence, FunctionNode, Place, loops_of
from gpusync_lint.project.framework_callbacks import convention_heat
from gpusync_lint.project.symbols import ClassDef

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable, Sequence

    from gpusync_lint.heat.memoization import Methods
    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.placement import CallGraph
    from gpusync_lint.project.effects import Runs
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import FunctionDef, ModuleDef


class FrequencyRecorder:
    """How often the statements of a project run. The inference must have finished."""

    def __init__(self, project: Project, runs: Runs, own: Sequence[ModuleDef], step_functions: Iterable[str]) -> None:
        """`own` are the files that are reported on; `step_functions` run in every step, as the user says."""
        self._classes = project.classes
        self._runs = runs
        self._step_functions = frozenset(step_functions)
        self._paths: dict[FunctionDef, ControlPaths] = {}
        self._methods: dict[ClassDef, dict[str, list[ast.stmt]]] = {}
        self._names: dict[FunctionDef, str] = {}
        """The names of functions in their keys."""
        graph: CallGraph = {}
        own_files = frozenset(own)
        for fn in _with_callees(project, runs):
            graph[self._key(fn)] = self._node(fn)
            if fn.file not in own_files:  # no finding will be in it
                self._paths.pop(fn, None)
        own_paths = frozenset(file.path for file in own)
        self.own: CallGraph = {key: node for key, node in graph.items() if key[0] in own_paths}
        """The functions of the files that are reported on."""
        self._heats = propagate(graph)

    def heat(self, fn: FunctionDef, statement: ast.stmt) -> Heat:
        """How often a statement of a function runs."""
        return self.heat_at(self.place(fn, statement))

    def heat_at(self, place: Place) -> Heat:
        """How often a place runs, as far as the files of this project show."""
        return heat_at(place, self._heats)

    def place(self, fn: FunctionDef, statement: ast.stmt, repeated: bool = False, deferred: bool = False) -> Place:
        """The position of a statement in the call graph."""
        return Place(self._key(fn), self._paths_of(fn).to(statement), repeated, deferred)

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
            paths = self._paths[fn] = ControlPaths(fn.node.body, {} if fn.cls is None else self._methods_of(fn.cls))
        return paths

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

    def _node(self, fn: FunctionDef) -> FunctionNode:
        is_step_function = fn.name in self._step_functions or fn.qualname in self._step_functions
        node = FunctionNode(
            convention=Heat.STEP
            if is_step_function
            else self._runs.callback_heat(fn) or convention_heat(fn, self._classes),
            memoized=is_memoized(fn.node),
            is_helper=fn.cls is not None and fn.name != "forward",
            in_module=fn.cls is not None and self._classes.is_module(fn.cls),
        )
        effects = self._runs.effects(fn)
        if not (effects.step_evidence or effects.calls or effects.unread or effects.batch_loops):
            return node
        paths = self._paths_of(fn)
        evidence = (Evidence(kind, loops_of(paths.to(statement))) for kind, statement in effects.step_evidence)
        calls = [Call(self._key(site.callee), paths.to(site.statement), site.repeated) for site in effects.calls]
        calls += [Call(key, paths.to(statement), repeated) for key, statement, repeated in effects.unread]
        data_loops = map(loops_of, paths.loops(effects.batch_loops)) if effects.batch_loops else ()
        return node._replace(
            evidence=tuple(dict.fromkeys(evidence)),
            calls=tuple(dict.fromkeys(calls)),
            data_loops=tuple(dict.fromkeys(data_loops)),
        )


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
