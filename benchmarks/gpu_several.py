"""Counting on several GPUs of one host: in one process, and with a rank for each.

usage: gpu_several.py [--json OUT]

1. 1000 matrix products on the first GPU, with a synchronize after each: of the first GPU, then of another one that has
   nothing to do. Counts and the time in the calls, per device.
2. A pytest for each GPU under torchrun, one of them over its budget: the verdicts of all ranks, what rank 0 reports,
   the exit status and the time it took. NCCL is used, and the ranks go on with collectives after the failure.

Ends with status 1 if a count is not what it must be, or the run did not fail as it should.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from pytest_gpusync import record

PRODUCTS = 1000
ROUNDS = 5
OVER = 2
"""Rank that is over its budget; in a run of two it is rank 1."""

RANK_TEST = """
import os, pytest, torch, torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])

@pytest.fixture(scope="module", autouse=True)
def group():
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    yield
    dist.destroy_process_group()

def test_steps(gpu_train):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda(), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.ones(64, 256, device="cuda")

    def step():
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        if rank == {over}:
            loss.item()

    # In its first ten steps, and every hundredth, DDP reads the times of its own events.
    gpu_train(step, steps=20, warmup=12).assert_syncs(max=1)

def test_after():
    value = torch.ones(1, device="cuda")
    dist.all_reduce(value)
    assert value.item() == dist.get_world_size()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    options = parser.parse_args()
    gpus = torch.cuda.device_count()
    if gpus < 2:
        print("gpu_several.py takes two GPUs or more", file=sys.stderr)
        return 2
    failures: list[str] = []
    result: dict[str, Any] = {
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "gpus": gpus,
        "products": products(failures),
        "ranks": ranks(gpus, failures),
    }
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def products(failures: list[str]) -> list[dict[str, Any]]:
    """Measure the first part."""
    a, b = (torch.randn(512, 512, device="cuda:0") for _ in range(2))
    torch.ones(1, device="cuda:1")
    for _ in range(10):
        a @ b  # its first call makes a handle and a workspace
    rows = []
    for waited_for in (0, 1):
        for device in (0, 1):
            torch.cuda.synchronize(device)
        taken, blocked, counts, devices = [], [], [], set()
        for _ in range(ROUNDS):
            began = time.perf_counter()
            with record(recorder="cupti") as region:
                for _ in range(PRODUCTS):
                    a @ b
                    torch.cuda.synchronize(waited_for)
            taken.append((time.perf_counter() - began) * 1e3)
            syncs = region.result().all_syncs
            counts.append(len(syncs))
            devices |= {sync.device for sync in syncs}
            blocked.append(sum(sync.blocked_ns or 0 for sync in syncs) / 1e6)
        if set(counts) != {PRODUCTS}:
            failures.append(f"of {PRODUCTS} waits for cuda:{waited_for} {counts} were counted")
        if devices != {waited_for}:
            failures.append(f"waits for cuda:{waited_for} were told to be for {devices}")
        row = {
            "waited_for": f"cuda:{waited_for}",
            "syncs": counts,
            "blocked_ms": median(blocked),
            "region_ms": median(taken),
        }
        rows.append(row)
        print(f"{PRODUCTS} products on cuda:0, each followed by a synchronize of cuda:{waited_for}: {row}", flush=True)
    return rows


def ranks(gpus: int, failures: list[str]) -> dict[str, Any]:
    """Measure the second part."""
    over = min(OVER, gpus - 1)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_ranks.py").write_text(RANK_TEST.replace("{over}", str(over)))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"]
        command += ["-m", "pytest", "-p", "no:cacheprovider", "-p", "pytest_gpusync.plugin", "--gpu-require"]
        command += ["--gpu-sync-report=run.json", "test_ranks.py"]
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        took = time.monotonic() - began
        report = Path(folder, "run.json")
        regions = json.loads(report.read_text())["regions"] if report.exists() else []
    said = f"rank {over} failed"
    if done.returncode == 0:
        failures.append("a rank was over its budget and the run succeeded")
    if "made 2 syncs, budget 1" not in done.stdout or said not in done.stdout:
        failures.append(f"the report does not say {said!r} and by how much")
    found = [{"name": r["name"], "outcome": r["outcome"], "worst_step": r["syncs_per_step"]["max"]} for r in regions]
    print(done.stdout[-6000:])
    print(f"{gpus} ranks, one over its budget: exit status {done.returncode} after {took:.0f} s")
    return {"ranks": gpus, "over": over, "exit": done.returncode, "seconds": took, "regions": found}


if __name__ == "__main__":
    sys.exit(main())
