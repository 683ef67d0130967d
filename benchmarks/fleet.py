"""Ten thousand run files: how long reading, merging, filtering and drawing them takes, and how much memory.

The files are written from a seed, as traces of training jobs would be: 8 models on 4 kinds of GPU over 313 commits, 50
steps each, with the times of every sync. At one commit each model begins to wait more at one line. `gpusync report
history` has to name these commits and lines and no others, on each kind of GPU; `gpusync report fleet` has to fail the
models that are over their budget.

    python benchmarks/fleet.py [--commits 313] [--folder FOLDER]

Prints a JSON object. Each command runs in a process of its own, whose peak memory is that of the resident set.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODELS = tuple(f"model-{letter}" for letter in "abcdefgh")
GPUS = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA L40S")
STEPS = 51
SITES = 6
LEAST_COMMITS = 31


def planted(commits: int) -> dict[str, int]:
    """Return the commit at which each model begins to wait more, at its line 10."""
    chance = random.Random(24)
    return {model: chance.randrange(20, commits - 10) for model in MODELS}


def written(folder: Path, commits: int) -> int:
    """Write the run files, and return how many bytes they have."""
    changes = planted(commits)
    size = 0
    number = 0
    for commit in range(commits):
        for model in MODELS:
            for gpu in GPUS:
                text = json.dumps(document(model, gpu, commit, commit >= changes[model]))
                path = folder / f"{number % 100:02d}" / f"{number:05d}.json"
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
                size += len(text)
                number += 1
    return size


def document(model: str, gpu: str, commit: int, is_more: bool) -> dict:
    """Return the run of one job."""
    waits = [1 + (index == 0 and is_more) for index in range(SITES)]
    columns: dict[str, list] = {"sites": [], "steps": [], "began_ms": [], "blocked_ms": []}
    for step in range(STEPS):
        for index, syncs in enumerate(waits):
            for again in range(syncs):
                columns["sites"].append(index)
                columns["steps"].append(step)
                columns["began_ms"].append(20.0 * step + index + again / 2)
                columns["blocked_ms"].append(0.4 + index / 10)
    made = len(columns["sites"])
    sites = [
        {
            "path": f"{model}/train.py", "line": 10 + 3 * index + commit % 3, "function": "train_step", "code": "GS201",
            "silent": None, "source": f"losses[{index}] = loss_{index}.item()", "kind": "stream", "direction": "D2H",
            "syncs": syncs * STEPS, "steps": STEPS - 1, "per_step_max": syncs, "blocked_ms": 0.5 * syncs * STEPS,
            "bytes": 4 * STEPS, "via": None, "cause": None, "phase": None, "thread": "MainThread", "allowed": None,
            "background": False, "devices": [], "executions": None,
        }
        for index, syncs in enumerate(waits)
    ]  # fmt: skip
    total = sum(waits)
    order = {**columns, "left_out": 0, "step_ends_ms": [20.0 * step + 20 for step in range(STEPS)], "closed_ms": 1100.0}
    region = {
        "name": f"{model}/train.py", "outcome": "measured", "problem": None, "steps": STEPS, "warmup": 1,
        "step_source": "optimizer.step()", "device_used": True, "process": None, "syncs": made,
        "syncs_per_step": {"max": total, "median": total}, "per_step": [total] * (STEPS - 1), "devices": [],
        "not_counted": None, "sites": sites, "races": None, "order": order, "memory": None, "timing": None,
        "verdicts": [],
    }  # fmt: skip
    environment = {"torch": "2.15.0", "python": "3.12.1", "device": "cuda", "gpu": gpu, "driver": "580.159"}
    environment |= {"recorder": "cupti", "coverage": "driver", "note": None}
    when = f"2026-{1 + commit // 28 % 12:02d}-{1 + commit % 28:02d}T00:00:00+00:00"
    origin = {"command": f"gpusync trace {model}/train.py", "commit": f"{commit:040x}", "date": when}
    origin |= {"version": "0.1.0", "source_url": None, "labels": {"model": model}}
    return {
        "schema": "gpusync.run/1", "environment": environment, "regions": [region], "lines": None, "rank": None,
        "origin": origin,
    }  # fmt: skip


MEASURED = """
import resource, sys, time
from pytest_gpusync.commands.report import main
began = time.perf_counter()
code = main(sys.argv[1:])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"{time.perf_counter() - began:.2f} {time.process_time():.2f} {peak:.0f} {code}", file=sys.stderr)
"""


def measured(folder: Path, *arguments: str) -> dict[str, float]:
    """Run `gpusync report`, and return its seconds, those of the processor, its peak memory and its status."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    seconds, processor, peak, code = done.stderr.split()[-4:]
    return {
        "seconds": float(seconds),
        "processor_seconds": float(processor),
        "peak_MiB": int(peak),
        "status": int(code),
    }


