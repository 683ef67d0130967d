"""Run the experiments many times, with their hazards and without: each test has to fail with them and pass without.

usage: gpu_experiments.py [--times N] [--json OUT] [--keep EXPRESSION]

Each test runs N times in each of two sessions, one with the hazards planted. The one that starts ranks of its own is
left to `--ddp`, which repeats its measurement within one launch and holds each round to what the test asserts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = ROOT / "examples" / "experiments"


class Repeated:
    """A pytest plugin that runs every test many times and counts how each ended."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        metafunc.fixturenames.append("repetition")
        metafunc.parametrize("repetition", range(self.times), ids=lambda number: f"round{number}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = re.sub(r"-?round\d+(?=\])", "", report.nodeid.rpartition("/")[2]).replace("[]", "")
        self.seconds[name] += report.duration
        if report.when == "call" or report.outcome != "passed":
            if report.when != "teardown":
                self.outcomes[name][report.outcome] += 1


def run(times: int, planted: bool, keep: str) -> Repeated:
    """Run the experiments in this process."""
    os.environ["PLANT_HAZARDS"] = "1" if planted else "0"
    counted = Repeated(times)
    arguments = ["-q", "-q", "-p", "no:cacheprovider", "--tb=line", "--show-capture=no", "-k", keep, str(EXPERIMENTS)]
    arguments += ["--no-header", "--no-summary", "--gpu-require", "-p", "pytest_gpusync.plugin"]
    pytest.main(arguments, plugins=[counted])
    return counted


def ddp(times: int) -> dict[str, Any]:
    """Repeat the reduction beside backward on two GPUs, in one launch without the hazard and one with it."""
    rows: dict[str, Any] = {}
    for planted in (False, True):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        environment = {**os.environ, "PLANT_HAZARDS": "1" if planted else "0"}
        done = subprocess.run(
            [*command, str(EXPERIMENTS / "ddp_overlap.py"), str(times)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
        found = [tuple(map(float, row)) for row in re.findall(r"beside (\S+) after (\S+) alone (\S+)", done.stdout)]
        if len(found) != times:
            raise RuntimeError(done.stdout + done.stderr)
        held = sum(beside < after - 0.2 * (after - alone) for beside, after, alone in found)
        rows["planted" if planted else "clean"] = {"passed": held, "failed": times - held, "ms": found}
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--keep", default="not reduction_hides", help="as pytest -k")
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("gpu_experiments.py needs a GPU, and there is none", file=sys.stderr)
        return 2
    result: dict[str, Any] = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(), "times": options.times}
    wrong = 0
    clean, planted = (run(options.times, planted, options.keep) for planted in (False, True))
    rows = []
    for name in clean.outcomes:
        passed, failed = clean.outcomes[name]["passed"], planted.outcomes[name]["failed"]
        skipped = clean.outcomes[name]["skipped"]
        rows.append(
            {"test": name, "times": options.times, "passed": passed, "failed_planted": failed, "skipped": skipped}
        )
        wrong += not skipped and (passed, failed) != (options.times, options.times)
        seconds = (clean.seconds[name] + planted.seconds[name]) / (2 * options.times)
        state = "skipped" if skipped else f"passes {passed:>3}  fails planted {failed:>3}"
        print(f"{state:<34}{seconds:6.2f} s  {name}", flush=True)
    result["tests"] = rows
    if options.ddp:
        result["reduction beside backward"] = ddp(options.times)
        for way, row in result["reduction beside backward"].items():
            print(f"reduction beside backward, {way}: {row['passed']} of {options.times} passed")
            wrong += row["passed"] != (options.times if way == "clean" else 0)
    print(f"{len(rows)} tests, {wrong} not as they should be in every one of {options.times} rounds")
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
