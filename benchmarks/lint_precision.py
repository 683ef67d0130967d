"""Draw default findings at random from source trees, to be judged by reading: `NAME=FOLDER ... --seed 4 --count 60`.

Prints how many default findings each tree has per 10 000 lines, and one Markdown row per finding that was drawn, with
the verdict and its reason left open. A line counts once, and `--per-tree` limits how many lines of one tree can be
drawn, so that a large tree does not decide the figure. The same trees, linter and seed give the same rows.
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
    """The default findings of a tree that no comment allows: on lines that run every step or request; one a line."""
    command = [sys.executable, "-m", "pytest_gpusync", "lint", "--output-format", "json", "--exit-zero", "."]
    shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not shown.stdout:
        sys.exit(f"{folder}: {shown.stderr.strip()}")
    found = json.loads(shown.stdout)["findings"]
    warnings = [one for one in found if one["level"] == "warning" and one["suppressed"] is None]
    lines = {(one["path"], one["cell"] or 0, one["line"]): one for one in warnings}
    return [lines[key] for key in sorted(lines)]


def lines_of(folder: Path) -> int:
    """Lines of Python source below a folder."""
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("*.py") if path.is_file())


def place(finding: dict[str, Any]) -> str:
    """Path, cell and line of a finding."""
    cell = "" if finding["cell"] is None else f" (cell {finding['cell']})"
    return f"{finding['path']}{cell}:{finding['line']}"


def expression(folder: Path, finding: dict[str, Any]) -> str:
    """What the finding underlines, or the line where it begins if it goes on; of a notebook the message."""
    if finding["cell"] is not None:
        text = str(finding["message"])
    else:
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
    parser.add_argument("--per-tree", type=int, metavar="N", help="draw from N lines of a tree at most")
    arguments = parser.parse_args()
    pool: list[tuple[str, Path, dict[str, Any]]] = []
    draw = random.Random(arguments.seed)
    for tree in sorted(arguments.trees):
        name, _, folder = tree.partition("=")
        root = Path(folder).resolve()
        found = findings(root)
        lines = lines_of(root)
        print(
            f"{name}: {len(found)} default findings in {lines} lines, {1e4 * len(found) / max(lines, 1):.1f} per 10 000"
        )
        chosen = found if arguments.per_tree is None else draw.sample(found, min(arguments.per_tree, len(found)))
        pool += [(name, root, one) for one in chosen]
    drawn = draw.sample(pool, min(arguments.count, len(pool)))
    drawn.sort(key=lambda entry: (entry[0], place(entry[2])))
    print(f"\nDrawn with seed {arguments.seed}: {len(drawn)} of {len(pool)}\n")
    print("| | finding | code | expression | verdict | why |\n|---|---|---|---|---|---|")
    for number, (name, root, one) in enumerate(drawn, 1):
        print(f"| {number} | {name}:{place(one)} | {one['code']} | `{expression(root, one)}` | | |")


if __name__ == "__main__":
    main()
