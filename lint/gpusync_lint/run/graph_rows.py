"""Conversion of call graphs, heats and places of findings to and from values for JSON.

The functions that read raise LookupError, TypeError or ValueError if a row is not valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusync_lint.model.levels import Heat
from gpusync_lint.model.placement import (
    Call,
    Evidence,
    FunctionHeat,
    FunctionNode,
    LoopKind,
    PathKind,
    PathNode,
    Place,
    StepEvidence,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.placement import CallGraph, Path

Row = list[Any]
_HEATS = tuple(Heat)
_LETTERS = {PathKind.GUARD: "g", PathKind.EXIT: "x", PathKind.ERROR: "e"}
"""The letters for the nodes of a path. A loop is written as its line number."""
_NODES = {letter: PathNode(kind) for kind, letter in _LETTERS.items()}


def graph_row(graph: CallGraph) -> Row:
    """The row of a call graph: the keys of its functions and of those that they call, then its functions.

    Functions are referred to by their index in the list of keys.
    """
    indices = {key: index for index, key in enumerate(graph)}
    for node in graph.values():
        for call in node.calls:
            indices.setdefault(call.callee, len(indices))
    return [list(indices), [_function_row(node, indices) for node in graph.values()]]


def read_graph(row: Row) -> CallGraph:
    """The call graph of a row."""
    rows, functions = row
    keys = [(str(path), str(name)) for path, name in rows]
    return {keys[index]: _function(row, keys) for index, row in enumerate(functions)}


def _function_row(node: FunctionNode, indices: Mapping[Key, int]) -> Row:
    flags = [node.memoized, node.is_helper, node.in_module]
    row: Row = [node.convention.rank, sum(flag << bit for bit, flag in enumerate(flags))]
    if node.calls or node.evidence or node.data_loops:
        calls = [[indices[call.callee], _path_text(call.path), int(call.repeated)] for call in node.calls]
        row += [node.evidence, calls, node.data_loops]
    return row


def _function(row: Row, keys: list[Key]) -> FunctionNode:
    rank, flags, *rest = row
    memoized, is_helper, in_module = (bool(flags >> bit & 1) for bit in range(3))
    node = FunctionNode(_HEATS[rank], memoized, is_helper, in_module)
    if not rest:
        return node
    evidence, calls, data_loops = rest
    return node._replace(
        evidence=tuple(Evidence(StepEvidence(kind), tuple(loops)) for kind, loops in evidence),
        calls=tuple(Call(keys[index], _path(text), bool(repeated)) for index, text, repeated in calls),
        data_loops=tuple(map(tuple, data_loops)),
    )


def heats_row(graph: CallGraph, heats: Mapping[Key, FunctionHeat]) -> Row:
    """The row of the heats of the functions of a graph."""
    entries = [heats[key].entry.rank for key in graph]
    loops = [
        [index, line, kind.value] for index, key in enumerate(graph) for line, kind in sorted(heats[key].loops.items())
    ]
    return [entries, loops]


def read_heats(row: Row, graph: CallGraph) -> dict[Key, FunctionHeat]:
    """The heats of a row, for the functions of a graph."""
    entries, rows = row
    loops: list[dict[int, LoopKind]] = [{} for _ in graph]
    for index, line, kind in rows:
        loops[index][line] = LoopKind(kind)
    return {key: FunctionHeat(_HEATS[entries[index]], loops[index]) for index, key in enumerate(graph)}


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
    return " ".join([_LETTERS.get(node.kind) or str(node.line) for node in path])


def _path(text: str) -> Path:
    return tuple([_NODES.get(word) or PathNode(PathKind.LOOP, int(word)) for word in text.split()])
