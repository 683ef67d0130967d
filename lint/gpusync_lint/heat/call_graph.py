"""How often functions are entered and what their loops repeat, from the call graph of a project.

1. Evidence of steps goes from the callees to the callers: a function that calls one that trains makes a step itself.
   A loop around such a call is a loop of steps. A loop around a whole pass over data is a loop of epochs. An inner
   loop that runs a model without training it, over timesteps or tokens, is a part of one step of the outer loop,
   unless that one counts epochs. Any other loop around a loop of steps may be either: an inner loop over layers,
   micro-batches or several updates is a part of one step as well.
2. Heat goes from the callers to the callees: a function is entered as often as the most frequent of its calls runs. If
   no call is visible outside of tests, its name decides, or the place where it is defined in another function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusync_lint.domain.training_idioms import is_test_path
from gpusync_lint.heat.capture import reached
from gpusync_lint.model.levels import Heat
from gpusync_lint.model.placement import (
    Entry,
    FunctionHeat,
    LoopForm,
    LoopKind,
    PathKind,
    PathNode,
    StepEvidence,
    Unseen,
    guards_in_loop,
    loops_of,
)
from gpusync_lint.model.units import Unit, common

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.placement import Call, CallGraph, FunctionNode, Path, Place

_NEVER_CALLED = FunctionHeat(Heat.ONCE, {})
"""For the places of functions that are not in the graph."""
_NO_EVIDENCE: frozenset[StepEvidence] = frozenset()
_UPDATES = frozenset({StepEvidence.UPDATE, StepEvidence.TRAINING})
_GUARDS = (PathKind.GUARD, PathKind.FEW)
_PARTS = frozenset({LoopForm.PART, LoopForm.HANDFUL, LoopForm.CASES})
_LOOPS = frozenset({StepEvidence.STEP_LOOP, StepEvidence.ACCUMULATION, StepEvidence.TRAINING_LOOP, StepEvidence.PASS})


def propagate(graph: CallGraph) -> dict[Key, FunctionHeat]:
    """How often each function of a graph is entered, and what its loops repeat."""
    steps = _Steps(graph)
    heats = _entry_heats(graph, steps)
    for key, capture in reached(graph).items():
        heats[key] = heats[key]._replace(capture=capture)
    return _with_units(graph, heats, steps.loop_units)


def repeated_entries(heats: Mapping[Key, FunctionHeat]) -> dict[Key, Entry]:
    """The functions that are entered repeatedly."""
    return {key: Entry(heat.entry, heat.unit) for key, heat in heats.items() if heat.entry is not Heat.ONCE}


def with_entries(graph: CallGraph, known: Mapping[Key, Entry]) -> CallGraph:
    """A graph of some files whose functions are entered at least as often as is known from calls in other files."""
    result: CallGraph = {}
    for key, node in graph.items():
        entry = known.get(key)
        if entry is not None and entry.heat.rank < node.convention.rank:
            node = node._replace(convention=entry.heat, unit=node.unit or entry.unit)
        result[key] = node
    return result


def heat_at(place: Place, heats: Mapping[Key, FunctionHeat]) -> Heat:
    """How often a place runs."""
    function = heats.get(place.function, _NEVER_CALLED)
    heat = _heat_along(place.path, function)
    if place.repeated and heat is Heat.ONCE:
        heat = Heat.EPOCH
    return Heat.GUARDED if place.deferred and heat is Heat.STEP else heat


def _heat_along(path: Path, function: FunctionHeat) -> Heat:
    """The heat at the end of a path through a function."""
    heat, loops = function.entry, function.loops
    outside: list[Heat] = []
    """The heat outside each loop of the path."""
    for kind, line, _ in path:
        if kind is PathKind.LOOP:
            outside.append(heat)
            if loops.get(line) is LoopKind.STEPS:
                heat = Heat.STEP
            elif heat is Heat.ONCE:
                heat = Heat.EPOCH
        elif kind is PathKind.GUARD:
            if heat is Heat.STEP and line not in function.training_guards:
                heat = Heat.GUARDED
        elif kind is PathKind.FEW:
            # Once per run of the loop around it. That is rare unless that loop is a part of a step itself.
            is_part = bool(outside) and outside[-1] is Heat.STEP
            if heat is Heat.STEP and not is_part and line not in function.training_guards:
                heat = Heat.GUARDED
        elif kind is PathKind.ERROR:
            heat = Heat.ONCE
        elif kind is PathKind.EXIT and outside:  # the exit from the innermost loop runs once per run of that loop
            heat = max(outside[-1], heat, key=_rank)
    return heat


def unit_at(place: Place, heats: Mapping[Key, FunctionHeat]) -> Unit | None:
    """What a place runs once per, if it runs in every step."""
    if heat_at(place, heats) is not Heat.STEP:
        return None
    return _unit_along(place.path, heats.get(place.function, _NEVER_CALLED)) or Unit.STEP


def _unit_along(path: Path, function: FunctionHeat) -> Unit | None:
    """What the end of a path through a function runs once per; None if nothing shows it."""
    unit = function.unit
    for line in loops_of(path):
        unit = function.loop_units.get(line, unit)
    return unit


def _rank(heat: Heat) -> int:
    return heat.rank


class _Steps:
    """Which functions make steps, which of their loops repeat steps or epochs, and which guards are no rare blocks."""

    def __init__(self, graph: CallGraph) -> None:
        self._graph = graph
        self._found: dict[Key, frozenset[StepEvidence]] = {}
        """For each function, the evidence of steps in it or in what it calls."""
        self.loops: dict[Key, dict[int, LoopKind]] = {}
        self.loop_units: dict[Key, dict[int, Unit]] = {}
        self.training_guards: dict[Key, frozenset[int]] = {}
        for group in _callees_first(graph):
            self._analyze(group)

    def is_step(self, key: Key) -> bool:
        """Whether a function runs in every step, as far as its name and its body say, if nothing visible calls it."""
        unseen = self._graph[key].unseen
        found = self._found.get(key, _NO_EVIDENCE)
        return unseen is Unseen.STEP or (unseen is Unseen.MODEL and bool(found) and found.isdisjoint(_LOOPS))

    def convention(self, key: Key) -> Heat:
        """How often a framework calls a function. A task that passes over data is a whole training."""
        node = self._graph[key]
        is_training = node.is_task and StepEvidence.PASS in self._found.get(key, _NO_EVIDENCE)
        return Heat.ONCE if is_training else node.convention

    def _analyze(self, group: list[Key]) -> None:
        """Find the evidence in functions that call each other, after that in all other functions that they call."""
        if len(group) == 1:
            self._found[group[0]] = frozenset(self._evidence(group[0], self._graph[group[0]]))
            return
        changed = True
        while changed:
            changed = False
            for key in sorted(group):
                known = self._found.get(key, _NO_EVIDENCE)
                self._found[key] = known | self._evidence(key, self._graph[key])
                changed |= self._found[key] != known

    def _evidence(self, key: Key, node: FunctionNode) -> AbstractSet[StepEvidence]:
        """The evidence in a function; what its loops repeat, and which of its guards train, is noted."""
        if not node.evidence and not node.calls and not node.data_loops:
            return _NO_EVIDENCE
        in_loops: dict[int, set[StepEvidence]] = {}
        """By loop, the evidence in it and in no loop inside it; 0 for what is in no loop."""
        advancing: set[int] = set()
        """The loops that call a function that is named as a step, as those of simulations do."""
        guards: set[int] = set()
        for kind, path in node.evidence:
            loops = loops_of(path)
            if kind is StepEvidence.LAYER:  # a loop over layers is a part of one step
                in_loops.setdefault(0, set()).add(StepEvidence.MODEL)
            else:
                in_loops.setdefault(loops[-1] if loops else 0, set()).add(kind)
                if kind in _UPDATES:
                    guards.update(guards_in_loop(path))
        for call in node.calls:
            found = self._found.get(call.callee, _NO_EVIDENCE)
            if _is_constructor(call.callee):  # it runs a part of what it makes, to know a size or to initialize it
                found -= {StepEvidence.MODEL}
            if call.callee == key:
                continue
            loops = loops_of(call.path)
            if loops and _is_step(call.callee):
                advancing.add(loops[-1])
            if not found:
                continue
            is_part = found == {StepEvidence.MODEL} and node.in_module and self._graph[call.callee].is_helper
            inside = in_loops.setdefault(loops[-1] if loops and not is_part else 0, set())
            if found & _LOOPS:  # the model is called in that loop, and perhaps once more
                found -= {StepEvidence.MODEL}
            if not found.isdisjoint(_UPDATES):
                guards.update(guards_in_loop(call.path))
            if StepEvidence.PASS in found and any(one.kind in _GUARDS for one in call.path):
                found -= {StepEvidence.PASS}  # an evaluation now and then
            inside |= found
        for loop in advancing - in_loops.keys():
            in_loops[loop] = {StepEvidence.MODEL}
        if in_loops.keys() - {0} or node.data_loops:
            self._classify(key, node, in_loops)
        if guards:
            self.training_guards[key] = frozenset(guards)
        return _with_accumulation(in_loops.get(0, set()))

    def _classify(self, key: Key, node: FunctionNode, in_loops: dict[int, set[StepEvidence]]) -> None:
        """Note what the loops of a function repeat, and add what they are evidence of to what is around them."""
        data_loops = {loops[-1] for loops in node.data_loops}
        forms = dict(node.forms)
        kinds = self.loops[key] = dict.fromkeys(data_loops, LoopKind.STEPS)
        units = self.loop_units[key] = dict.fromkeys(data_loops, Unit.STEP)
        recognized = {loops[-1]: unit for loops, unit in node.unit_loops}
        outer = _outer_loops(node)
        for loop in sorted(outer, reverse=True):  # an inner loop begins after the loops around it
            found = in_loops.get(loop)
            if found is None and loop not in data_loops:
                continue
            found = _with_accumulation(found or set())
            form = forms.get(loop)
            if loop not in data_loops:
                kinds[loop] = LoopKind.STEPS if loop in recognized else _kind(form, found)
            if not found.isdisjoint(_UPDATES):
                units[loop] = Unit.STEP
            elif loop in recognized:
                units[loop] = recognized[loop]
            around = in_loops.setdefault(outer[loop], set())
            around |= {StepEvidence.PASS} if loop in data_loops else _evidence_of_loop(form, kinds[loop], found)


def _callees_first(graph: CallGraph) -> Iterator[list[Key]]:
    """The functions of a graph after those that they call; functions that call each other together (Tarjan, 1972)."""
    numbers: dict[Key, int] = {}
    lowest: dict[Key, int] = {}
    path: list[Key] = []
    for root in graph:
        if root in numbers:
            continue
        numbers[root] = lowest[root] = len(numbers)
        path.append(root)
        stack = [(root, iter(graph[root].calls))]
        while stack:
            key, calls = stack[-1]
            for call in calls:
                callee = call.callee
                if callee not in graph:
                    continue
                if callee not in numbers:
                    numbers[callee] = lowest[callee] = len(numbers)
                    path.append(callee)
                    stack.append((callee, iter(graph[callee].calls)))
                    break
                lowest[key] = min(lowest[key], lowest[callee])
            else:
                stack.pop()
                if stack:
                    lowest[stack[-1][0]] = min(lowest[stack[-1][0]], lowest[key])
                if lowest[key] == numbers[key]:
                    group = [path.pop()]
                    while group[-1] != key:
                        group.append(path.pop())
                    lowest.update(dict.fromkeys(group, len(graph)))  # no longer on the path
                    yield group


def _with_accumulation(found: set[StepEvidence]) -> set[StepEvidence]:
    """An update after a loop that differentiates, together with that loop, makes one training step."""
    if StepEvidence.ACCUMULATION in found and StepEvidence.UPDATE in found:
        return found - {StepEvidence.ACCUMULATION} | {StepEvidence.TRAINING}
    return found


def _kind(form: LoopForm | None, found: set[StepEvidence]) -> LoopKind:
    """What a loop repeats that does not iterate over a data loader, from what is in it."""
    few = found.isdisjoint(_UPDATES) if form is LoopForm.HANDFUL else form is LoopForm.CASES
    if few and found.isdisjoint(_LOOPS):
        return LoopKind.EPOCHS
    if StepEvidence.TRAINING in found or found.isdisjoint(_LOOPS):
        return LoopKind.STEPS
    if StepEvidence.PASS in found:
        return LoopKind.EPOCHS
    if StepEvidence.UPDATE in found and StepEvidence.TRAINING_LOOP not in found:
        return LoopKind.STEPS
    if form is LoopForm.EPOCHS:
        return LoopKind.EPOCHS
    # A loop inside it that only runs a model, over tokens or timesteps, is a part of one step: of a prompt, an image.
    is_step = StepEvidence.MODEL in found or form is LoopForm.STEPS or found & _LOOPS == {StepEvidence.STEP_LOOP}
    return LoopKind.STEPS if is_step else LoopKind.EPOCHS


def _evidence_of_loop(form: LoopForm | None, kind: LoopKind, found: set[StepEvidence]) -> AbstractSet[StepEvidence]:
    """What a loop is evidence of for the code around it, if it does not iterate over a data loader."""
    if form in _PARTS:
        return found
    if StepEvidence.PASS in found or (kind is LoopKind.EPOCHS and form is LoopForm.EPOCHS):
        return {StepEvidence.PASS}
    if kind is LoopKind.EPOCHS:
        return found & _LOOPS
    if StepEvidence.TRAINING not in found:
        return {StepEvidence.STEP_LOOP}
    if StepEvidence.UPDATE not in found:
        return {StepEvidence.ACCUMULATION}
    return {StepEvidence.PASS if form is LoopForm.DATA else StepEvidence.TRAINING_LOOP}


def _outer_loops(node: FunctionNode) -> dict[int, int]:
    """The loops of a function, each with the loop around it; 0 for none."""
    outer: dict[int, int] = {}
    chains = [loops_of(call.path) for call in node.calls]
    chains += [loops for loops, _ in node.unit_loops]
    for loops in (*chains, *(loops_of(evidence.path) for evidence in node.evidence), *node.data_loops):
        outer.update(zip(loops, (0, *loops), strict=False))
    return outer


def _heat_of_call(caller: Key, call: Call, heat: Heat, callee: FunctionNode) -> Heat:
    """How often a call runs the body of its callee, given the heat of its statement.

    That tests make objects again and again does not say how often others do.
    """
    if heat is Heat.STEP and _is_constructor(call.callee) and is_test_path(caller[0]) > is_test_path(call.callee[0]):
        return Heat.EPOCH
    if call.repeated and heat is Heat.ONCE:
        return Heat.EPOCH
    return Heat.GUARDED if heat is Heat.STEP and callee.memoized else heat


def _entry_heats(graph: CallGraph, steps: _Steps) -> dict[Key, FunctionHeat]:
    """The heat that each function is entered with: that of the most frequent of its calls."""
    consumed = {key for key, node in graph.items() if node.feeds_loader}
    """The generators that a loop of steps iterates over."""

    def heat_of(key: Key) -> FunctionHeat:
        loops = steps.loops.get(key, {})
        if key in consumed:
            loops = {**loops, **dict.fromkeys(graph[key].yield_loops, LoopKind.STEPS)}
        return FunctionHeat(entries[key], loops, training_guards=steps.training_guards.get(key, frozenset()))

    called = {call.callee for key, node in graph.items() if not is_test_path(key[0]) for call in node.calls}
    entries: dict[Key, Heat] = {}
    definitions: dict[Key, list[Call]] = {}
    """By function, the functions that are defined in it and that nothing visible calls."""
    for key, node in graph.items():
        entries[key] = steps.convention(key)
        if key in called:
            continue
        if node.convention is Heat.ONCE and steps.is_step(key):
            entries[key] = Heat.STEP
        if node.outer is not None:
            definitions.setdefault(node.outer.callee, []).append(node.outer._replace(callee=key))
    queues: dict[Heat, list[Key]] = {heat: [] for heat in Heat}
    """The functions whose calls are to be followed. The most frequent come first, so that few are followed twice."""
    for key, node in graph.items():
        if node.calls or key in definitions:
            queues[entries[key]].append(key)
    waiting = tuple(queues.items())
    while (found := next((item for item in waiting if item[1]), None)) is not None:
        entry, key = found[0], found[1].pop()
        if entries[key] is not entry:  # it has become hotter, and is in that queue as well
            continue
        function = heat_of(key)
        for call in (*graph[key].calls, *definitions.get(key, ())):
            known = entries.get(call.callee)
            if known is None:
                continue
            heat = _heat_of_call(key, call, _heat_along(call.path, function), graph[call.callee])
            is_consumed = call.consumer and call.callee not in consumed and _is_step_in(call, function)
            if is_consumed:
                consumed.add(call.callee)
            if heat.rank < known.rank or is_consumed:
                entries[call.callee] = min(heat, known, key=_rank)
                queues[entries[call.callee]].append(call.callee)
    return {key: heat_of(key) for key in entries}


def _with_units(
    graph: CallGraph, heats: dict[Key, FunctionHeat], loop_units: Mapping[Key, Mapping[int, Unit]]
) -> dict[Key, FunctionHeat]:
    """Add what each function is entered once per: the strongest unit of the calls that run in every step."""
    for key, units in loop_units.items():
        if units:
            heats[key] = heats[key]._replace(loop_units=units)
    changed = []
    for key, node in graph.items():
        if node.unit is not None and heats[key].entry is Heat.STEP:
            heats[key] = heats[key]._replace(unit=node.unit)
        if node.calls and (heats[key].unit is not None or heats[key].loop_units):
            changed.append(key)
    while changed:
        key = changed.pop()
        own = heats[key]
        for call in graph[key].calls:
            callee = heats.get(call.callee)
            if callee is None or callee.entry is not Heat.STEP:
                continue
            unit = _unit_along(call.path, own)
            if unit is None or _heat_along(call.path, own) is not Heat.STEP:
                continue
            stronger = common(callee.unit, unit)
            if stronger is not callee.unit:
                heats[call.callee] = callee._replace(unit=stronger)
                if graph[call.callee].calls:
                    changed.append(call.callee)
    return heats


def _is_constructor(key: Key) -> bool:
    return key[1].rpartition(".")[2] == "__init__"


def _is_step(key: Key) -> bool:
    """Whether a function is named as a step: `integrator.step`."""
    return key[1] == "step" or key[1].endswith(".step")


def _is_step_in(call: Call, function: FunctionHeat) -> bool:
    """Whether the loop over what a call yields runs an iteration in every step."""
    return _heat_along((*call.path, PathNode(PathKind.LOOP, call.consumer)), function) is Heat.STEP
