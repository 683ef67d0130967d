"""Run files as nobody writes them: a complete valid one, and seeded mutants of it."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from measurements import H200, SIMULATED, stepped, sync

from pytest_gpusync.model.budgets import Budget, judge
from pytest_gpusync.model.measurement import RegionTimes
from pytest_gpusync.reporting.merging import merge_runs
from pytest_gpusync.reporting.run_file import region_document, run_document, to_text, unmeasured_document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

MARKUP = '"><img src=x onerror=alert(1)><script>alert(2)</script>'
TERMINAL = "\x1b[31m\x1b]0;title\x07\n::error::planted\r##[error]planted\u202e\u2028\x85"
MARKDOWN = "a`|b<b>[c](javascript:d) @e https://f"

VALUES: tuple[Any, ...] = (MARKUP, TERMINAL, MARKDOWN, "\ud800", "\0", "x" * 5000, "1" * 5000, "")
VALUES += (None, True, -1, 0, 1, 2**31, 2**53, 10**30, 1e308, -0.5, float("nan"), float("inf"))
VALUES += ([], {}, [[]], [[0, 3]], [[3, 0]], [[0, 10**11]], {"a.py": [[0, 2**31 - 1]]}, {MARKUP: MARKUP})

RACE = {"kind": "stream", "path": "a.py", "line": 3, "function": "f", "tensor": "x", "shape": [2], "bytes": 8}
RACE |= {"stream": "stream 3", "times": 2, "message": "x is read on stream 3 and written on the default stream"}
RACE |= {"other": {"path": "a.py", "line": 2, "function": "f", "stream": "default stream"}}


def complete() -> dict[str, Any]:
    """A merged run in which nearly every field has a value."""
    waits = tuple(
        sync(step, line=line, began_ns=step * 10**7, blocked_ns=10**6, device=line % 2)
        for step in range(4)
        for line in (1, 2)
    )
    timed = stepped(
        [0] * 4,
        environment=H200,
        extra=(*waits, sync(None, line=7, allowed="early stop"), sync(None, line=8, background=True, thread="loader")),
        times=RegionTimes(tuple(10**7 * (step + 1) for step in range(4)), 5 * 10**7),
        name="test_a.py::test_timed",
    )
    counted = stepped([3, 1, 2], name="test_a.py::test_counted", extra=(sync(1, via="torch/nn.py:1 call", line=4),))
    regions = [region_document(one, [judge(one, Budget(max=1))]) for one in (timed, counted)]
    regions[1]["races"] = [RACE]
    first = run_document(H200, [*regions, unmeasured_document("test_a.py::test_c", "no GPU")], {"a.py": [[1, 9]]})
    second = run_document(SIMULATED, [region_document(counted)], {"a.py": [[5, 12]]})
    merged = merge_runs([("one.json", first), ("two.json", second)])
    document: dict[str, Any] = json.loads(to_text(merged))
    return document


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in items:
        yield from places(entry, (*path, key))


def mutants(document: dict[str, Any], random: Random) -> Iterator[bytes]:
    """Endless mutants of a run file: values replaced, removed, moved and repeated, and bytes changed."""
    everywhere = list(places(document))
    text = json.dumps(document).encode()
    while True:
        if random.random() < 0.2:
            yield _changed_bytes(text, random)
            continue
        mutant = copy.deepcopy(document)
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            _change(mutant, random.choice(everywhere), random)
        yield json.dumps(mutant).encode()


def _change(document: Any, path: tuple[Any, ...], random: Random) -> None:
    holder = document
    try:
        for key in path[:-1]:
            holder = holder[key]
        old = holder[path[-1]]
    except (LookupError, TypeError):
        return  # an earlier change removed it
    if not isinstance(holder, (dict, list)):
        return  # an earlier change put a text there
    kind = random.random()
    if kind < 0.6:
        holder[path[-1]] = copy.deepcopy(random.choice(VALUES))
    elif kind < 0.75:
        del holder[path[-1]]
    elif kind < 0.85 and isinstance(old, list):
        old *= random.choice((2, 50))
    elif isinstance(holder, dict):
        holder[random.choice(list(holder))] = old
        holder[random.choice((MARKUP, TERMINAL, "unknown"))] = old
    elif isinstance(holder, list):
        random.shuffle(holder)


def _changed_bytes(text: bytes, random: Random) -> bytes:
    start = random.randrange(len(text))
    end = min(len(text), start + random.choice((1, 1, 8, 200)))
    middle = random.choice(
        (b"", bytes([random.randrange(256)]), text[start:end] * 3, b"[" * 5000, b"NaN", b"9" * 5000, b'"\\ud800"')
    )
    return text[:start] + middle + text[end:]
