"""How the functions of a project run and call each other, and the heat that follows.

What tells how often the lines of a function run is kept as numbers in lists: the files that are analyzed together hand
it over as a `Graph`, which JSON can hold. `link` puts graphs together and says how often each function is entered and
what each of its loops is; with that, a `Teller` knows how often the places in one graph run, without the others.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.model.levels import Heat
from gpusync_lint.model.placement import Graph, Row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.placement import Place


LOOP, GUARD, EXIT, ERROR = range(4)
"""What may lie on the way from a function's entry to a statement: a loop, a guard, a way out of a loop (a block that
leaves the loop around it) or one that raises."""
LAYER, WEAK, STRONG, INNER = range(4)
"""Signs of a step: a layer is called, a model is, a training step is made, there is a loop of steps. In a function
without a loop around them, the last three are also its level; a layer counts like a model."""
_REPEATS, _STEPS, _EPOCHS = range(3)
"""What a loop is."""
_HEATS = tuple(Heat)
_STEP, _GUARDED, _EPOCH, _ONCE = range(4)
"""Heats by rank."""
_REMEMBERED, _METHOD, _INSIDE = 4, 8, 16
_FIRST = 48
"""Heads are kept as characters from the digit 0 on."""


class Head(NamedTuple):
    """What is known of a function apart from its lines."""

    convention: Heat
    """How often a framework calls it."""
    remembered: bool
    """Whether it keeps what it gave back."""
    method: bool
    """Whether it is a method other than `forward`."""
    inside: bool
    """Whether it is a method of a module."""


class FunctionRun(NamedTuple):
    """All that tells how often the lines of one function run, without its source."""

    head: Head
    steps: list[int]
    """What lies on the ways in it: the kind of each, and 4 times the number, from 1, of what it lies in; 0 for none."""
    signs: list[int]
    """The signs of a step in it: the sign, and 4 times the number, from 1, of the loop around it."""
    calls: list[tuple[Key, int]]
    """The functions that it calls: 1 in a comprehension, and 2 times the number, from 1, of the last step there."""
    batches: list[int]
    """The numbers of its loops over a data loader."""


_Row = tuple[list[int], list[int], list[int], list[int], list[int]]
"""A `Row` without its number."""


class Linked(NamedTuple):
    """What linking has told of a graph."""

    entries: str
    """Of each function a digit: the rank of its heat."""
    loops: list[int]
    """Function, step and what the loop is by turns, for loops that do more than repeat."""


def graph(functions: Mapping[Key, FunctionRun]) -> Graph:
    """The graph of functions; those of one file must follow each other."""
    numbers = {key: number for number, key in enumerate(functions)}
    outside: dict[Key, int] = {}
    names: dict[str, list[str]] = {}
    heads = bytearray()
    rows = []
    for number, ((path, name), run) in enumerate(functions.items()):
        names.setdefault(path, []).append(name)
        head = run.head
        flags = _REMEMBERED * head.remembered | _METHOD * head.method | _INSIDE * head.inside
        heads.append(_FIRST + head.convention.rank + flags)
        if not (run.signs or run.calls or run.batches):
            continue
        calls: list[int] = []
        ways: list[int] = []
        for key, way in run.calls:
            target = numbers.get(key)
            if target is None:
                target = -1 - outside.setdefault(key, len(outside))
            if way:
                ways += (target, way)
            else:
                calls.append(target)
        rows.append(Row(number, run.steps, run.signs, calls, ways, run.batches))
    joined = [" ".join(inside) for inside in names.values()]
    return Graph(list(names), joined, heads.decode(), rows, [list(key) for key in outside])


def link(graphs: Sequence[Graph]) -> list[Linked]:
    """How often the functions of graphs that call each other are entered, and what their loops are."""
    return _Linker(graphs).linked()


class Teller:
    """Tells how often places in a graph run, once it has been linked."""

    def __init__(self, own: Graph, linked: Linked) -> None:
        self._entries = linked.entries
        self._steps = {number: steps for number, steps, *_ in own.rows if steps}
        self._loops: dict[int, dict[int, int]] = {}
        told = iter(linked.loops)
        for number, step, standing in zip(told, told, told, strict=True):
            self._loops.setdefault(number, {})[step] = standing

    def heat(self, place: Place) -> Heat:
        """How often a place runs."""
        number = place.function
        rank = int(self._entries[number]) if number >= 0 else _ONCE
        if place.step >= 0 or place.beyond:
            rank = _along(rank, self._steps.get(number, []), place.step, self._loops.get(number, {}), place.beyond)
        if place.repeated and rank == _ONCE:
            rank = _EPOCH
        return _HEATS[_GUARDED if place.deferred and rank == _STEP else rank]


def _along(entry: int, steps: list[int], step: int, loops: Mapping[int, int], beyond: str = "") -> int:
    """The rank of the heat at the end of a way through a function that is entered with a heat."""
    chain: list[tuple[int, int]] = []
    while step >= 0:
        code = steps[step]
        chain.append((code & 3, loops.get(step, _REPEATS)))
        step = (code >> 2) - 1
    chain.reverse()
    if beyond:
        chain += zip(map(int, beyond), repeat(_REPEATS))
    rank = entry
    before: list[int] = []
    for kind, standing in chain:
        if kind == LOOP:
            before.append(rank)
            if standing == _STEPS:
                rank = _STEP
            elif rank == _ONCE:
                rank = _EPOCH
        elif kind == GUARD:
            if rank == _STEP:
                rank = _GUARDED
        elif kind == ERROR:
            rank = _ONCE
        elif before:  # the way out of the innermost loop runs once per run of the loop
            rank = max(before[-1], rank)
    return rank


class _Linker:
    """Graphs as one, whose functions are numbered throughout."""

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self._graphs = graphs
        self._bases: list[int] = []
        heads = bytearray()
        at: dict[str, tuple[int, str]] = {}
        for own in graphs:
            base = len(heads)
            self._bases.append(base)
            heads += own.heads.encode()
            for path, names in zip(own.files, own.names, strict=True):
                at[path] = (base, names)
                base += names.count(" ") + 1
        self._nobody = len(heads)
        """Stands for functions that nothing is known of: entered all the time, and doing nothing."""
        heads.append(_FIRST + _STEP)
        self._heads = bytes(code - _FIRST for code in heads)
        self._levels = bytearray(len(heads))
        """Of each function the strongest sign of a step in it; 0 for none."""
        self._loops: dict[int, dict[int, int]] = {}
        """What loops are, of the functions that have some."""
        self._rows: dict[int, _Row] = {}
        known: dict[str, dict[str, int]] = {}
        for own, base in zip(graphs, self._bases, strict=True):
            outside = []
            for path, name in own.outside:
                inside = known.get(path)
                if inside is None:
                    start, names = at.get(path, (0, ""))
                    inside = known[path] = {one: number for number, one in enumerate(names.split(" "), start)}
                outside.append(inside.get(name, self._nobody))
            outside.reverse()
            for number, steps, signs, calls, ways, batches in own.rows:
                calls = [base + target if target >= 0 else outside[target] for target in calls]
                if ways:
                    ways = ways.copy()
                    ways[::2] = [base + target if target >= 0 else outside[target] for target in ways[::2]]
                self._rows[base + number] = (steps, signs, calls, ways, batches)

    def linked(self) -> list[Linked]:
        """What is known of each graph."""
        self._find_steps()
        entries = self._spread().translate(bytes((number + _FIRST) & 255 for number in range(256))).decode()
        found = []
        for own, base in zip(self._graphs, self._bases, strict=True):
            loops: list[int] = []
            for number, *_ in own.rows:
                for step, standing in self._loops.get(base + number, {}).items():
                    loops += (number, step, standing)
            found.append(Linked(entries[base : base + len(own.heads)], loops))
        return found

    def _find_steps(self) -> None:
        """To a fixed point, because a function makes a step when one that it calls does; levels only rise."""
        levels, rows = self._levels, self._rows
        callers: list[list[int]] = [[] for _ in levels]
        queue: list[int] = []
        for number, (steps, signs, calls, ways, batches) in rows.items():
            for target in calls:
                callers[target].append(number)
            if ways:
                for target in ways[::2]:
                    callers[target].append(number)
            if steps and any(code & 3 == LOOP for code in steps):
                self._loops[number] = {}
            if signs or batches:
                level = self._level(number)
                if level:
                    levels[number] = level
                    queue.append(number)
        while queue:
            number = queue.pop()
            level = levels[number]
            for caller in callers[number]:
                if caller in self._loops:
                    risen = self._level(caller)
                else:  # without a loop it is at the level of what it calls
                    risen = level
                if risen > levels[caller]:
                    levels[caller] = risen
                    queue.append(caller)

    def _level(self, number: int) -> int:
        """The level of a function, as far as those of what it calls are known; what its loops are is noted."""
        steps, signs, calls, ways, batches = self._rows[number]
        levels = self._levels
        outside = 0
        if number not in self._loops:
            for target in (*calls, *ways[::2]):
                if levels[target] > outside:
                    outside = levels[target]
            return max(outside, max(signs, default=0), WEAK if signs else 0)
        found: dict[int, int] = {}
        """The signs in each loop, as bits."""
        for code in signs:
            sign, loop = code & 3, (code >> 2) - 1
            if loop < 0 or sign == LAYER:  # a loop over layers is a part of one step
                outside = max(outside, sign or WEAK)
            else:
                found[loop] = found.get(loop, 0) | 1 << sign
        for target in calls:
            if target != number and levels[target] > outside:
                outside = levels[target]
        inside = self._heads[number] & _INSIDE
        for target, way in zip(ways[::2], ways[1::2], strict=True):
            level = levels[target]
            if not level or target == number:
                continue
            loop = (way >> 1) - 1
            while loop >= 0 and steps[loop] & 3 != LOOP:
                loop = (steps[loop] >> 2) - 1
            if loop < 0 or (level == WEAK and inside and self._heads[target] & _METHOD):
                outside = max(outside, level)
            else:
                found[loop] = found.get(loop, 0) | 1 << level
        standings = self._loops[number] = dict.fromkeys(batches, _STEPS)
        for loop in range(len(steps) - 1, -1, -1):  # what lies in another comes after it
            signs_in = found.get(loop, 0)
            if not signs_in:
                continue
            strong = loop in standings or signs_in & 1 << STRONG or not signs_in & 1 << INNER
            standings[loop] = _STEPS if strong else _EPOCHS
            parent = (steps[loop] >> 2) - 1
            while parent >= 0 and steps[parent] & 3 != LOOP:
                parent = (steps[parent] >> 2) - 1
            if parent < 0:
                outside = INNER
            else:
                found[parent] = found.get(parent, 0) | 1 << INNER
        return outside

    def _spread(self) -> bytearray:
        """The heat that each function is entered with: that of the hottest place that calls it."""
        heads, rows = self._heads, self._rows
        entries = bytearray(head & 3 for head in heads)
        queues: list[list[int]] = [[], [], [], []]
        """What is to be gone through, by heat: the hottest first, so that few are gone through twice."""
        for number, (_, _, calls, ways, _) in rows.items():
            if ways or (calls and entries[number] < _ONCE):
                queues[entries[number]].append(number)
        rank = _STEP
        while rank <= _ONCE:
            if not queues[rank]:
                rank += 1
                continue
            number = queues[rank].pop()
            if entries[number] != rank:  # it has become hotter, and waits in that queue as well
                continue
            steps, _, calls, ways, _ = rows[number]
            reached = list(zip(calls, repeat(rank))) if rank < _ONCE else []
            if ways:
                loops = self._loops.get(number, {})
                for target, way in zip(ways[::2], ways[1::2], strict=True):
                    heat = _along(rank, steps, (way >> 1) - 1, loops)
                    reached.append((target, _EPOCH if way & 1 and heat == _ONCE else heat))
            for target, heat in reached:
                if heat < entries[target]:
                    if heat == _STEP and heads[target] & _REMEMBERED:
                        heat = _GUARDED
                        if heat >= entries[target]:
                            continue
                    entries[target] = heat
                    if target in rows:
                        queues[heat].append(target)
                        rank = min(rank, heat)
        return entries
