"""Compare the simulated device's count of syncs with those seen on a GPU, statement by statement.

    python benchmarks/simulated_truth.py TRUTH.json [--only TEXT] [--json OUT.json]

TRUTH.json holds ``env``, Python source that all statements share, and ``rows``, each with ``stmt``, an optional
``setup``, ``syncs`` (host-blocking calls by kind, as a CUPTI callback saw them) and ``blocks_host``. Each statement
runs twice to warm up, then once to be counted, as on the GPU. A row is

    exact         the same number of syncs of each kind
    same verdict  another number, but the host waits in both or in neither
    wrong         the host waits in one and not in the other
    not runnable  the statement failed here
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import sys
import warnings
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pytest_gpusync.simulated import simulated_cuda
from pytest_gpusync.simulated.base import sync_events

if TYPE_CHECKING:
    from pytest_gpusync.model.measurement import RawSync


@dataclass(frozen=True)
class Row:
    stmt: str
    outcome: str
    expected: dict[str, int]
    counted: dict[str, int]
    note: str = ""


class Counting:
    """Counts syncs by kind while open."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()

    def __call__(self, sync: RawSync) -> None:
        self.kinds[sync.kind] += 1

    def __enter__(self) -> Counting:
        sync_events.subscribe(self)
        return self

    def __exit__(self, *_: object) -> None:
        sync_events.unsubscribe(self)


def shared_namespace(source: str) -> tuple[dict[str, Any], list[str]]:
    """Run the shared set-up statement by statement; returns its names and what failed."""
    names: dict[str, Any] = {"__name__": "truth"}
    failed = []
    for statement in ast.parse(source).body:
        try:
            exec(compile(ast.Module([statement], []), "<env>", "exec"), names)
        except Exception as error:
            failed.append(f"line {statement.lineno}: {type(error).__name__}: {error}")
    return names, failed


def measure(row: dict[str, Any], names: dict[str, Any]) -> Row:
    expected = {kind: int(count) for kind, count in row["syncs"].items()}
    statement = row["stmt"].strip()
    code = compile(row["stmt"], "<stmt>", "exec")
    try:
        for _ in range(3):
            exec(row.get("setup") or "", names)
            with Counting() as counting:
                exec(code, names)
    except Exception as error:
        note = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return Row(statement, "not runnable", expected, {}, note)
    counted = dict(counting.kinds)
    # A pageable copy waits without any call that synchronizes: the GPU's count has none.
    calls = {kind: count for kind, count in counted.items() if kind != "pageable"}
    if calls == expected and bool(counted) == (row["blocks_host"] or bool(expected)):
        outcome = "exact"
    elif bool(counted) == row["blocks_host"]:
        outcome = "same verdict"
    else:
        outcome = "wrong"
    return Row(statement, outcome, expected, counted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("truth", type=Path)
    parser.add_argument("--only", default="", help="run the statements that contain this text")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    truth = json.loads(options.truth.read_text(encoding="utf-8"))
    warnings.simplefilter("ignore")
    with simulated_cuda(), contextlib.redirect_stdout(io.StringIO()):
        names, failed = shared_namespace(truth["env"])
        rows = [measure(row, names) for row in truth["rows"] if options.only in row["stmt"]]
    tally = Counter(row.outcome for row in rows)
    print(f"torch {torch.__version__}, python {sys.version.split()[0]}; truth: {truth['gpu']}, torch {truth['torch']}")
    print(", ".join(f"{outcome} {tally[outcome]}" for outcome in ("exact", "same verdict", "wrong", "not runnable")))
    for line in failed:
        print(f"set-up failed: {line}")
    for outcome in ("wrong", "same verdict", "not runnable"):
        for row in rows:
            if row.outcome == outcome:
                print(f"{outcome:12}  {row.stmt[:90]!r}  GPU {row.expected}  simulated {row.counted}  {row.note[:120]}")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
