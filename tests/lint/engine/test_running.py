"""The graph of how functions run: what linking says does not depend on how it is put together."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest
from gpusync_lint.heat import call_graph
from gpusync_lint.heat.call_graph import FunctionRun, Head
from gpusync_lint.model.levels import Heat
from gpusync_lint.model.placement import Place

if TYPE_CHECKING:
    from gpusync_lint.model.function_key import Key


def _run(chance: random.Random, keys: list[Key]) -> FunctionRun:
    steps: list[int] = []
    for number in range(chance.randrange(5)):
        steps.append(chance.randrange(4) | chance.randrange(number + 1) << 2)
    loops = [number for number, code in enumerate(steps, 1) if code & 3 == call_graph.LOOP]
    head = Head(chance.choice([Heat.ONCE] * 6 + list(Heat)), *(chance.random() < 0.3 for _ in range(3)))
    signs = [chance.randrange(4) | chance.choice([0, *loops]) << 2 for _ in range(chance.choice([0, 0, 0, 1, 2]))]
    calls = [
        (chance.choice(keys), chance.randrange(len(steps) + 1) << 1 | (chance.random() < 0.2))
        for _ in range(chance.choice([0, 1, 2, 3]))
    ]
    batches = [loop - 1 for loop in loops if chance.random() < 0.1]
    return FunctionRun(head, steps if signs or calls or batches else [], signs, calls, batches)


@pytest.mark.parametrize("seed", range(40))
def test_parts_tell_what_the_whole_does(seed: int) -> None:
    chance = random.Random(seed)
    keys = [(f"{number // 5}.py", f"f{number}") for number in range(40)]
    runs = {key: _run(chance, [*keys, ("gone.py", "f")]) for key in keys}
    whole = call_graph.graph(runs)
    (linked,) = call_graph.link([whole])
    places = [
        (key, step, beyond) for key in keys for step in range(-1, len(runs[key].steps)) for beyond in ("", "0", "10")
    ]

    def told(teller: call_graph.Teller, own: list[Key]) -> dict[object, Heat]:
        return {
            place: teller.heat(Place(own.index(place[0]), *place[1:], False, False))
            for place in places
            if place[0] in own
        }

    expected = told(call_graph.Teller(whole, linked), keys)
    assert len(set(expected.values())) > 1
    cuts = sorted(chance.sample(range(1, 8), 2))
    groups = [
        [key for key in keys if low <= int(key[0][0]) < high] for low, high in zip([0, *cuts], [*cuts, 8], strict=True)
    ]
    chance.shuffle(groups)
    graphs = [call_graph.graph({key: runs[key] for key in group}) for group in groups]
    graphs = [call_graph.Graph(*json.loads(json.dumps(graph))) for graph in graphs]
    found: dict[object, Heat] = {}
    for group, graph, one in zip(groups, graphs, call_graph.link(graphs), strict=True):
        found |= told(call_graph.Teller(graph, call_graph.Linked(*json.loads(json.dumps(one)))), group)
    assert found == expected


def test_functions_of_one_name_are_told_apart() -> None:
    loop, learns = call_graph.LOOP, call_graph.STRONG | 1 << 2
    head = Head(Heat.ONCE, False, False, False)
    trains = FunctionRun(head, [loop], [learns], [(("a.py", "f#2"), 1 << 1)], [])
    runs = {
        ("a.py", "f"): FunctionRun(head, [], [], [], []),
        ("a.py", "f#2"): FunctionRun(head, [], [], [], []),
        ("b.py", "train"): trains,
    }
    graph = call_graph.graph(runs)
    (linked,) = call_graph.link([graph])
    teller = call_graph.Teller(graph, linked)
    assert [teller.heat(Place(number, -1, "", False, False)) for number in range(3)] == [
        Heat.ONCE,
        Heat.STEP,
        Heat.ONCE,
    ]
    assert teller.heat(Place(2, 0, "", False, True)) is Heat.GUARDED
    assert teller.heat(Place(-1, -1, "0", True, False)) is Heat.EPOCH
