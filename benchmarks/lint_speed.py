"""Time `gpusync lint`, cold and warm, and other linters over the same files.

usage: lint_speed.py [--python-env NAME=FOLDER]... [--sample N] [--repeat N] [--shares] [--edit FILE OLD NEW]...
                     [--out FOLDER] TREE...

TREE is a folder of Python files; nothing is fetched and nothing in it is changed: a copy is linted. Each NAME=FOLDER is
a virtual environment that is searched for torchfix, fixit, flake8, pylint with perflint, and ruff. The slow tools take
minutes per 100,000 lines, so `--sample N` gives every N-th file to all tools alike, and the whole to gpusync and ruff
as well. Other linters run other rules: this is what a tree costs, not equal work. `--shares` lints a tenth, a fifth,
two fifths and all of each tree as well, in the order of paths, to see how time grows. `--edit FILE OLD NEW` replaces
OLD in a file, TREE's name first, and times the run after that. Findings with and without processes and cache are
compared, after each edit too.

Processor time is that of the whole process tree, and the figure to compare on a machine that others use too; of several
runs the one with the least counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

LINT = [sys.executable, "-m", "pytest_gpusync", "lint", "--exit-zero", "--output-format", "json", "."]
TOOLS = {
    "torchfix": ["-m", "torchfix", "--select", "ALL", "."],
    "fixit": ["-m", "fixit", "lint", "."],
    "flake8": ["-m", "flake8", "--isolated", "--select", "F", "."],
    "pylint with perflint": [
        "-m", "pylint", "--load-plugins=perflint", "--disable=all", "--recursive=y",
        "--enable=W8101,W8102,W8201,W8202,R8203,W8204,W8205,W8301,W8401,W8402,W8403", ".",
    ],
    "ruff": ["-m", "ruff", "check", "--isolated", "--no-cache", "--select", "PERF", "--exit-zero", "."],
}  # fmt: skip
MODULES = {
    "torchfix": ("torchfix",),
    "fixit": ("fixit",),
    "flake8": ("flake8",),
    "pylint with perflint": ("pylint", "perflint"),
    "ruff": ("ruff",),
}
"""The distributions whose versions tell which tool it was."""


@dataclass(frozen=True)
class Row:
    """One tool over one set of files."""

    tool: str
    versions: str
    files: int
    lines: int
    wall_s: float
    cpu_s: float
    peak_mib: float
    """Of the largest process."""

    @property
    def cpu_per_million(self) -> float:
        """Processor seconds for a million lines."""
        return self.cpu_s / self.lines * 1e6

    @property
    def wall_per_million(self) -> float:
        """Seconds on the clock for a million lines."""
        return self.wall_s / self.lines * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python-env", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--sample", type=int, default=1, metavar="N")
    parser.add_argument("--shares", action="store_true")
    parser.add_argument("--edit", nargs=3, action="append", default=[], metavar=("FILE", "OLD", "NEW"))
    parser.add_argument("--repeat", type=int, default=1, metavar="N")
    parser.add_argument("--out", type=Path, metavar="FOLDER")
    parser.add_argument("trees", nargs="+", type=Path, metavar="TREE")
    options = parser.parse_args()
    environments = {name: Path(folder) for name, _, folder in (item.partition("=") for item in options.python_env)}
    started = datetime.now(timezone.utc)
    with tempfile.TemporaryDirectory() as scratch:
        whole, sample = Path(scratch, "whole"), Path(scratch, "sample")
        _copy(options.trees, whole, 1)
        rows = _ours(whole, options.repeat)
        same = (
            _findings([*LINT, "--no-cache", "--jobs", "1"], whole) == _findings(LINT, whole) == _findings(LINT, whole)
        )
        for file, old, new in options.edit:
            row, as_afresh = _edited(whole, file, old, new, max(3, options.repeat))
            rows.append(row)
            same = same and as_afresh
        shutil.rmtree(whole / ".gpusync_cache", ignore_errors=True)
        shares = _shares(options.trees, Path(scratch, "shares")) if options.shares else []
        rows += _others(whole, environments, ("ruff",), options.repeat) if options.sample > 1 else []
        sampled: list[Row] = []
        if options.sample > 1:
            _copy(options.trees, sample, options.sample)
            sampled = _ours(sample, options.repeat, single=True)
            sampled += _others(sample, environments, tuple(TOOLS), 1)
        else:
            rows += _others(whole, environments, tuple(TOOLS), options.repeat)
    report = _markdown(rows, sampled, options.sample, [tree.name for tree in options.trees], started)
    report += f"\nFindings of one process without a cache, of {os.cpu_count()} with one, from the cache alone, "
    report += f"and after edits with and without one: {'the same' if same else 'NOT the same'}.\n"
    report += _table("Shares of each tree", shares) if shares else ""
    print(report)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "lint-speed.md").write_text(report)
        document = {
            "started": started.isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "trees": [tree.name for tree in options.trees],
            "sample": options.sample,
            "whole": [asdict(row) for row in rows],
            "sampled": [asdict(row) for row in sampled],
            "shares": [asdict(row) for row in shares],
            "same_findings": same,
        }
        (options.out / "lint-speed.json").write_text(json.dumps(document, indent=1) + "\n")
    return 0 if same else 1


def _edited(folder: Path, file: str, old: str, new: str, repeat: int) -> tuple[Row, bool]:
    """The run after an edit, made again and again, and whether it finds what one without a cache finds."""
    path = folder / file
    before = path.read_text()
    if old not in before:
        sys.exit(f"{file}: {old!r} does not stand there; give --edit a text that does")
    version = _version(Path(sys.executable), ("pytest-gpusync", "libcst"))
    label = f"gpusync lint, {path.name} with `{new.strip().splitlines()[0]}`"
    rows = []
    for _ in range(repeat):
        path.write_text(before)
        _findings(LINT, folder)
        path.write_text(before.replace(old, new))
        rows.append(_best(label, version, LINT, folder, 1))
    row = min(rows, key=lambda row: row.cpu_s)
    return row, _findings(LINT, folder) == _findings([*LINT, "--no-cache"], folder)


def _findings(command: list[str], folder: Path) -> object:
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return json.loads(done.stdout)


def _shares(trees: list[Path], target: Path) -> list[Row]:
    version = _version(Path(sys.executable), ("pytest-gpusync", "libcst"))
    rows = []
    for share in (0.1, 0.2, 0.4, 1.0):
        folder = target / str(share)
        for tree in trees:
            paths = sorted(tree.rglob("*.py"))
            sizes = [path.stat().st_size for path in paths]
            left = share * sum(sizes)
            for path, size in zip(paths, sizes, strict=True):
                if left <= 0:
                    break
                left -= size
                place = folder / tree.name / path.relative_to(tree)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)
        rows.append(_best(f"gpusync lint, {share:.0%}", version, [*LINT, "--no-cache"], folder, 1))
    return rows


def _copy(trees: list[Path], target: Path, every: int) -> None:
    number = 0
    for tree in trees:
        for path in sorted(tree.rglob("*.py")):
            if number % every == 0:
                place = target / tree.name / path.relative_to(tree)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)
            number += 1


def _ours(folder: Path, repeat: int, single: bool = False) -> list[Row]:
    version = _version(Path(sys.executable), ("pytest-gpusync", "libcst"))
    rows = []
    if single:
        command = [*LINT, "--no-cache", "--jobs", "1"]
        rows.append(_best("gpusync lint, one process, no cache", version, command, folder, repeat))
    rows.insert(0, _best("gpusync lint, nothing known", version, LINT, folder, repeat, forget=True))
    time.sleep(2.5)  # a file that changed just before the cache was written is not trusted by its time
    _run(LINT, folder)
    rows.append(_best("gpusync lint, nothing changed", version, LINT, folder, max(3, repeat)))
    paths = sorted(folder.rglob("*.py"))
    changed = paths[len(paths) // 2]
    edited = []
    for number in range(max(3, repeat)):
        changed.write_text(f"{changed.read_text()}\n_changed{number} = 1\n")
        edited.append(_best("gpusync lint, one file changed", version, LINT, folder, 1))
    rows.append(min(edited, key=lambda row: row.cpu_s))
    shutil.rmtree(folder / ".gpusync_cache", ignore_errors=True)
    staged = [str(paths[len(paths) * part // 4].relative_to(folder)) for part in (1, 2, 3)]
    rows.append(_best("gpusync lint, three files given", version, [*LINT[:-1], *staged], folder, max(3, repeat)))
    return rows


def _others(folder: Path, environments: dict[str, Path], tools: tuple[str, ...], repeat: int) -> list[Row]:
    rows = []
    for tool in tools:
        for environment in environments.values():
            python = environment / "bin" / "python"
            version = _version(python, MODULES[tool])
            if version:
                rows.append(_best(tool, version, [str(python), *TOOLS[tool]], folder, repeat))
                break
    return rows


def _version(python: Path, distributions: tuple[str, ...]) -> str:
    """The versions of distributions in an environment; empty where one is missing."""
    code = "import sys, importlib.metadata as m\nprint(', '.join(f'{d} {m.version(d)}' for d in sys.argv[1:]))"
    done = subprocess.run([python, "-c", code, *distributions], capture_output=True, text=True, check=False)
    if done.returncode and distributions[0] == "pytest-gpusync":
        return "gpusync " + subprocess.run(
            [python, "-c", "import gpusync_lint; print(gpusync_lint.__version__)"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
    return done.stdout.strip()


def _best(tool: str, versions: str, command: list[str], folder: Path, repeat: int, forget: bool = False) -> Row:
    paths = list(folder.rglob("*.py"))
    lines = sum(path.read_bytes().count(b"\n") for path in paths)
    runs = []
    for _ in range(repeat):
        if forget:
            shutil.rmtree(folder / ".gpusync_cache", ignore_errors=True)
        runs.append(_run(command, folder))
    wall, cpu, peak = min(runs, key=lambda run: run[1])
    return Row(tool, versions, len(paths), lines, round(wall, 3), round(cpu, 3), round(peak, 1))


def _run(command: list[str], folder: Path) -> tuple[float, float, float]:
    """Seconds on the clock, processor seconds and MiB of one run; its output is thrown away.

    Compiled modules may be kept, as they are of any package that was installed.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    _, _, used = os.wait4(process.pid, 0)
    return time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def _markdown(rows: list[Row], sampled: list[Row], every: int, trees: list[str], started: datetime) -> str:
    head = f"# Speed of the linter, {started:%Y-%m-%d}\n\n"
    head += f"`benchmarks/lint_speed.py` over {', '.join(trees)}; Python {platform.python_version()}, "
    head += f"{os.cpu_count()} processors. Other linters run other rules: this is what a tree costs, not equal work.\n"
    text = head + _table("All files", rows)
    if sampled:
        text += _table(f"Every {every}th file", sampled)
    return text


def _table(title: str, rows: list[Row]) -> str:
    ours = rows[0]
    text = f"\n## {title}: {ours.files:,} files, {ours.lines:,} lines\n\n"
    text += "| tool | wall s | CPU s | s per million lines | CPU s per million lines | CPU / gpusync cold | MiB |\n"
    text += "|---|---|---|---|---|---|---|\n"
    for row in rows:
        text += f"| {row.tool} ({row.versions}) | {row.wall_s:.2f} | {row.cpu_s:.2f} | {row.wall_per_million:.2f} "
        text += f"| {row.cpu_per_million:.2f} | {row.cpu_s / ours.cpu_s:.2f} | {row.peak_mib:.0f} |\n"
    return text


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.exit(main())
