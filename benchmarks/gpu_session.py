"""Run everything that needs a GPU in one go and write down what was measured, with versions.

usage: gpu_session.py OUT_DIR [--truth TRUTH.json] [--nanogpt DIR]

Writes OUT_DIR/session.md: `gpusync doctor`, what measuring costs (gpu_cost.py), 100,000 regions and threads that press
the allocator (gpu_endurance.py), the tests marked gpu_only, the experiments; and, side by side, ten workloads beside
torch.profiler's count (gpu_workloads.py), the examples of the linter's catalogues (catalogue_truth.py), the tests that
count with expandable segments, the examples under a budget of 5, the statements of TRUTH.json (see gpu_truth.py), and
`gpusync trace` of nanoGPT's train.py from DIR beside an independent count by torch.profiler (see independent_count.py).
On several GPUs gpu_several.py as well. It takes some eight minutes on an H200 with 16 cores, and ends with status 1 if
any part failed. Ten minutes of threads are `gpu_endurance.py --minutes 10`.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 400
AT_ONCE = 4
COUNTING_TESTS = ["tests/gpu/test_cupti.py", "tests/gpu/test_gpu_beside.py"]
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


class Part(NamedTuple):
    """One command of the session."""

    title: str
    command: list[str]
    cwd: Path | None = None


class Session:
    """The report under way."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.lines = [f"# What a GPU session measured\n\n{versions()}\n"]
        self.failures: list[str] = []
        self._began = time.monotonic()

    def run(self, *parts: Part, at_once: int = 1) -> None:
        """Run commands and add their output to the report, in their order.

        Args:
            parts: what to run.
            at_once: how many may run beside each other; counts do not suffer from company, times do.
        """
        with ThreadPoolExecutor(at_once) as pool:
            for part, (output, code, seconds) in zip(parts, pool.map(_execute, parts), strict=True):
                if code:
                    self.failures.append(f"{part.title} (exit {code})")
                shown = " ".join(Path(word).name if word.startswith("/") else word for word in part.command)
                tail = "\n".join(output.rstrip().splitlines()[-80:])
                shown, tail = self.without_paths(shown), self.without_paths(tail)
                self.lines.append(
                    f"## {part.title}\n\n```console\n$ {shown}\n{tail}\n```\n\nexit status {code}, {seconds:.0f} s\n"
                )
                self.write()
                print(f"{part.title}: exit {code}, {seconds:.0f} s", flush=True)

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

    def close(self) -> int:
        """Say how it went, and return the exit status."""
        took = f"The session took {(time.monotonic() - self._began) / 60:.1f} minutes."
        self.say(took + (" Failed: " + "; ".join(self.failures) if self.failures else ""))
        return 1 if self.failures else 0

    def write(self) -> None:
        """Write what there is so far."""
        (self.out / "session.md").write_text("\n".join(self.lines))


