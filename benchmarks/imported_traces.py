"""A trace of torch.profiler on a GPU, imported, beside the count of CUPTI callbacks for the same steps.

Writes into FOLDER the trace (``trace.json.gz``), the run made of it (``imported.json``) and the run of record()
(``recorded.json``), and prints the syncs of each line by both. Ends with status 1 if the syncs of a step differ, or if
a line that the trace tells exactly has another count. Takes less than a minute.

    python benchmarks/imported_traces.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from pytest_gpusync import record
from pytest_gpusync.imported import import_trace
from pytest_gpusync.reporting.run_file import region_document, run_document, to_text, write_atomic

WARMUP, STEPS = 2, 5


def read(value: torch.Tensor) -> float:
    """One read in a function of its own."""
    return value.item()


def twice(value: torch.Tensor) -> float:
    """Two reads whose lines are told by their order."""
    first = value.sum().item()
    return first + value.max().item()


def looped(value: torch.Tensor) -> float:
    """Reads in a loop and before it: the trace tells their function only."""
    total = value.mean().item()
    for row in value[:3]:
        total += row.sum().item()
    return total


class Step:
    """A training step with waits of each kind."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.batch = torch.randn(64, 256)
        self.pinned = torch.randn(64, 256).pin_memory()
        self.large = torch.randn(1024, 1024)
        self.event = torch.cuda.Event()

    def __call__(self) -> None:
        """Run the step."""
        batch = self.batch.to("cuda")
        self.pinned.to("cuda", non_blocking=True)
        self.large.to("cuda", non_blocking=True)
        loss = self.model(batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        read(loss)
        twice(batch)
        looped(batch)
        if loss > 1e9:
            raise RuntimeError("the loss diverged")
        batch[batch > 0].sum()
        batch.cpu()
        self.event.record()
        self.event.synchronize()
        torch.cuda.synchronize()


def main(folder: Path) -> int:
    """Record, profile, import and compare."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(Path(__file__).resolve().parent)
    step = Step()
    for _ in range(3):
        step()
    with record("recorded", warmup=WARMUP) as seen:
        for _ in range(WARMUP + STEPS):
            step()
            seen.mark_step()
    measured = seen.result()
    recorded = run_document(measured.environment, [region_document(measured)])
    path = folder / "trace.json.gz"
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        with_stack=True,
        schedule=schedule(wait=0, warmup=WARMUP, active=STEPS),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(WARMUP + STEPS):
            step()
            profiler.step()
    imported = import_trace(str(path))
    for name, run in (("recorded", recorded), ("imported", imported)):
        write_atomic(folder / f"{name}.json", to_text(run))
    return compare(recorded, imported)


def compare(recorded: dict[str, Any], imported: dict[str, Any]) -> int:
    """Print the syncs per step of each line by both; 1 if they differ."""
    counts = [_per_line(recorded, WARMUP + STEPS), _per_line(imported, STEPS)]
    sites = imported["regions"][0]["sites"]
    inexact = {(site["path"], site["line"]) for site in sites if "one of the lines" in (site["via"] or "")}
    per_step = [run["regions"][0]["per_step"] for run in (recorded, imported)]
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    print(f"syncs of each step: record() {per_step[0]}, torch.profiler {per_step[1]}")
    print(f"{'line':<28} {'record()':>10} {'profiler':>10}")
    differing = 0
    for place in sorted(set(counts[0]) | set(counts[1])):
        first, second = (count[place] for count in counts)
        told = "function only" if place in inexact else ""
        differing += place not in inexact and second > first
        print(f"{place[0]}:{place[1]:<8} {first:>10.2f} {second:>10.2f}  {told}")
    functions = [_per_function(run, steps) for run, steps in ((recorded, WARMUP + STEPS), (imported, STEPS))]
    print(f"by function: record() {dict(functions[0])}\n             profiler {dict(functions[1])}")
    print(json.dumps(imported["environment"], indent=2))
    same = set(per_step[0]) == set(per_step[1])
    print("the syncs of a step are the same" if same else "the syncs of a step DIFFER")
    return 0 if same and not differing else 1


def _per_line(run: dict[str, Any], steps: int) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for site in run["regions"][0]["sites"]:
        if site["allowed"] is None:
            found[site["path"], site["line"]] += site["syncs"] / steps
    return found


def _per_function(run: dict[str, Any], steps: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for site in run["regions"][0]["sites"]:
        if site["allowed"] is None:
            found[site["function"].rpartition(".")[2]] += site["syncs"] / steps
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
