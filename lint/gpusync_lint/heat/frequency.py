"""How often a line runs: step loops told from others, and their heat carried along the project's calls.

A loop is a step loop when its body makes a training step (backward, an optimizer's step), runs over a data loader,
or calls a model, itself or through a function it calls. A loop that holds a step loop is an epoch loop. Any other
loop only repeats what is in it. Functions take the heat of the hottest place that calls them; some are known by
convention.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpusync_lint.heat import call_graph
from gpusync_lint.heat.call_graph import FunctionRun, Head
from gpusync_lint.heat.control_paths import Ways
from gpusync_lint.heat.memoization import remembered
from gpusync_lint.model.levels import Heat
from gpusync_lint.model.placement import Place
from gpusync_lint.project.framework_callbacks import called
from gpusync_lint.project.symbols import ClassInfo

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable, Sequence

    from gpusync_lint.heat.control_paths import Step
    from gpusync_lint.heat.memoization import Methods
    from gpusync_lint.model.function_key import Key
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import FileInfo, FunctionInfo

_KINDS = {"loop": call_graph.LOOP, "guard": call_graph.GUARD, "exit": call_graph.EXIT, "error": call_graph.ERROR}
_SIGNS = {"layer": call_graph.LAYER, "weak": call_graph.WEAK, "strong": call_graph.STRONG, "loop": call_graph.INNER}


class Recorder:
    """Notes how the functions of a project run, once they have been interpreted."""

    def __init__(self, project: Project, own: Sequence[FileInfo], step_functions: Iterable[str]) -> None:
        self._project = project
        self._judged = frozenset(own)
        self._extra = frozenset(step_functions)
        self._ways: dict[int, Ways] = {}
        """By `id` of a function."""
        self._bodies: dict[int, dict[str, list[ast.stmt]]] = {}
        """By `id` of a class: the bodies of its methods."""
        self._steps: dict[int, _Numbered] = {}
        """By `id` of a function, of those that have steps which matter to others."""
        self._names: dict[int, str] = {}
        """By `id` of a function: its name, as it is in its key."""
        functions = [fn for file in project.files if project.relevant(file) for fn in file.all_functions if fn.runs]
        seen = {id(fn) for fn in functions}
        for fn in functions:
            for site in fn.trace.calls:
                if id(site.callee) not in seen:
                    seen.add(id(site.callee))
                    functions.append(site.callee)
        files = {id(file): file for file in (*own, *(fn.file for fn in functions))}
        ordered = [fn for file in files.values() for fn in file.all_functions if id(fn) in seen]
        everything = {self._key(fn): self._record(fn) for fn in ordered}
        inside = {file.path for file in own}
        self.own = call_graph.graph({key: run for key, run in everything.items() if key[0] in inside})
        """The functions of `own` files."""
        self._graph = self.own if len(files) == len(inside) else call_graph.graph(everything)
        self._numbers = {key: number for number, key in enumerate(everything)}
        (linked,) = call_graph.link([self._graph])
        self._teller = call_graph.Teller(self._graph, linked)

    def heat(self, fn: FunctionInfo, statement: ast.stmt) -> Heat:
        """How often a statement of a function runs."""
        return self.heat_at(self.place(fn, statement))

    def heat_at(self, place: Place) -> Heat:
        """How often a place runs, as far as these files tell."""
        return self._teller.heat(place)

    def place(self, fn: FunctionInfo, statement: ast.stmt, repeated: bool = False, deferred: bool = False) -> Place:
        """Where a statement stands."""
        steps = self._steps.get(id(fn)) or _Numbered()
        step, beyond = steps.last(self._ways_of(fn).to(statement))
        return Place(self._numbers.get(self._key(fn), -1), step - 1, beyond, repeated, deferred)

    def _key(self, fn: FunctionInfo) -> Key:
        name = self._names.get(id(fn))
        if name is None:
            times: Counter[str] = Counter()
            for one in fn.file.all_functions:
                times[one.qualname] += 1
                again = times[one.qualname]
                self._names[id(one)] = one.qualname if again == 1 else f"{one.qualname}#{again}"
            name = self._names[id(fn)]
        return fn.file.path, name

    def _ways_of(self, fn: FunctionInfo) -> Ways:
        ways = self._ways.get(id(fn))
        if ways is None:
            ways = self._ways[id(fn)] = Ways(fn.node.body, {} if fn.cls is None else self._methods(fn.cls))
        return ways

    def _methods(self, cls: ClassInfo) -> Methods:
        """The bodies of the methods of a class, inherited ones included."""
        bodies = self._bodies.get(id(cls))
        if bodies is None:
            bodies = self._bodies[id(cls)] = {}
            for base in self._project.lineage(cls):
                if isinstance(base, ClassInfo):
                    for label, method in base.methods.items():
                        bodies.setdefault(label, method.node.body)
        return bodies

    def _record(self, fn: FunctionInfo) -> FunctionRun:
        trace = fn.trace
        extra = fn.name in self._extra or fn.qualname in self._extra
        head = Head(
            Heat.STEP if extra else called(fn, self._project),
            remembered(fn.node),
            fn.cls is not None and fn.name != "forward",
            fn.cls is not None and self._project.is_module_class(fn.cls),
        )
        if not (trace.marks or trace.calls or trace.unread or trace.batch_loops):
            return FunctionRun(head, [], [], [], [])
        ways = self._ways_of(fn)
        steps = self._steps[id(fn)] = _Numbered()
        signs = (_SIGNS[sign] | steps.loop(ways.to(statement)) << 2 for sign, statement in trace.marks)
        called_at = [(self._key(site.callee), site.statement, site.repeated) for site in trace.calls] + trace.unread
        calls = ((key, steps.number(ways.to(at)) << 1 | repeated) for key, at, repeated in called_at)
        batches = (steps.number(loop) - 1 for loop in ways.loops(trace.batch_loops)) if trace.batch_loops else ()
        run = FunctionRun(
            head, steps.rows, list(dict.fromkeys(signs)), list(dict.fromkeys(calls)), list(dict.fromkeys(batches))
        )
        if fn.file not in self._judged:  # no finding will be placed in it
            del self._ways[id(fn)], self._steps[id(fn)]
        return run


class _Numbered:
    """The steps of a function by their numbers in its `FunctionRun`."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._known: dict[int, int] = {}

    def number(self, step: Step | None) -> int:
        """The number of a step, from 1; 0 for none."""
        if step is None:
            return 0
        number = self._known.get(id(step))
        if number is None:
            around = self.number(step.parent)
            self.rows.append(_KINDS[step.kind] | around << 2)
            number = self._known[id(step)] = len(self.rows)
        return number

    def loop(self, step: Step | None) -> int:
        """The number of the loop around, or that a step is."""
        while step is not None and step.kind != "loop":
            step = step.parent
        return self.number(step)

    def last(self, step: Step | None) -> tuple[int, str]:
        """The number of the last step on a way that has one, and the kinds of those after it."""
        beyond: list[str] = []
        while step is not None and id(step) not in self._known:
            beyond.append(str(_KINDS[step.kind]))
            step = step.parent
        return self.number(step), "".join(reversed(beyond))
