"""Run the experiments many times, with their hazards and without: each test has to fail with them and pass without.

usage: gpu_experiments.py [--times N] [--minutes M] [--keep EXPRESSION] [--ddp] [--simulated] [--log FILE] [--json OUT]

Each test runs N times in each of two sessions, one with the hazards planted; with two GPUs the sessions run at the same
time, each on a GPU of its own, and the tests of two GPUs after them. A round runs every test once; after M minutes no
further round begins. The test that starts ranks of its own is left to `--ddp`, which repeats its measurement within
one launch and checks in each round what the test asserts. Ray's tasks need no GPU, and run if Ray is installed.

With --simulated, the tests that need no GPU run on two simulated devices.

OUT has, for each test, the outcomes and what its last round printed. docs/experiments.md quotes the files
benchmarks/results/*-experiments/h200*.json and simulated*.json: run `python docs/generate.py` after adding one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from importlib.metadata import entry_points
from pathlib import Path
from statistics import median
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
MARK = "gpu_experiments: "
EXPERIMENTS = ROOT / "examples" / "experiments"


class Repeated:
    """A pytest plugin that runs every test many times and counts how each ended."""

    def __init__(self, times: int, minutes: float) -> None:
        self.times = times
        self.rounds = 0
        self.outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.results: dict[str, list[str]] = {}
        """What each test printed in its last round."""
        self._until = time.monotonic() + 60 * minutes

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        metafunc.fixturenames.append("repetition")
        metafunc.parametrize("repetition", range(self.times), ids=lambda number: f"round{number}")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=_round)  # stable: the tests of a round keep their order

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if _round(item) == self.rounds:
            if time.monotonic() > self._until:
                item.session.shouldstop = "the time is up"
                return True  # as if it had run: nobody else is asked to run it
            self.rounds += 1
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = re.sub(r"-?\bround\d+\b(?=\])|\bround\d+-", "", report.nodeid.rpartition("/")[2]).replace("[]", "")
        self.seconds[name] += report.duration
        if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
            self.outcomes[name][report.outcome] += 1
            self.results[name] = [text for kind, text in report.user_properties if kind == "result"]


def _round(item: pytest.Item) -> int:
    found = re.search(r"\bround(\d+)\b", item.nodeid.rpartition("[")[2])
    return int(found[1]) if found else 0


def run(times: int, minutes: float, keep: str, *, simulated: bool) -> None:
    """Run the experiments in this process, and print their outcomes as JSON."""
    counted = Repeated(times, minutes)
    arguments = ["-q", "-p", "no:cacheprovider", "--tb=line", "--show-capture=no", "-k", keep, str(EXPERIMENTS)]
    arguments += ["--no-header"]
    if not any(point.value == "pytest_gpusync.plugin" for point in entry_points(group="pytest11")):
        arguments += ["-p", "pytest_gpusync.plugin"]
    if simulated:
        arguments += ["--gpu-device=simulated", "--gpu-simulated-devices=2"]
    pytest.main(arguments, plugins=[counted])
    found = {
        "rounds": counted.rounds,
        "outcomes": counted.outcomes,
        "seconds": counted.seconds,
        "results": counted.results,
    }
    print(MARK + json.dumps(found), flush=True)


def sessions(times: int, minutes: float, keep: str, gpus: list[str], log: Path | None) -> list[dict[str, Any]]:
    """Run the session without the hazards and the one with them, at the same time if there is a GPU for each.

    Without `gpus`, on the simulated device.
    """
    with ExitStack() as stack:
        running = []
        for number, planted in enumerate("01"):
            visible = gpus[number] if len(gpus) > 1 else "".join(gpus)
            environment = {**os.environ, "PLANT_HAZARDS": planted, "CUDA_VISIBLE_DEVICES": visible}
            # Two processes with a thread for every core each would wait for each other's.
            environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // 4)))
            command = [sys.executable, __file__, "--session", "--times", str(times), "--minutes", str(minutes)]
            command += ["--keep", keep, *([] if gpus else ["--simulated"])]
            output = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
            running.append((process, output))
            if len(gpus) < 2:
                process.wait()
        found = []
        for process, output in running:
            process.wait()
            output.seek(0)
            found.append(_result(output.read(), log))
        return found


def _result(output: str, log: Path | None) -> dict[str, Any]:
    if log is not None:
        with log.open("a") as file:
            file.write(output)
    lines = [line for line in output.splitlines() if line.startswith(MARK)]
    if not lines:
        raise RuntimeError(output)
    result: dict[str, Any] = json.loads(lines[-1].removeprefix(MARK))
    return result


def ddp(times: int) -> dict[str, Any]:
    """Repeat the reduction during backward on two GPUs, in one launch without the hazard and one with it."""
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
        found = [tuple(map(float, row)) for row in re.findall(r"during (\S+) after (\S+) without (\S+)", done.stdout)]
        if len(found) != times:
            raise RuntimeError(done.stdout + done.stderr)
        passed = sum(during < after - 0.2 * (after - without) for during, after, without in found)
        rows["planted" if planted else "clean"] = {"passed": passed, "failed": times - passed, "ms": found}
    return rows


def _ddp_row(times: int, clean: dict[str, Any], planted: dict[str, Any]) -> dict[str, Any]:
    """Return the outcomes of `ddp` in the form of those of the other tests."""
    during, after, without = (median(column) for column in zip(*clean["ms"], strict=True))
    text = f"{during:.2f} ms during backward, {after:.2f} ms after it, {without:.2f} ms without (medians of {times})"
    return {
        "test": "test_7_reduction_during_backward.py::test_the_reduction_overlaps_backward",
        "passed": clean["passed"],
        "failed_planted": planted["failed"],
        "skipped": 0,
        "rounds": [times, times],
        "results": [text],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=60.0, help="of each session; 60 by default")
    parser.add_argument("--keep", default="", help="as pytest -k")
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--simulated", action="store_true", help="on the simulated device, also if there is a GPU")
    parser.add_argument("--log", type=Path, help="file for the sessions' output")
    parser.add_argument("--session", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.session:
        run(options.times, options.minutes, options.keep, simulated=options.simulated)
        return 0
    import torch

    limits = options.times, options.minutes
    parts: list[list[dict[str, Any]]] = []
    result: dict[str, Any] = {"torch": torch.__version__}
    if options.simulated:
        result.update(gpu="simulated CUDA device", gpus=2)
        parts.append(sessions(*limits, options.keep, [], options.log))
    elif not torch.cuda.is_available():
        print("gpu_experiments.py needs a GPU, or --simulated", file=sys.stderr)
        return 2
    else:
        count = torch.cuda.device_count()
        result.update(gpu=torch.cuda.get_device_name(), gpus=count)
        also = f" and ({options.keep})" if options.keep else ""
        two = "test_5_the_other_gpu"
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = (visible.split(",") if visible else [str(index) for index in range(count)])[:2]
        parts.append(sessions(*limits, f"not {two} and not reduction_overlaps{also}", gpus, options.log))
        if count > 1:
            parts.append(sessions(*limits, two + also, [",".join(gpus)], options.log))
    wrong = 0
    rows = []
    for clean, planted in parts:
        for name, outcomes in clean["outcomes"].items():
            passed, failed = outcomes.get("passed", 0), planted["outcomes"].get(name, {}).get("failed", 0)
            skipped = outcomes.get("skipped", 0)
            times = clean["rounds"], planted["rounds"]
            row = {"test": name, "passed": passed, "failed_planted": failed, "skipped": skipped, "rounds": times}
            row["results"] = clean["results"].get(name, [])
            rows.append(row)
            wrong += not skipped and (passed, failed) != times
            seconds = (clean["seconds"][name], planted["seconds"].get(name, 0.0))
            state = "skipped" if skipped else f"passes {passed:>3}  fails planted {failed:>3}"
            print(f"{state:<34}{seconds[0]:7.1f} {seconds[1]:7.1f} s  {name}", flush=True)
        print(f"{clean['rounds']} rounds without the hazards, {planted['rounds']} with them", flush=True)
    result["tests"] = rows
    _write(options.json, result)
    if options.ddp:
        result["reduction during backward"] = ddp(options.times)
        rows.append(_ddp_row(options.times, **result["reduction during backward"]))
        for variant, row in result["reduction during backward"].items():
            print(f"reduction during backward, {variant}: {row['passed']} of {options.times} passed")
            wrong += row["passed"] != (options.times if variant == "clean" else 0)
    print(f"{len(rows)} tests, {wrong} with an unexpected outcome in some round")
    _write(options.json, result)
    return 1 if wrong else 0


def _write(path: str | None, result: dict[str, Any]) -> None:
    if path:
        Path(path).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
