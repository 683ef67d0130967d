"""Run everything that needs a GPU in one go and write down what was measured, with versions.

usage: gpu_session.py OUT_DIR [--truth TRUTH.json] [--nanogpt DIR]

Writes OUT_DIR/session.md: `gpusync doctor`, the tests marked gpu_only, the examples under a budget of 5, the
experiments, the examples of the linter's catalogues with a table of what differs (catalogue_truth.py), ten
workloads beside torch.profiler's count (gpu_workloads.py), what measuring costs (gpu_cost.py), 100,000 regions and
threads that press the allocator (gpu_endurance.py), the statements of TRUTH.json (see gpu_truth.py), and `gpusync
trace` of nanoGPT's train.py from DIR beside an independent count by torch.profiler (see independent_count.py). Ends
with status 1 if any of them failed.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import random
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TRAININGS = ["examples/char_gpt", "examples/conv_net"]
NANOGPT_OPTIONS = [
    "--dataset=synthetic",
    "--compile=False",
    "--log_interval=5",
    "--gradient_accumulation_steps=4",
    "--max_iters=40",
    "--eval_interval=20",
    "--eval_iters=5",
    "--batch_size=8",
    "--block_size=256",
]


class Session:
    """The report under way."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.lines = [f"# What a GPU session measured\n\n{versions()}\n"]
        self.failures: list[str] = []

    def run(self, title: str, command: list[str], cwd: Path | None = None, timeout: int = 400) -> str:
        """Run one command, add its output to the report, and return it."""
        try:
            done = subprocess.run(
                command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
            )
            output, code = done.stdout, done.returncode
        except subprocess.TimeoutExpired as late:
            output, code = (late.stdout or b"").decode(errors="replace"), 124
        if code:
            self.failures.append(f"{title} (exit {code})")
        shown = " ".join(Path(part).name if part.startswith("/") else part for part in command)
        tail = "\n".join(output.rstrip().splitlines()[-80:])
        shown, tail = self.without_paths(shown), self.without_paths(tail)
        self.lines.append(f"## {title}\n\n```console\n$ {shown}\n{tail}\n```\n\nexit status {code}\n")
        self.write()
        print(f"{title}: exit {code}", flush=True)
        return output

    def without_paths(self, text: str) -> str:
        """Leave out where this machine keeps things: the report is about the counts."""
        for folder, name in (
            (sys.prefix, "ENV"),
            (str(self.out), "OUT"),
            (str(HERE.parent), "."),
            (str(Path.home()), "~"),
        ):
            text = text.replace(folder, name)
        return text

    def say(self, text: str) -> None:
        """Add a sentence to the report."""
        self.lines.append(text + "\n")
        self.write()
        print(text, flush=True)

    def write(self) -> None:
        """Write what there is so far."""
        (self.out / "session.md").write_text("\n".join(self.lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--nanogpt", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    session = Session(options.out)
    python = sys.executable
    pytest = [python, "-m", "pytest", "-p", "no:cacheprovider"]
    session.run("gpusync doctor", [python, "-m", "pytest_gpusync", "doctor"])
    session.run("Tests of the driver-level recorder", [*pytest, "-q", "tests/gpu"], HERE.parent)
    session.run(
        "The same with expandable segments",
        ["env", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", *pytest, "-q", "tests/gpu"],
        HERE.parent,
    )
    report = str(options.out / "examples.json")
    session.run(
        "Examples under a budget of 5",
        [*pytest, "--gpu-sync-budget=5", "--gpu-require", f"--gpu-sync-report={report}", "-rx", *TRAININGS],
        HERE.parent,
    )
    session.run("Experiments", [*pytest, "--gpu-require", "-q", "examples/experiments"], HERE.parent)
    out, table = str(options.out / "catalogue.json"), str(options.out / "catalogue.md")
    session.run(
        "Examples of the catalogues",
        [python, "-W", "ignore", str(HERE / "catalogue_truth.py"), "--json", out, "--table", table],
    )
    for title, arguments in (
        ("Ten workloads beside torch.profiler's count", ["gpu_workloads"]),
        ("What measuring costs", ["gpu_cost"]),
        ("100,000 regions, and threads", ["gpu_endurance", "--regions", "100000", "--minutes", "0.5"]),
    ):
        script, *rest = arguments
        out = str(options.out / f"{script.removeprefix('gpu_')}.json")
        session.run(title, [python, "-W", "ignore", str(HERE / f"{script}.py"), *rest, "--json", out])
    if options.truth:
        out = str(options.out / "statements.json")
        session.run("Statements", [python, str(HERE / "gpu_truth.py"), str(options.truth), "--json", out])
    if options.nanogpt:
        compare_nanogpt(session, options.nanogpt)
    if session.failures:
        session.say("Failed: " + "; ".join(session.failures))
    return 1 if session.failures else 0


def compare_nanogpt(session: Session, folder: Path) -> None:
    """Trace train.py, count it again with torch.profiler, and compare the totals."""
    data = folder / "data" / "synthetic"
    data.mkdir(parents=True, exist_ok=True)
    numbers = random.Random(0)
    for name, size in (("train", 200_000), ("val", 20_000)):
        with (data / f"{name}.bin").open("wb") as file:
            array.array("H", (numbers.randrange(256) for _ in range(size))).tofile(file)
    traced, counted = session.out / "nanogpt.json", session.out / "nanogpt-profiler.json"
    program = ["train.py", *NANOGPT_OPTIONS]
    trace = [sys.executable, "-m", "pytest_gpusync", "trace", "--all", "--json", str(traced)]
    session.run("gpusync trace of nanoGPT", [*trace, *program], folder)
    count = [sys.executable, str(HERE / "independent_count.py"), "--json", str(counted)]
    session.run("The same run counted by torch.profiler", [*count, *program], folder)
    if not (traced.exists() and counted.exists()):
        session.failures.append("nanoGPT: a count is missing")
        return
    sites = json.loads(traced.read_text())["regions"][0]["sites"]
    ours = sum(site["syncs"] for site in sites if site["kind"] in ("stream", "device", "event"))
    theirs = json.loads(counted.read_text())["total"]
    session.say(f"nanoGPT: {ours} synchronize calls by gpusync trace, {theirs} by torch.profiler.")
    if ours != theirs:
        session.failures.append("nanoGPT: the counts differ")


def versions() -> str:
    """Return what the figures depend on, one line."""
    import platform

    import torch

    sys.path[:0] = [str(HERE.parent), str(HERE.parent / "lint")]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(HERE.parent), str(HERE.parent / "lint"), os.environ.get("PYTHONPATH", "")]
    )
    from gpusync_lint import __version__

    from pytest_gpusync import devices

    found = devices.detect()
    return (
        f"pytest-gpusync {__version__}, {found.gpu}, driver {found.driver}, torch {torch.__version__}, "
        f"Python {platform.python_version()}"
    )


if __name__ == "__main__":
    sys.exit(main())
