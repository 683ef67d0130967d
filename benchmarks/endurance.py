"""Whether measuring wears out: many steps, many regions, workers and ranks that are killed again and again.

usage: endurance.py [--seed N] [--json OUT] COMMAND

    steps [--steps 20000]     train in one region; memory must not grow in the second half of the steps
    regions [--count 10000]   open and close regions around one sync; time, memory and files must not grow
    xdist [--tests 10000]     pytest -n 2 under a budget, with a worker killed every few seconds; every test must be in
                              the report, with its exact count or as not measured
    ranks [--minutes 10]      torchrun with two ranks of pytest, of which one is killed in every attempt until the time
                              is up; every attempt must end in time, and the last one report both ranks in full

They run on a GPU or, without one, on the simulated device. Exit status 1 if something wore out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

PARTS = 10
STEP_KIB = 0.25
"""Growth per step that is taken for noise, in KiB. The log of a region needs some bytes for each sync."""
TESTS_OF_A_WORKER = 30
"""A worker is killed once it has run this many tests."""
ATTEMPT_SECONDS = 180.0
"""An attempt of the ranks that takes longer hangs."""

PROJECT_TESTS = """
import os, time
import pytest, torch

@pytest.mark.parametrize("number", range({tests}))
def test_reads(number):
    x = torch.ones(2, device="cuda")
    for _ in range(1 + number % 3):
        x.sum().item()
    time.sleep({seconds})
    with open({folder!r} + f"/{{os.getpid()}}", "a") as done:
        done.write(".")
"""
PROJECT_CONFTEST = """
import os, pathlib