def _execute(part: Part) -> tuple[str, int, float]:
    """Return a command's output, its exit status and the seconds it took."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            part.command, cwd=part.cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S
        )
        output, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        output, code = (late.stdout or b"").decode(errors="replace"), 124
    return output, code, time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--nanogpt", type=Path)
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    session = Session(out)
    python, root = sys.executable, HERE.parent
    script = [python, "-W", "ignore"]
    pytest = [python, "-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore"]

    def benchmark(title: str, name: str, *arguments: str) -> Part:
        kept = name.removeprefix("gpu_").removesuffix("_truth")
        written = str(out / f"{kept}.json")
        return Part(title, [*script, str(HERE / f"{name}.py"), *arguments, "--json", written])

    # What takes times, by itself.
    session.run(
        Part("gpusync doctor", [python, "-m", "pytest_gpusync", "doctor"]),
        benchmark("What measuring costs", "gpu_cost"),
        benchmark("100,000 regions, and threads", "gpu_endurance", "--regions", "100000", "--minutes", "0.3"),
        Part("Tests of the driver-level recorder", [*pytest, "-q", "tests/gpu"], root),
        Part("Experiments", [*pytest, "--gpu-require", "-q", "examples/experiments"], root),
    )
    # What counts, side by side.
    report = f"--gpu-sync-report={out / 'examples.json'}"
    parts = [
        benchmark("Ten workloads beside torch.profiler's count", "gpu_workloads"),
        benchmark("Examples of the catalogues", "catalogue_truth", "--table", str(out / "catalogue.md")),
        Part(
            "Tests that count, with expandable segments",
            ["env", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", *pytest, "-q", *COUNTING_TESTS],
            root,
        ),
        Part(
            "Examples under a budget of 5",
            [*pytest, "--gpu-sync-budget=5", "--gpu-require", report, "-rx", *TRAININGS],
            root,
        ),
    ]
    if options.truth:
        written = str(out / "statements.json")
        parts.append(Part("Statements", [*script, str(HERE / "gpu_truth.py"), str(options.truth), "--json", written]))
    if options.nanogpt:
        parts += nanogpt(options.nanogpt, out)
    session.run(*parts, at_once=AT_ONCE)
    if options.nanogpt:
        compare_nanogpt(session)
    if gpus() > 1:
        session.run(benchmark("Several GPUs", "gpu_several"))
    return session.close()


def nanogpt(folder: Path, out: Path) -> list[Part]:
    """Return a trace of train.py and the same run counted by torch.profiler."""
    data = folder / "data" / "synthetic"
    data.mkdir(parents=True, exist_ok=True)
    numbers = random.Random(0)
    for name, size in (("train", 200_000), ("val", 20_000)):
        with (data / f"{name}.bin").open("wb") as file:
            array.array("H", (numbers.randrange(256) for _ in range(size))).tofile(file)
    program = ["train.py", *NANOGPT_OPTIONS]
    trace = [sys.executable, "-m", "pytest_gpusync", "trace", "--all", "--json", str(out / "nanogpt.json")]
    count = [sys.executable, str(HERE / "independent_count.py"), "--json", str(out / "nanogpt-profiler.json")]
    return [
        Part("gpusync trace of nanoGPT", [*trace, *program, f"--out_dir={out / 'traced'}"], folder),
        Part("The same run counted by torch.profiler", [*count, *program, f"--out_dir={out / 'counted'}"], folder),
    ]


def compare_nanogpt(session: Session) -> None:
    """Compare the totals of the two runs."""
    traced, counted = session.out / "nanogpt.json", session.out / "nanogpt-profiler.json"
    for folder in ("traced", "counted"):
        shutil.rmtree(session.out / folder, ignore_errors=True)  # checkpoints
    if not (traced.exists() and counted.exists()):
        session.failures.append("nanoGPT: a count is missing")
        return
    sites = json.loads(traced.read_text())["regions"][0]["sites"]
    ours = sum(site["syncs"] for site in sites if site["kind"] in ("stream", "device", "event"))
    theirs = json.loads(counted.read_text())["total"]
    session.say(f"nanoGPT: {ours} synchronize calls by gpusync trace, {theirs} by torch.profiler.")
    if ours != theirs:
        session.failures.append("nanoGPT: the counts differ")


def gpus() -> int:
    """Return how many GPUs torch sees."""
    import torch

    return torch.cuda.device_count()


def versions() -> str:
    """Return what the figures depend on, one line."""
    import platform

    import torch

    sys.path[:0] = [str(HERE.parent), str(HERE.parent / "lint")]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(HERE.parent), str(HERE.parent / "lint"), os.environ.get("PYTHONPATH", "")]
    )
    from gpusync_lint import __version__

    from pytest_gpusync.machine import devices

    found = devices.detect()
    return (
        f"pytest-gpusync {__version__}, {found.gpu}, driver {found.driver}, torch {torch.__version__}, "
        f"Python {platform.python_version()}"
    )


if __name__ == "__main__":
    sys.exit(main())
