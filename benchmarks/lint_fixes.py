"""Apply the linter's fixes to copies of whole trees and check what they leave.

    python benchmarks/lint_fixes.py [--json RESULT.json] [--keep FOLDER] TREE...

For each tree, with ``--fix`` and with ``--fix --unsafe-fixes``: how many warnings are fixed in how many files, whether
every file that compiled still does, and whether a second run changes anything. The same is done with a copy in another
spelling (byte-order marks, CRLF, tabs for every four leading blanks, a name with an umlaut in place of ``loss``): what
is fixed in it has to be the other spelling of what is fixed in the plain copy. Nothing is fetched, the trees are not
written to, and the exit status is 1 if any check failed. ``--keep`` leaves the fixed copies in FOLDER.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = (".py", ".ipynb")
MODES = {"safe": ["--fix"], "unsafe": ["--fix", "--unsafe-fixes"]}
_FIXED = re.compile(r"Fixed (\d+) warnings? in (\d+) files?")
_LEADING = re.compile(r"^(?: {4})+", re.MULTILINE)


@dataclass
class Outcome:
    """What became of one tree in one mode."""

    tree: str
    mode: str
    spelling: str
    files: int = 0
    lines: int = 0
    fixed: int = 0
    changed: int = 0
    """Files whose bytes differ."""
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)
    """Files that compiled before and do not any more."""
    changed_again: list[str] = field(default_factory=list)
    """Files that the second run changed."""
    refused: list[str] = field(default_factory=list)
    """What the linter said about files that it did not fix, and internal errors."""
    differs: list[str] = field(default_factory=list)
    """Files whose other spelling was fixed in another way."""

    @property
    def failed(self) -> bool:
        return bool(self.broken or self.changed_again or self.refused or self.differs)


def copy(tree: Path, target: Path) -> None:
    """Copy the Python files and notebooks of a tree."""
    for folder, folders, names in os.walk(tree):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            source = Path(folder, name)
            if name.endswith(SUFFIXES) and source.is_file():
                place = target / source.relative_to(tree)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, place)


def respelled(text: str) -> str:
    """The same program in another spelling; the inverse of nothing, but the same for the same text."""
    text = re.sub(r"\bloss\b", "löss", text)
    return _LEADING.sub(lambda match: "\t" * (len(match[0]) // 4), text)


def respell(folder: Path) -> None:
    """Write every file of UTF-8 that still compiles in another spelling; take the others away."""
    for path in list(python_files(folder)):
        try:
            text = path.read_bytes().decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
        except UnicodeDecodeError:
            path.unlink()
            continue
        other = respelled(text)
        if "\r" in text or not compiles(text.encode()) or not compiles(other.encode()):
            path.unlink()
        else:
            path.write_bytes(b"\xef\xbb\xbf" + other.replace("\n", "\r\n").encode())


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if path.is_file())


def snapshot(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix in SUFFIXES]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def compiles(data: bytes) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(data, "file", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


def lint(folder: Path, options: list[str]) -> tuple[int, list[str]]:
    """Fix a folder; how many warnings were, and what went wrong."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "lint")])}
    command = [sys.executable, "-m", "pytest_gpusync", "lint", *options, "--exit-zero", "--statistics", "."]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    match = _FIXED.search(text)
    wrong = [line for line in text.splitlines() if "not fixed" in line or "internal error" in line or "bug in" in line]
    return int(match[1]) if match else 0, wrong


def judge(tree: Path, mode: str, spelling: str, folder: Path) -> Outcome:
    """Fix a copy twice, and check it."""
    outcome = Outcome(tree.name, mode, spelling)
    before = snapshot(folder)
    outcome.files = len(before)
    outcome.lines = sum(data.count(b"\n") for data in before.values())
    start = time.monotonic()
    outcome.fixed, outcome.refused = lint(folder, MODES[mode])
    outcome.seconds = round(time.monotonic() - start, 1)
    after = snapshot(folder)
    changed = [name for name in before if after[name] != before[name]]
    outcome.changed = len(changed)
    outcome.broken = [
        name for name in changed if name.endswith(".py") and compiles(before[name]) and not compiles(after[name])
    ]
    lint(folder, MODES[mode])
    again = snapshot(folder)
    outcome.changed_again = [name for name in after if again[name] != after[name]]
    return outcome


def both(tree: Path, mode: str, work: Path) -> list[Outcome]:
    """The outcomes of a tree as it is, and in the other spelling."""
    plain, other = work / f"{tree.name}-{mode}", work / f"{tree.name}-{mode}-respelled"
    copy(tree, plain)
    copy(tree, other)
    respell(other)
    respelled_files = {path.relative_to(other).as_posix() for path in python_files(other)}
    alone = work / f"{tree.name}-{mode}-alone"
    copy(tree, alone)  # the plain spelling of the same set of files: what is missing changes what is known
    for path in python_files(alone):
        if path.relative_to(alone).as_posix() not in respelled_files:
            path.unlink()
    outcomes = [judge(tree, mode, "plain", plain), judge(tree, mode, "respelled", other)]
    lint(alone, MODES[mode])
    for name in sorted(respelled_files):
        text = (alone / name).read_bytes().decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
        if (other / name).read_bytes() != b"\xef\xbb\xbf" + respelled(text).replace("\n", "\r\n").encode():
            outcomes[1].differs.append(name)
    shutil.rmtree(alone)
    return outcomes


def show(outcomes: list[Outcome]) -> None:
    head = (
        "tree",
        "mode",
        "spelling",
        "files",
        "lines",
        "fixed",
        "files changed",
        "broken",
        "changed again",
        "differs",
    )
    rows = [head, tuple("---" for _ in head)]
    for one in outcomes:
        numbers = (one.files, one.lines, one.fixed, one.changed, len(one.broken), len(one.changed_again))
        differs = str(len(one.differs)) if one.spelling != "plain" else ""
        rows.append((one.tree, one.mode, one.spelling, *(f"{number:,}" for number in numbers), differs))
    for row in rows:
        print(f"| {' | '.join(row)} |")
    for one in outcomes:
        for title in ("broken", "changed_again", "refused", "differs"):
            for name in getattr(one, title):
                print(f"{one.tree}, {one.mode}, {one.spelling}: {title.replace('_', ' ')}: {name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", nargs="+", type=Path, metavar="TREE")
    parser.add_argument("--json", type=Path, metavar="RESULT.json")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    for tree in options.trees:
        if not tree.is_dir():
            parser.error(f"{tree}: no such folder")
    outcomes = []
    with tempfile.TemporaryDirectory() as temporary:
        work = options.keep or Path(temporary)
        for tree in options.trees:
            for mode in MODES:
                outcomes += both(tree.resolve(), mode, work)
    show(outcomes)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1), encoding="utf-8")
    return 1 if any(one.failed for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
