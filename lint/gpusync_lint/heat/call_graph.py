"""How often functions are entered and what their loops repeat, from the call graph of a project.

1. Evidence of steps goes from the callees to the callers: a function that calls one that trains makes a step itself.
   A loop around such a call is a loop of steps; a loop around a loop of steps is a loop of epochs.
2. Heat goes from the callers to the callees: a function is entered as often as the most frequent of its calls runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusync_lint.model.levels import Heat
from gpusync_lint.model.placement import FunctionHeat, LoopKind, PathKind, StepEvidence, loops_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.placement import Call, CallGraph, FunctionNode, Path, Place

_NEVER_CALLED = FunctionHeat(Heat.ONCE, {})
"""For the places of functions that are not in the graph."""


def propagate(graph: CallGraph) -> dict[Key, FunctionHeat]:
    """How often each function of a graph is entered, and what its loops repeat."""
    steps = _Steps(graph)
    return _entry_heats(graph, steps.loops)


def heat_at(place: Place, heats: Mapping[Key, FunctionHeat]) -> Heat:
    """How often a place runs."""
    function = heats.get(place.function, _NEVER_CALLED)
    heat = _heat_along(place.path, function.entry, function.loops)
    if place.repeated and heat is Heat.ONCE:
        heat = Heat.EPOCH
    return Heat.GUARDED if place.deferred and heat is Heat.STEP else heat


def _heat_along(path: Path, entry: Heat, loops: Mapping[int, LoopKind]) -> Heat:
    """The heat at the end of a path through a function that is entered with a heat."""
    heat = entry
    outside: list[Heat] = []
    """The heat outside each loop of the path."""
    for kind, line in path:
        if kind is PathKind.LOOP:
            outside.append(heat)
            if loops.get(line) is LoopKind.STEPS:
                heat = Heat.STEP
            elif heat is Heat.ONCE:
                heat = Heat.EPOCH
        elif kind is PathKind.GUARD:
            if heat is Heat.STEP:
                heat = Heat.GUARDED
        elif kind is PathKind.ERROR:
            heat = Heat.ONCE
        elif outside:  # the exit from the innermost loop runs once per run of that loop
            heat = max(outside[-1], heat, key=_rank)
    return heat


def _rank(heat: Heat) -> int:
    return heat.rank


class _Steps:
    """Which functions make steps, and which of their loops repeat steps or epochs."""

    def __init__(self, graph: CallGraph) -> None:
        self._graph = graph
        self._strongest: dict[Key, StepEvidence] = {}
        """For each function, the strongest evidence of a step in it or in what it calls."""
        self._outer = {key: _outer_loops(node) for key, node in graph.items()}
        """For each function, its loops, each with the loop around it; 0 for none."""
        self.loops: dict[Key, dict[int, LoopKind]] = {}
        self._propagate()

    def _propagate(self) -> None:
        """Compute the evidence to a fixed point; it only becomes stronger."""
        callers: dict[Key, list[Key]] = {}
        changed: list[Key] = []
        for key, node in self._graph.items():
            for call in node.calls:
                callers.setdefault(call.callee, []).append(key)
            if node.evidence or node.data_loops:
                self._update(key, changed)
        while changed:
            for caller in callers.get(changed.pop(), ()):
                self._update(caller, changed)

    def _update(self, key: Key, changed: list[Key]) -> None:
        """Compute the evidence in a function from that in its callees, and append the function if it has changed."""
        found = self._evidence(key, self._graph[key])
        if found is not None and found > self._strongest.get(key, 0):
            self._strongest[key] = found
            changed.append(key)

    def _evidence(self, key: Key, node: FunctionNode) -> StepEvidence | None:
        """The strongest evidence in a function; what its loops repeat is noted."""
        in_loops: dict[int, set[StepEvidence]] = {}
        outside: list[StepEvidence] = []
        for kind, loops in node.evidence:
            if kind is StepEvidence.LAYER:  # a loop over layers is a part of one step
                outside.append(StepEvidence.MODEL)
            elif loops:
                in_loops.setdefault(loops[-1], set()).add(kind)
            else:
                outside.append(kind)
        for call in node.calls:
            found = self._strongest.get(call.callee)
            if found is None or call.callee == key:
                continue
            loops = loops_of(call.path)
            is_part = found is StepEvidence.MODEL and node.in_module and self._graph[call.callee].is_helper
            if loops and not is_part:
                in_loops.setdefault(loops[-1], set()).add(found)
            else:
                outside.append(found)
        if in_loops or node.data_loops:
            outside += self._classify(key, node, in_loops)
        return max(outside, default=None)

    def _classify(self, key: Key, node: FunctionNode, in_loops: dict[int, set[StepEvidence]]) -> list[StepEvidence]:
        """Note what the loops of a function repeat, and return the evidence that they are for what is around them."""
        kinds = self.loops[key] = {loops[-1]: LoopKind.STEPS for loops in node.data_loops}
        outer = self._outer[key]
        outside: list[StepEvidence] = []
        around_training: set[int] = set()
        """The loops around a loop over data that trains: what they update besides, they update once per epoch."""
        for loop in sorted(outer, reverse=True):  # an inner loop begins after the loops around it
            found = in_loops.get(loop)
            if found is None:
                continue
            is_steps = (
                loop in kinds
                or StepEvidence.TRAINING in found
                or (StepEvidence.UPDATE in found and loop not in around_training)
                or StepEvidence.STEP_LOOP not in found
            )
            if loop in kinds and StepEvidence.TRAINING in found:
                around_training.add(outer[loop])
            kinds[loop] = LoopKind.STEPS if is_steps else LoopKind.EPOCHS
            if outer[loop]:
                in_loops.setdefault(outer[loop], set()).add(StepEvidence.STEP_LOOP)
            else:
                outside.append(StepEvidence.STEP_LOOP)
        return outside


def _outer_loops(node: FunctionNode) -> dict[int, int]:
    outer: dict[int, int] = {}
    chains = [loops_of(call.path) for call in node.calls]
    for loops in (*chains, *(evidence.loops for evidence in node.evidence), *node.data_loops):
        outer.update(zip(loops, (0, *loops), strict=False))
    return outer


def _heat_of_call(call: Call, heat: Heat, callee: FunctionNode) -> Heat:
    """How often a call runs the body of its callee, given the heat of its statement."""
    if call.repeated and heat is Heat.ONCE:
        return Heat.EPOCH
    return Heat.GUARDED if heat is Heat.STEP and callee.memoized else heat


def _entry_heats(graph: CallGraph, loops: Mapping[Key, Mapping[int, LoopKind]]) -> dict[Key, FunctionHeat]:
    """The heat that each function is entered with: that of the most frequent of its calls."""
    entries = {key: node.convention for key, node in graph.items()}
    queues: dict[Heat, list[Key]] = {heat: [] for heat in Heat}
    """The functions whose calls are to be followed. The most frequent come first, so that few are followed twice."""
    for key, node in graph.items():
        if node.calls:
            queues[entries[key]].append(key)
    while (entry := next((heat for heat in Heat if queues[heat]), None)) is not None:
        key = queues[entry].pop()
        if entries[key] is not entry:  # it has become hotter, and is in that queue as well
            continue
        own_loops = loops.get(key, {})
        for call in graph[key].calls:
            known = entries.get(call.callee)
            if known is None:
                continue
            heat = _heat_of_call(call, _heat_along(call.path, entry, own_loops), graph[call.callee])
            if heat.rank < known.rank:
                entries[call.callee] = heat
                queues[heat].append(call.callee)
    return {key: FunctionHeat(entry, loops.get(key, {})) for key, entry in entries.items()}
