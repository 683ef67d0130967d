"""Hold how often lines run, as the linter sees it, against how often they ran.

    python benchmarks/truth/heat.py --half {learn,scored} [--misses FILE.md]

All statements are compared that ran at least 3 times, in functions that the linter interprets, whether they wait or
not: many more than there are findings. A statement *ran every step* if its executions are at least 0.8 times the
measured steps of some run, and *seldom* if they are less than 0.3 times the steps of every run. Set-up that repeats, as
over the layers of a model, counts as every step too.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from gpusync_lint.files.discovery import discover
from gpusync_lint.heat.frequency import FrequencyRecorder
from gpusync_lint.model.findings import EngineSettings
from gpusync_lint.run import engine
from gpusync_lint.syntax.traversal import walk_block
from repositories import HALVES
from score import read_truths

OFTEN, SELDOM = 0.8, 0.3
Heats = dict[tuple[str, int], str]
"""By file and line, the heat of the statement."""


class RecordingRecorder(FrequencyRecorder):
    """Notes the heats of all statements of functions that are interpreted."""

    heats: Heats

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        _, runs, own, _ = args
        for file in own:
            for fn in filter(runs.has_run, file.all_functions):
                for node in walk_block(fn.node.body):
                    if isinstance(node, ast.stmt) and not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                        self.heats[file.path, node.lineno] = self.heat(fn, node).value


def heats(sources: Path, repository: str) -> Heats:
    """The heats of the statements of a repository."""
    os.chdir(sources / repository)
    found = discover(["."], cwd=Path.cwd(), excludes=lambda _path: False, stdin=bytes)
    RecordingRecorder.heats = {}
    engine.FrequencyRecorder = RecordingRecorder  # type: ignore[misc]
    engine.analyze([file.source for file in found.files], EngineSettings())
    return {(f"{repository}/{path}", line): heat for (path, line), heat in RecordingRecorder.heats.items()}


def shares(truths: list[dict[str, Any]]) -> dict[tuple[str, int], float]:
    """By file and line, its executions divided by the steps of the run, the largest of all runs."""
    found: defaultdict[tuple[str, int], float] = defaultdict(float)
    for truth in truths:
        if truth["steps"] >= 3:
            for file, lines in truth["executed"].items():
                for line, times in lines.items():
                    found[file, int(line)] = max(found[file, int(line)], times / truth["steps"])
    return found


def main() -> int:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpusync-truth"
    parser = argparse.ArgumentParser(
        prog="heat.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--half", choices=HALVES, required=True)
    parser.add_argument("--folder", type=Path, default=cache, help=f"the folder of make.py (default: {cache})")
    parser.add_argument("--sources", type=Path, help="repositories at their commits (default: FOLDER/sources)")
    parser.add_argument("--runs", type=Path, help="results of make.py (default: FOLDER/runs)")
    parser.add_argument("--misses", type=Path, metavar="FILE.md", help="write the differences; only of --half learn")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="repositories linted at the same time (2)")
    options = parser.parse_args()
    if options.misses and options.half != "learn":
        parser.error("--misses: what is missed in the scored half is not read; use --half learn")
    truths = read_truths(options.runs or options.folder / "runs", options.half, [])
    if not truths:
        parser.error(f"no runs of the half {options.half} are there; make them with make.py first")
    measured = shares(truths)
    counts: Counter[tuple[str, str]] = Counter()
    differences: list[str] = []
    sources = (options.sources or options.folder / "sources").resolve()
    with ProcessPoolExecutor(options.jobs) as pool:
        for seen in pool.map(partial(heats, sources), sorted({truth["repo"] for truth in truths})):
            for place in sorted(seen.keys() & measured.keys()):
                share, heat = measured[place], seen[place]
                ran = "every step" if share >= OFTEN else "seldom" if share < SELDOM else "between"
                counts[heat, ran] += 1
                if (ran == "every step") != (heat == "step") and ran != "between":
                    differences.append(f"- {place[0]}:{place[1]}: {heat}, ran {share:.2f} times a step")
    print(f"{'heat':10} {'every step':>12} {'between':>9} {'seldom':>8}")
    for heat in ("step", "guarded", "epoch", "once"):
        print(f"{heat:10} {counts[heat, 'every step']:12} {counts[heat, 'between']:9} {counts[heat, 'seldom']:8}")
    if options.misses:
        options.misses.write_text("\n".join(differences) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