def pytest_sessionstart(session):
    place = pathlib.Path({folder!r}, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") + "-" + os.environ["RANK"])
    place.write_text(str(os.getpid()))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="OUT")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("steps").add_argument("--steps", type=int, default=20_000)
    commands.add_parser("regions").add_argument("--count", type=int, default=10_000)
    commands.add_parser("xdist").add_argument("--tests", type=int, default=10_000)
    commands.add_parser("ranks").add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    failures: list[str] = []
    if options.command == "steps":
        result = steps(options.steps, failures)
    elif options.command == "regions":
        result = regions(options.count, failures)
    elif options.command == "xdist":
        result = xdist(options.tests, chance, failures)
    else:
        result = ranks(options.minutes * 60, chance, failures)
    result = {"command": options.command, "seed": options.seed, **result, "failures": failures}
    print(json.dumps(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def steps(count: int, failures: list[str]) -> dict[str, Any]:
    """Train `count` steps in one region, each with two syncs."""
    torch = device()
    from pytest_gpusync import record

    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.ones(32, 64, device="cuda")
    kib = []

    def train() -> None:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()
        torch.cuda.synchronize()

    train()  # the first step also waits for the libraries of the GPU
    began = time.perf_counter()
    with record("endurance", memory=True) as region:
        for step in range(count):
            train()
            if step % (count // PARTS) == 0:
                kib.append(resident_kib())
        kib.append(resident_kib())
    took = time.perf_counter() - began
    growth = (kib[-1] - kib[PARTS // 2]) / (count / 2)
    if region.syncs != 2 * count:
        failures.append(f"{region.syncs} syncs counted of {2 * count}")
    if growth > STEP_KIB:
        failures.append(f"memory grew by {growth:.2f} KiB a step, {STEP_KIB} are allowed")
    return {"steps": count, "seconds": took, "resident_kib": kib, "kib_per_step": growth, "device": name(torch)}


def regions(count: int, failures: list[str]) -> dict[str, Any]:
    """Open and close `count` regions, and compare the first of them with the last."""
    torch = device()
    from pytest_gpusync import record

    x = torch.zeros(4, device="cuda")

    def part(number: int) -> float:
        began = time.perf_counter()
        for _ in range(number):
            with record() as region:
                x.cpu()
            if region.syncs != 1:
                raise RuntimeError(f"a region counted {region.syncs} of 1 sync")
        return (time.perf_counter() - began) / number * 1e6

    part(500)
    before = {"kib": resident_kib(), "files": len(os.listdir("/proc/self/fd"))}
    us = [part(count // PARTS) for _ in range(PARTS)]
    after = {"kib": resident_kib(), "files": len(os.listdir("/proc/self/fd"))}
    if after["files"] > before["files"]:
        failures.append("open files grew")
    if after["kib"] - before["kib"] > 4096:
        failures.append(f"memory grew by {after['kib'] - before['kib']} KiB")
    if median(us[-3:]) > 1.5 * median(us[:3]):
        failures.append("a region takes longer than at first")
    return {"regions": count, "us_each": us, "before": before, "after": after, "device": name(torch)}


def xdist(tests: int, chance: random.Random, failures: list[str]) -> dict[str, Any]:
    """Run `tests` tests in two workers, and kill one of them every few seconds.

    A worker is killed after it has run some tests.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        workers = folder / "workers"
        workers.mkdir()
        (folder / "test_many.py").write_text(PROJECT_TESTS.format(tests=tests, seconds=0, folder=str(workers)))
        command = pytest_command("-n", "2", "--max-worker-restart=100000", "--gpu-sync-report=run.json")
        log = folder / "log"
        began, killed = time.monotonic(), 0
        with log.open("w") as output:
            session = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
            while session.poll() is None:
                time.sleep(chance.uniform(5, 25))
                working = [path for path in sorted(workers.iterdir()) if path.stat().st_size >= TESTS_OF_A_WORKER]
                if working:
                    victim = chance.choice(working)
                    with suppress(ProcessLookupError):
                        os.kill(int(victim.name), signal.SIGKILL)
                        killed += 1
                    victim.unlink()
        took = time.monotonic() - began
        found = json.loads((folder / "run.json").read_text())["regions"]
        lines = log.read_text().splitlines()
        outcomes = Counter(region["outcome"] for region in found)
        counted = {region["name"]: region["syncs"] for region in found if region["outcome"] == "passed"}
        wrong = [region for region, syncs in counted.items() if syncs != 1 + int(region[:-1].rpartition("[")[2]) % 3]
        missing = tests - len({region["name"] for region in found})
        if wrong:
            failures.append(f"{len(wrong)} tests were counted wrong, the first is {wrong[0]}")
        if missing:
            failures.append(f"{missing} tests are missing in the report")
        if outcomes["not_measured"] > killed:
            failures.append(f"{outcomes['not_measured']} tests were not measured, {killed} workers were killed")
        return {"tests": tests, "killed": killed, "seconds": took, "outcomes": dict(outcomes), "last_line": lines[-1]}


def ranks(seconds: float, chance: random.Random, failures: list[str]) -> dict[str, Any]:
    """Run two ranks of pytest under torchrun, and kill one in every attempt until the time is up."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "pids").mkdir()
        (folder / "done").mkdir()
        source = PROJECT_TESTS.format(tests=200, seconds=0.05, folder=str(folder / "done"))
        (folder / "test_ranks.py").write_text(source)
        (folder / "conftest.py").write_text(PROJECT_CONFTEST.format(folder=str(folder / "pids")))
        log = folder / "log"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=100000"]
        command = [*launcher, *pytest_command("--gpu-sync-report=run.json")[1:]]
        until, attempts, slowest = time.monotonic() + seconds, 0, 0.0
        with log.open("w") as output:
            launched = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
            try:
                while time.monotonic() < until:
                    waited = wait_for_ranks(folder / "pids", attempts)
                    if waited is None:
                        failures.append(f"attempt {attempts} did not begin within {ATTEMPT_SECONDS:g} s")
                        break
                    slowest = max(slowest, waited)
                    time.sleep(chance.uniform(0.5, 8))
                    victim = folder / "pids" / f"{attempts}-{chance.randrange(2)}"
                    os.kill(int(victim.read_text()), signal.SIGKILL)
                    attempts += 1
                code = launched.wait(ATTEMPT_SECONDS * 2)
            finally:
                launched.kill()
        if code != 0:
            failures.append(f"torchrun ended with {code}:\n" + "\n".join(log.read_text().splitlines()[-20:]))
        report = folder / "run.json"
        found = json.loads(report.read_text())["regions"] if report.exists() else []
        outcomes = Counter(region["outcome"] for region in found)
        if outcomes != Counter(passed=400):
            failures.append(f"the last attempt reported {dict(outcomes)}, not 200 tests in each of 2 ranks")
        return {"killed": attempts, "seconds": seconds, "slowest_restart_s": slowest, "outcomes": dict(outcomes)}


def wait_for_ranks(folder: Path, attempt: int) -> float | None:
    """Wait until both ranks of an attempt run; return the seconds, or None if they do not."""
    began = time.monotonic()
    while time.monotonic() - began < ATTEMPT_SECONDS:
        if all((folder / f"{attempt}-{rank}").is_file() for rank in range(2)):
            return time.monotonic() - began
        time.sleep(0.1)
    return None


def pytest_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--gpu-sync-budget=3", *arguments]


def device() -> Any:
    """Return torch, on a GPU or with the simulated device switched on."""
    import torch

    if not torch.cuda.is_available():
        from pytest_gpusync.simulated import switch_on

        switch_on()
    return torch


def name(torch: Any) -> str:
    from pytest_gpusync.simulated import is_on

    return "simulated" if is_on() else str(torch.cuda.get_device_name())


def resident_kib() -> int:
    """Return the resident set of the process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


if __name__ == "__main__":
    sys.exit(main())
