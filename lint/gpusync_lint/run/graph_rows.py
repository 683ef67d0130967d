"""Conversion of call graphs, heats and places of findings to and from values for JSON.

The functions that read raise LookupError, TypeError or ValueError if a row is not valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusync_lint.model.levels import Heat
from gpusync_lint.model.placement import (
    Call,
    Capture,
    Evidence,
    FunctionHeat,
    FunctionNode,
    LoopForm,
    LoopKind,
    PathKind,
    PathNode,
    Place,
    StepEvidence,
    Unseen,
)
from gpusync_lint.model.units import Unit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.placement import CallGraph, Path

Row = list[Any]
_HEATS = tuple(Heat)
_UNITS = (None, *Unit)
"""Units are written as their number in this list."""
_UNSEEN = tuple(Unseen)
_LETTERS = {
    PathKind.GUARD: "g",
    PathKind.FEW: "s",
    PathKind.EXIT: "x",
    PathKind.ERROR: "e",
    PathKind.EAGER: "n",
    PathKind.DEFAULT: "d",
}
"""The letters for the nodes of a path, followed by the line or the parameter, if any. A loop is its line number."""
_NODES = {letter: PathNode(kind) for kind, letter in _LETTERS.items()}
_CAPTURES = {PathKind.CAPTURE: "c", PathKind.COMPILED: "k", PathKind.FULL_GRAPH: "f"}
"""The letters for captures, which are followed by their lines."""
_KINDS = {letter: kind for kind, letter in (_LETTERS | _CAPTURES).items()}


def graph_row(graph: CallGraph) -> Row:
    """The row of a call graph: the keys of its functions and of those that they call, then its functions.

    Functions are referred to by their index in the list of keys.
    """
    indices = {key: index for index, key in enumerate(graph)}
    for node in graph.values():
        for call in (*node.calls, *([] if node.outer is None else [node.outer])):
            indices.setdefault(call.callee, len(indices))
    return [list(indices), [_function_row(node, indices) for node in graph.values()]]


def read_graph(row: Row) -> CallGraph:
    """The call graph of a row."""
    rows, functions = row
    keys = [(str(path), str(name)) for path, name in rows]
    return {keys[index]: _function(row, keys) for index, row in enumerate(functions)}


def _function_row(node: FunctionNode, indices: Mapping[Key, int]) -> Row:
    flags = [node.memoized, node.is_helper, node.in_module, node.feeds_loader]
    row: Row = [
        node.convention.rank,
        sum(flag << bit for bit, flag in enumerate(flags)),
        _UNSEEN.index(node.unseen),
        _UNITS.index(node.unit),
    ]
    outer = None if node.outer is None else _call_row(node.outer, indices)
    rest: Row = [
        [[one.kind, _path_text(one.path)] for one in node.evidence],
        [_call_row(call, indices) for call in node.calls],
        node.data_loops,
        [[line, form.value] for line, form in node.forms],
        node.yield_loops,
        outer,
        [[loops, _UNITS.index(unit)] for loops, unit in node.unit_loops],
    ]
    return [*row, *rest] if any(rest) else row


def _function(row: Row, keys: list[Key]) -> FunctionNode:
    rank, flags, unseen, unit, *rest = row
    memoized, is_helper, in_module, feeds_loader = (bool(flags >> bit & 1) for bit in range(4))
    node = FunctionNode(
        _HEATS[rank],
        memoized,
        is_helper,
        in_module,
        unseen=_UNSEEN[unseen],
        feeds_loader=feeds_loader,
        unit=_UNITS[unit],
    )
    if not rest:
        return node
    evidence, calls, data_loops, forms, yield_loops, outer, unit_loops = rest
    return node._replace(
        evidence=tuple(Evidence(StepEvidence(kind), _path(text)) for kind, text in evidence),
        calls=tuple(_call(row, keys) for row in calls),
        data_loops=tuple(map(tuple, data_loops)),
        unit_loops=tuple((tuple(loops), Unit(_UNITS[number])) for loops, number in unit_loops),
        forms=tuple((int(line), LoopForm(form)) for line, form in forms),
        yield_loops=tuple(map(int, yield_loops)),
        outer=None if outer is None else _call(outer, keys),
    )


def _call_row(call: Call, indices: Mapping[Key, int]) -> Row:
    return [indices[call.callee], _path_text(call.path), int(call.repeated), call.consumer, call.given]


def _call(row: Row, keys: list[Key]) -> Call:
    index, text, repeated, consumer, given = row
    passed = tuple((str(name), str(passed_on)) for name, passed_on in given)
    return Call(keys[index], _path(text), bool(repeated), int(consumer), passed)


def heats_row(graph: CallGraph, heats: Mapping[Key, FunctionHeat]) -> Row:
    """The row of the heats of the functions of a graph."""
    entries = [heats[key].entry.rank for key in graph]
    loops = [
        [index, line, kind.value] for index, key in enumerate(graph) for line, kind in sorted(heats[key].loops.items())
    ]
    units = [_UNITS.index(heats[key].unit) for key in graph]
    loop_units = [
        [index, line, _UNITS.index(unit)]
        for index, key in enumerate(graph)
        for line, unit in sorted(heats[key].loop_units.items())
    ]
    captures = [
        [index, *row] for index, key in enumerate(graph) if (row := capture_row(heats[key].capture)) is not None
    ]
    guards = [[index, *sorted(heats[key].training_guards)] for index, key in enumerate(graph)]
    return [entries, loops, units, loop_units, captures, [row for row in guards if len(row) > 1]]


def read_heats(row: Row, graph: CallGraph) -> dict[Key, FunctionHeat]:
    """The heats of a row, for the functions of a graph."""
    entries, rows, units, unit_rows, captures, guard_rows = row
    loop_units: list[dict[int, Unit]] = [{} for _ in graph]
    for index, line, number in unit_rows:
        loop_units[index][line] = Unit(_UNITS[number])
    loops: list[dict[int, LoopKind]] = [{} for _ in graph]
    for index, line, kind in rows:
        loops[index][line] = LoopKind(kind)
    found = {index: read_capture(rest) for index, *rest in captures}
    guards = {index: frozenset(map(int, lines)) for index, *lines in guard_rows}
    return {
        key: FunctionHeat(
            _HEATS[entries[index]],
            loops[index],
            _UNITS[units[index]],
            loop_units[index],
            found.get(index),
            guards.get(index, frozenset()),
        )
        for index, key in enumerate(graph)
    }


def capture_row(capture: Capture | None) -> Row | None:
    """The row of a capture."""
    if capture is None:
        return None
    return [_CAPTURES[capture.kind], capture.path, capture.line, capture.calls, sorted(capture.given)]


def read_capture(row: Row | None) -> Capture | None:
    """The capture of a row."""
    if row is None:
        return None
    letter, path, line, calls, given = row
    return Capture(_KINDS[letter], path, line, tuple(calls), frozenset(map(str, given)))


def place_row(place: Place | None) -> Row | None:
    """The row of a place. The file is not part of it, since it is that of the finding."""
    if place is None:
        return None
    return [place.function[1], _path_text(place.path), int(place.repeated), int(place.deferred)]


def read_place(row: Row | None, path: str) -> Place | None:
    """The place of a row, for a finding in the file `path`."""
    if row is None:
        return None
    name, text, repeated, deferred = row
    return Place((path, name), _path(text), bool(repeated), bool(deferred))


def _path_text(path: Path) -> str:
    return " ".join(
        [f"{_LETTERS.get(kind) or _CAPTURES.get(kind, '')}{line or ''}{parameter}" for kind, line, parameter in path]
    )


def _path(text: str) -> Path:
    return tuple([_NODES.get(word) or _path_node(word) for word in text.split()])


def _path_node(word: str) -> PathNode:
    kind = _KINDS.get(word[0])
    if kind is PathKind.DEFAULT:
        return PathNode(kind, parameter=word[1:])
    return PathNode(PathKind.LOOP, int(word)) if kind is None else PathNode(kind, int(word[1:] or 0))
