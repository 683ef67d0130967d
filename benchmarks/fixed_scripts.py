"""Run training scripts before and after the linter's fixes, and set their syncs and what they print side by side.

    python benchmarks/fixed_scripts.py BEFORE AFTER --run "mnist: main.py --epochs 1" [--run ...]
        [--device {simulated,cuda}] [--mnist data] [--text data/wikitext-2] [--json RESULT.json] [--python PYTHON]

BEFORE is a tree of scripts, for instance a checkout of pytorch/examples. AFTER is made of it where it does not exist: a
copy with ``--fix --unsafe-fixes``. ``--run "FOLDER: SCRIPT ARGUMENT..."`` runs a script in that folder of both trees
under ``gpusync trace``. ``--mnist FOLDER`` puts a small data set of noise in MNIST's format into FOLDER of both trees
and ``--text FOLDER`` a small corpus of three files, so that nothing is downloaded.

Of each pair of runs it is told how many syncs the steps made in all and each, and by how much the numbers differ that
both printed after the word loss. Status 1 if a script failed, did not make fewer syncs, or printed other numbers by
more than ``--tolerance`` (relative, 1e-4): a sum on the device rounds as its tensor does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import shutil
import struct
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "lint"), os.environ.get("PYTHONPATH", "")])
_NUMBER = re.compile(r"[-+]?\d+\.\d+(?:[eE][-+]?\d+)?")
_REPORT = re.compile(r"^=+ .*gpusync|^-+ .*gpusync|^gpusync", re.MULTILINE)


@dataclass
class Side:
    """One run of a script."""

    status: int
    steps: int | None = None
    syncs: int | None = None
    """In the measured steps."""
    median: float | None = None
    """Syncs per step."""
    printed: list[float] = field(default_factory=list)
    tail: str = ""


@dataclass
class Pair:
    """A script before and after."""

    run: str
    device: str
    before: Side
    after: Side

    @property
    def difference(self) -> float | None:
        """The largest relative difference of the numbers printed; None where they are not as many."""
        if len(self.before.printed) != len(self.after.printed):
            return None
        pairs = zip(self.before.printed, self.after.printed, strict=True)
        return max((abs(one - other) / max(abs(one), abs(other), 1e-12) for one, other in pairs), default=0.0)

    def kept(self, tolerance: float) -> bool:
        fewer = (self.after.syncs or 0) < (self.before.syncs or 0)
        return self.before.status == self.after.status == 0 and fewer and (self.difference or 0.0) <= tolerance


def make_after(before: Path, after: Path) -> None:
    """Copy a tree and fix it."""
    shutil.copytree(before, after, ignore=shutil.ignore_patterns(".git"))
    command = [sys.executable, "-m", "pytest_gpusync", "lint", "--fix", "--unsafe-fixes", "--exit-zero", "--statistics"]
    subprocess.run([*command, "."], cwd=after, env={**os.environ, "PYTHONPATH": PATHS}, check=True)


def write_mnist(folder: Path, train: int = 640, test: int = 200) -> None:
    """A data set of noise in the files that torchvision's MNIST reads."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    noise = random.Random(0)
    for name, count in (("train", train), ("t10k", test)):
        images = struct.pack(">4i", 2051, count, 28, 28) + noise.randbytes(count * 28 * 28)
        labels = struct.pack(">2i", 2049, count) + bytes(noise.randrange(10) for _ in range(count))
        (raw / f"{name}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(labels)


def write_text(folder: Path) -> None:
    """A corpus of made-up words."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = random.Random(0)
    for name, lines in (("train", 400), ("valid", 60), ("test", 60)):
        text = "\n".join(" ".join(f"w{noise.randrange(200)}" for _ in range(20)) for _ in range(lines))
        (folder / f"{name}.txt").write_text(text + "\n", encoding="utf-8")


def trace(tree: Path, run: str, device: str, python: str, out: Path) -> Side:
    """Run a script of a tree under ``gpusync trace``."""
    folder, _, command = run.partition(":")
    environment = {**os.environ, "PYTHONPATH": PATHS, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    tracing = [python, "-m", "pytest_gpusync", "trace", "--device", device, "--json", str(out), *shlex.split(command)]
    done = subprocess.run(
        tracing, cwd=tree / folder.strip(), env=environment, capture_output=True, text=True, check=False
    )
    side = Side(done.returncode, tail="\n".join((done.stdout + done.stderr).splitlines()[-15:]))
    if not out.exists():
        return side
    region: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))["regions"][0]
    out.unlink()
    side.steps, side.syncs = region["steps"], region["syncs"]
    side.median = (region["syncs_per_step"] or {}).get("median")
    printed = _REPORT.split(done.stdout)[0]
    behind = [line.lower().partition("loss")[2] for line in printed.splitlines()]
    side.printed = [float(number) for text in behind for number in _NUMBER.findall(text)]
    return side


def show(pairs: list[Pair]) -> None:
    head = (
        "script",
        "steps",
        "syncs before",
        "after",
        "per step before",
        "after",
        "numbers printed",
        "largest difference",
    )
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for pair in pairs:
        before, after = pair.before, pair.after
        difference = "other lines" if pair.difference is None else f"{pair.difference:.1e}"
        cells = (pair.run, before.steps, before.syncs, after.syncs, before.median, after.median)
        cells = (*cells, len(before.printed), difference)
        print(f"| {' | '.join('-' if cell is None else str(cell) for cell in cells)} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, metavar="BEFORE")
    parser.add_argument("after", type=Path, metavar="AFTER")
    parser.add_argument("--run", action="append", required=True, metavar="FOLDER: SCRIPT ARGUMENT...")
    parser.add_argument("--device", choices=("simulated", "cuda"), default="simulated")
    parser.add_argument("--mnist", action="append", default=[], metavar="FOLDER")
    parser.add_argument("--text", action="append", default=[], metavar="FOLDER")
    parser.add_argument("--json", type=Path, metavar="RESULT.json")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that runs the scripts")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    options = parser.parse_args()
    before, after = options.before.resolve(), options.after.resolve()
    if not after.exists():
        make_after(before, after)
    for tree in (before, after):
        for folder in options.mnist:
            write_mnist(tree / folder)
        for folder in options.text:
            write_text(tree / folder)
    pairs = []
    for run in options.run:
        sides = [trace(tree, run, options.device, options.python, tree / "run.json") for tree in (before, after)]
        pairs.append(Pair(run, options.device, *sides))
    show(pairs)
    for pair in pairs:
        for side in (pair.before, pair.after):
            if side.status:
                print(f"{pair.run}: status {side.status}\n{side.tail}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(pair) for pair in pairs], indent=1), encoding="utf-8")
    return 0 if all(pair.kept(options.tolerance) for pair in pairs) else 1


if __name__ == "__main__":
    sys.exit(main())
