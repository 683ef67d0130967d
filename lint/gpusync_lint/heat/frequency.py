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
from gpusync_lint.project.symbols import ClassDef

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable, Sequence

    from gpusync_lint.heat.control_paths import Step
    from gpusync_lint.heat.memoization import Methods
    from gpusync_lint.model.function_key import Key
    from gpusync_lint.project.effects import Runs
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import FunctionDef, ModuleDef

_KINDS = {"loop": call_graph.LOOP, "guard": call_graph.GUARD, "exit": call_graph.EXIT, "error": call_graph.ERROR}
_SIGNS = {"layer": call_graph.LAYER, "weak": call_graph.WEAK, "strong": call_graph.STRONG, "loop": call_graph.INNER}


class Recorder:
    """Notes how the functions of a project run, once they have been interpreted."""

    def __init__(self, project: Project, runs: Runs, own: Sequence[ModuleDef], step_functions: Iterable[str]) -> None:
        self._classes = project.classes
        self._runs = runs
        self._judged = frozenset(own)
        self._extra = frozenset(step_functions)
        self._ways: dict[FunctionDef, Ways] = {}
        self._bodies: dict[ClassDef, dict[str, list[ast.stmt]]] = {}
        """By class the bodies of its methods."""
        self._steps: dict[FunctionDef, _Numbered] = {}
        """Of the functions with path nodes that matter to others."""
        self._names: dict[FunctionDef, str] = {}
        """The names of functions in their keys."""
        relevant = (fn for file in project.files if project.relevant(file) for fn in file.all_functions)
        functions = [fn for fn in relevant if runs.has_run(fn)]
        seen = set(functions)
        for fn in functions:
            for site in runs.effects(fn).calls:
                if site.callee not in seen:
                    seen.add(site.callee)
                    functions.append(site.callee)
        files = dict.fromkeys((*own, *(fn.file for fn in functions)))
        ordered = [fn for file in files for fn in file.all_functions if fn in seen]
        everything = {self._key(fn): self._record(fn) for fn in ordered}
        inside = {file.path for file in own}
        self.own = call_graph.graph({key: run for key, run in everything.items() if key[0] in inside})
        """The functions of `own` files."""
        self._graph = self.own if len(files) == len(inside) else call_graph.graph(everything)
        self._numbers = {key: number for number, key in enumerate(everything)}
        (linked,) = call_graph.link([self._graph])
        self._teller = call_graph.Teller(self._graph, linked)

    def heat(self, fn: FunctionDef, statement: ast.stmt) -> Heat:
        """How often a statement of a function runs."""
        return self.heat_at(self.place(fn, statement))

    def heat_at(self, place: Place) -> Heat:
        """How often a place runs, as far as these files tell."""
        return self._teller.heat(place)

    def place(self, fn: FunctionDef, statement: ast.stmt, repeated: bool = False, deferred: bool = False) -> Place:
        """Where a statement stands."""
        steps = self._steps.get(fn) or _Numbered()
        step, beyond = steps.last(self._ways_of(fn).to(statement))
        return Place(self._numbers.get(self._key(fn), -1), step - 1, beyond, repeated, deferred)

    def _key(self, fn: FunctionDef) -> Key:
        name = self._names.get(fn)
        if name is None:
            times: Counter[str] = Counter()
            for one in fn.file.all_functions:
                times[one.qualname] += 1
                again = times[one.qualname]
                self._names[one] = one.qualname if again == 1 else f"{one.qualname}#{again}"
            name = self._names[fn]
        return fn.file.path, name

    def _ways_of(self, fn: FunctionDef) -> Ways:
        ways = self._ways.get(fn)
        if ways is None:
            ways = self._ways[fn] = Ways(fn.node.body, {} if fn.cls is None else self._methods(fn.cls))
        return ways

    def _methods(self, cls: ClassDef) -> Methods:
        """The bodies of the methods of a class, inherited ones included."""
        bodies = self._bodies.get(cls)
        if bodies is None:
            bodies = self._bodies[cls] = {}
            for base in self._classes.lineage(cls):
                if isinstance(base, ClassDef):
                    for label, method in base.methods.items():
                        bodies.setdefault(label, method.node.body)
        return bodies

    def _record(self, fn: FunctionDef) -> FunctionRun:
        effects = self._runs.effects(fn)
        extra = fn.name in self._extra or fn.qualname in self._extra
        head = Head(
            Heat.STEP if extra else self._runs.callback_heat(fn) or called(fn, self._classes),
            remembered(fn.node),
            fn.cls is not None and fn.name != "forward",
            fn.cls is not None and self._classes.is_module(fn.cls),
        )
        if not (effects.step_evidence or effects.calls or effects.unread or effects.batch_loops):
            return FunctionRun(head, [], [], [], [])
        ways = self._ways_of(fn)
        steps = self._steps[fn] = _Numbered()
        signs = (_SIGNS[sign] | steps.loop(ways.to(statement)) << 2 for sign, statement in effects.step_evidence)
        called_at = [(self._key(site.callee), site.statement, site.repeated) for site in effects.calls] + effects.unread
        calls = ((key, steps.number(ways.to(at)) << 1 | repeated) for key, at, repeated in called_at)
        batches = (steps.number(loop) - 1 for loop in ways.loops(effects.batch_loops)) if effects.batch_loops else ()
        run = FunctionRun(
            head, steps.rows, list(dict.fromkeys(signs)), list(dict.fromkeys(calls)), list(dict.fromkeys(batches))
        )
        if fn.file not in self._judged:  # no finding will be placed in it
            del self._ways[fn], self._steps[fn]
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