def changes_in(path: Path) -> set[tuple[int, str, str]]:
    """Return the changes of sites in a history: commit, test and GPU."""
    document = json.loads(path.read_text())
    found = set()
    for change in document["changes"]:
        for series in (document["series"][number] for number in change["series"]):
            if series["site"] is not None:
                commit = int(document["moments"][change["moment"]]["commit"], 16)
                found.add((commit, series["test"], series["group"].partition(",")[0]))
    return found


def main() -> int:
    """Write the files, run the commands, check their results, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--commits", type=int, default=313, help="each has a run of 8 models on 4 GPUs")
    parser.add_argument("--folder", type=Path, help="where the files are written and kept")
    options = parser.parse_args()
    if options.commits < LEAST_COMMITS:
        parser.error(f"--commits: the changes need at least {LEAST_COMMITS} commits around them")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        (folder / "runs").mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        size = written(folder / "runs", options.commits)
        results: dict[str, object] = {"files": options.commits * len(MODELS) * len(GPUS), "MiB": round(size / 2**20, 1)}
        results["seconds to write them"] = round(time.perf_counter() - began, 1)
        (folder / "budgets.toml").write_text(
            f'[[budget]]\nwhere = {{ model = "model-[a-d]" }}\nmax = {SITES}\n[[budget]]\nmax = {SITES + 1}\n'
        )
        filters = ["--where=model=model-c", "--where=gpu=*H100*"]
        fleet = ["fleet", "runs", "--by=model,gpu", "--budgets=budgets.toml"]
        for name, arguments in {
            "history, HTML": ["history", "runs", "-o", "history.html"],
            "history, JSON": ["history", "runs", "-o", "history.json"],
            "fleet, HTML": [*fleet, "-o", "fleet.html"],
            "fleet, JSON and baseline": [*fleet, "-o", "fleet.json", "--write-baseline=base.json"],
            "merge of one model on one GPU, JSON": ["merge", "few.json", "runs", *filters],
            "merge of one model on one GPU, HTML": ["merge", "few.html", "runs", *filters],
            "merge of all, JSON": ["merge", "all.json", "runs"],
            "merge of all, HTML": ["merge", "all.html", "runs"],
        }.items():
            results[name] = measured(folder, *arguments)
            path = folder / (arguments[1] if arguments[0] == "merge" else arguments[arguments.index("-o") + 1])
            results[name]["output_MiB"] = round(path.stat().st_size / 2**20, 2)  # type: ignore[index]
        wanted = {
            (commit, f"{model}/train.py", gpu) for model, commit in planted(options.commits).items() for gpu in GPUS
        }
        found = changes_in(folder / "history.json")
        results |= {"planted": len(wanted), "found": len(wanted & found), "invented": len(found - wanted)}
        groups = json.loads((folder / "fleet.json").read_text())["groups"]
        failed = {tuple(group["values"]) for group in groups if group["outcome"] == "failed"}
        results["groups over budget are the planted ones"] = failed == {(m, g) for m in MODELS[:4] for g in GPUS}
        results["processors"] = os.cpu_count()
        print(json.dumps(results, indent=2))
    return int(found != wanted)


if __name__ == "__main__":
    sys.exit(main())
