"""Missing waits: what the simulated device reports for small programs that were run on a GPU behind a busy queue.

    python benchmarks/simulated_races.py TRUTH.json [--only NAME] [--json OUT.json]

TRUTH.json has ``rows``, each with ``name``, ``setup``, ``code`` and ``raced``: in how many runs on a GPU the program
saw another value than the order of its lines promises. ``n`` is the number of elements of its tensors. ``two_gpus`` has
rows that ran on two ranks with a GPU each, where ``raced`` has a number for each rank. A row agrees if the device
reports a race and it raced, or reports none and it did not. A program that is not ordered and was lucky on the GPU
differs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

_HELPERS = """
import torch
import torch.distributed as dist
def sleep(stream=None): torch.cuda._sleep(1)
lag = sleep0 = sleep
"""


def source(row: dict[str, Any]) -> str:
    """The program of a row."""
    return _HELPERS + row["setup"] + ("\n" if row["setup"] and not row["setup"].endswith("\n") else "") + row["code"]


def run(row: dict[str, Any], folder: Path, **variables: Any) -> dict[str, Any]:
    """Run a row on the simulated device; return its races and what stopped it, if anything did."""
    from pytest_gpusync import record

    path = folder / f"{row['name']}.py"
    path.write_text(source(row), encoding="utf-8")
    namespace = {"__name__": "row", "V": 3.0, **variables}
    error = None
    with record(row["name"]) as seen:
        try:
            exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), namespace)
        except Exception as stopped:
            error = f"{type(stopped).__name__}: {stopped}"
        namespace.clear()
    lines = path.read_text(encoding="utf-8").splitlines()
    races = [
        {
            "kind": race.kind,
            "message": race.message.replace(f"{folder.as_posix()}/", ""),
            "later": lines[race.site.line - 1].strip(),
            "earlier": lines[race.other.line - 1].strip(),
        }
        for race in seen.races
    ]
    return {"races": races, "error": error}


def _rank(rank: int, document: dict[str, Any], rows: list[dict[str, Any]], folder: str, answers: Any) -> None:
    import torch
    import torch.distributed as dist

    from pytest_gpusync import simulated_cuda

    with simulated_cuda(devices=2):
        torch.cuda.set_device(rank)
        store = dist.FileStore(f"{folder}/store", 2)
        dist.init_process_group("nccl", store=store, rank=rank, world_size=2)
        place = Path(folder) / f"rank{rank}"
        place.mkdir()
        found = []
        for row in rows:
            variables = {"N": document["n"], "r": rank, "d": f"cuda:{rank}", "skip": False}
            probe: dict[str, Any] = {"r": rank}
            if row["setup"].startswith("skip"):
                exec(row["setup"], probe)
            skipped = probe.get("skip", False)
            found.append({"races": [], "error": None} if skipped else run(row, place, **variables))
            dist.barrier()
        answers.put((rank, found))
        dist.destroy_process_group()


def run_on_two_ranks(document: dict[str, Any], rows: list[dict[str, Any]], folder: str) -> list[list[dict[str, Any]]]:
    """Run rows on two processes with two simulated devices each; return what each rank reported of each row."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, document, rows, folder, answers)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    by_rank = dict(answers.get(timeout=600) for _ in ranks)
    for process in ranks:
        process.join()
    return [by_rank[0], by_rank[1]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("truth", type=Path, help="the programs, and what they did on a GPU")
    parser.add_argument("--only", metavar="NAME", help="run only the rows whose names contain this")
    parser.add_argument("--json", type=Path, help="write what was reported to this file")
    options = parser.parse_args()
    document = json.loads(options.truth.read_text(encoding="utf-8"))
    results: dict[str, Any] = {}
    different = 0

    def chosen(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in rows if not options.only or options.only in row["name"]]

    def show(row: dict[str, Any], raced: bool, found: dict[str, Any], rank: str = "") -> None:
        nonlocal different
        agrees = bool(found["races"]) == raced and found["error"] is None
        different += not agrees
        print(f"{'same     ' if agrees else 'DIFFERENT'} {row['name']}{rank}: raced {row['raced']}")
        if found["error"]:
            print(f"    {found['error']}")
        for race in found["races"]:
            print(f"    [{race['kind']}] {race['message']}")
            print(f"      later: {race['later']}\n      earlier: {race['earlier']}")
        results[row["name"] + rank] = found

    from pytest_gpusync import simulated_cuda

    with tempfile.TemporaryDirectory() as folder:
        with simulated_cuda():
            for row in chosen(document["rows"]):
                show(row, row["raced"] > 0, run(row, Path(folder), N=document["n"]))
        pairs = chosen(document.get("two_gpus", {}).get("rows", []))
        if pairs:
            ranks = run_on_two_ranks(document["two_gpus"], pairs, folder)
            for row, *both in zip(pairs, *ranks, strict=True):
                for rank, found in enumerate(both):
                    show(row, row["raced"][rank] > 0, found, f" (rank {rank})")
    print(f"{len(results) - different} of {len(results)} as on the GPU")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
