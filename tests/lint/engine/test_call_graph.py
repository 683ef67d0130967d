"""The call graph: the heat of a place does not depend on how the graph is divided, or on the cache."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest
from gpusync_lint.heat.call_graph import heat_at, propagate
from gpusync_lint.model.levels import Heat
from gpusync_lint.model.placement import (
    Call,
    Evidence,
    FunctionNode,
    LoopForm,
    Path,
    PathKind,
    PathNode,
    Place,
    StepEvidence,
    loops_of,
)
from gpusync_lint.run.graph_rows import graph_row, heats_row, place_row, read_graph, read_heats, read_place

if TYPE_CHECKING:
    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.placement import CallGraph

LOOP = PathNode(PathKind.LOOP, 2)


def _paths(chance: random.Random) -> list[Path]:
    """Paths through one function: each extends an earlier one by a node."""
    paths: list[Path] = [()]
    for number in range(chance.randrange(5)):
        kind = chance.choice(list(PathKind))
        paths.append(
            (*chance.choice(paths), PathNode(kind, number + 1 if kind in (PathKind.LOOP, PathKind.GUARD) else 0))
        )
    return paths


def _node(chance: random.Random, keys: list[Key], paths: list[Path]) -> FunctionNode:
    return FunctionNode(
        chance.choice([Heat.ONCE] * 6 + list(Heat)),
        *(chance.random() < 0.3 for _ in range(3)),
        evidence=tuple(
            Evidence(chance.choice(list(StepEvidence)), chance.choice(paths))
            for _ in range(chance.choice([0, 0, 0, 1, 2]))
        ),
        calls=tuple(
            Call(chance.choice(keys), chance.choice(paths), chance.random() < 0.2)
            for _ in range(chance.choice([0, 1, 2, 3]))
        ),
        data_loops=tuple(
            loops_of(path)
            for path in paths
            if path and path[-1].kind is PathKind.LOOP and chance.random() < 0.1
        ),
        forms=tuple((line, chance.choice(list(LoopForm))) for line in loops_of(paths[-1])),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_heats_are_the_same_when_the_parts_of_a_graph_come_from_the_cache(seed: int) -> None:
    chance = random.Random(seed)
    keys = [(f"{number // 5}.py", f"f{number}") for number in range(40)]
    paths = {key: _paths(chance) for key in keys}
    whole: CallGraph = {key: _node(chance, [*keys, ("gone.py", "f")], paths[key]) for key in keys}
    places = [Place(key, path) for key in keys for path in paths[key]]
    heats = propagate(whole)
    expected = [heat_at(place, heats) for place in places]
    assert len(set(expected)) > 1
    chance.shuffle(keys)
    parts = [{key: whole[key] for key in keys[start::3]} for start in range(3)]
    stored = [json.dumps(graph_row(part)) for part in parts]
    parts = [read_graph(json.loads(row)) for row in stored]
    joined: CallGraph = {key: node for part in parts for key, node in part.items()}
    assert joined == whole
    heats = propagate(joined)
    heats = {
        key: heat
        for part in parts
        for key, heat in read_heats(json.loads(json.dumps(heats_row(part, heats))), part).items()
    }
    assert [heat_at(place, heats) for place in places] == expected


def test_two_functions_of_one_name_have_different_heats() -> None:
    graph: CallGraph = {
        ("a.py", "f"): FunctionNode(Heat.ONCE),
        ("a.py", "f#2"): FunctionNode(Heat.ONCE),
        ("b.py", "train"): FunctionNode(
            Heat.ONCE,
            evidence=(Evidence(StepEvidence.TRAINING, (LOOP,)),),
            calls=(Call(("a.py", "f#2"), (LOOP,), False),),
        ),
    }
    heats = propagate(graph)
    assert [heat_at(Place(key, ()), heats) for key in graph] == [Heat.ONCE, Heat.STEP, Heat.ONCE]
    assert heat_at(Place(("b.py", "train"), (LOOP,), deferred=True), heats) is Heat.GUARDED
    assert heat_at(Place(("c.py", "unknown"), (LOOP,), repeated=True), heats) is Heat.EPOCH


def test_a_loop_over_layers_is_a_part_of_one_step() -> None:
    block, model = ("m.py", "Model.block"), ("m.py", "Model.forward")
    graph: CallGraph = {
        block: FunctionNode(Heat.ONCE, is_helper=True, in_module=True, evidence=(Evidence(StepEvidence.MODEL, ()),)),
        model: FunctionNode(Heat.ONCE, in_module=True, calls=(Call(block, (LOOP,), False),)),
    }
    assert propagate(graph)[model].loops == {}
    graph[model] = graph[model]._replace(in_module=False)
    assert list(propagate(graph)[model].loops) == [2]


@pytest.mark.parametrize("repeated", [False, True])
def test_a_place_is_stored_without_its_file(repeated: bool) -> None:
    path = (LOOP, PathNode(PathKind.GUARD), PathNode(PathKind.LOOP, 7), PathNode(PathKind.EXIT))
    place = Place(("a.py", "Trainer.fit"), path, repeated, deferred=not repeated)
    row = json.loads(json.dumps(place_row(place)))
    assert "a.py" not in row
    assert read_place(row, "a.py") == place
    assert read_place(place_row(None), "a.py") is None
