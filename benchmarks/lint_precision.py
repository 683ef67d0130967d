"""Draw default findings at random from source trees, to be judged by reading: `NAME=FOLDER ... --seed 4 --count 60`.

Prints how many default findings each tree has per 10 000 lines, and one Markdown row per finding that was drawn, with
the verdict and its reason left open. The same trees, linter and seed give the same rows.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any


def findings(folder: Path) -> list[dict[str, Any]]:
    """The default findings of a tree: those on lines that run every step, which no comment allows."""
    command = [sys.executable, "-m", "pytest_gpusync", "lint", "--output-format", "json", "--exit-zero", "."]
    shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not shown.stdout:
        sys.exit(f"{folder}: {shown.stderr.strip()}")
    found = json.loads(shown.stdout)["findings"]
    return [one for one in found if one["heat"] == "step" and one["suppressed"] is None]


def lines_of(folder: Path) -> int:
    """Lines of Python source below a folder."""
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("*.py"))


def expression(folder: Path, finding: dict[str, Any]) -> str:
    """What the finding underlines, or the line where it begins if it goes on; short enough for a table."""
    line = (folder / finding["path"]).read_text(encoding="utf-8").split("\n")[finding["line"] - 1]
    one_line = finding["line"] == finding["end_line"]
    text = line[finding["column"] - 1 : finding["end_column"] - 1] if one_line else line.strip()
    return (text if len(text) <= 60 else f"{text[:57]}...").replace("|", "\\|")


def main() -> None:
    """Lint, draw, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=60)
    arguments = parser.parse_args()
    pool = []
    for tree in arguments.trees:
        name, _, folder = tree.partition("=")
        root = Path(folder).resolve()
        found = findings(root)
        lines = lines_of(root)
        print(
            f"{name}: {len(found)} default findings in {lines} lines, {1e4 * len(found) / max(lines, 1):.1f} per 10 000"
        )
        pool += [(name, one["path"], one["line"], one["column"], one["code"], root, one) for one in found]
    pool.sort(key=lambda entry: entry[:5])
    drawn = random.Random(arguments.seed).sample(pool, min(arguments.count, len(pool)))
    print(f"\nDrawn with seed {arguments.seed}: {len(drawn)} of {len(pool)}\n")
    print("| | finding | code | expression | verdict | why |\n|---|---|---|---|---|---|")
    for number, (name, path, line, _, code, root, one) in enumerate(drawn, 1):
        print(f"| {number} | {name}:{path}:{line} | {code} | `{expression(root, one)}` | | |")


if __name__ == "__main__":
    main()
