"""Count how often findings of each sort are right, and write the table that decides their confidence.

    python benchmarks/truth/confidence.py [--check]

A sort is what was known when a finding was made (``rules/base/evidence.py``). Of the findings on statements that ran at
least 3 times in the half ``learn``, the table counts those whose statement waited at least once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusync_lint.files.discovery import discover
from gpusync_lint.model.findings import EngineSettings
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.evidence import confidence_of, sort_of
from gpusync_lint.run import judge
from gpusync_lint.run.engine import analyze
from score import ROOT, Sources, Statement, read_truths

if TYPE_CHECKING:
    from gpusync_lint.model.findings import Finding

TABLE = ROOT / "lint/gpusync_lint/catalogue/measured.json"
LEAST_EXECUTIONS = 3
Sorted = list[tuple[str, int, str]]
"""Of findings: path, line, sort."""


class RecordingJudge(judge.Judge):
    """Notes the sort of each finding that is a wait."""

    found: Sorted

    def _finding(self, *args: Any) -> Finding:
        finding = super()._finding(*args)
        _, report, _, context = args
        if judge.is_wait(finding.code):
            self.found.append((finding.path, finding.span.line, sort_of(report, context.values)))
        return finding


def findings(sources: Path, repository: str) -> Sorted:
    """The findings in a repository, of any heat and confidence."""
    os.chdir(sources / repository)
    found = discover(["."], cwd=Path.cwd(), excludes=lambda _path: False, stdin=bytes)
    RecordingJudge.found = []
    judge.Judge = RecordingJudge  # type: ignore[misc]
    analyze([file.source for file in found.files], EngineSettings())
    return [(f"{repository}/{path}", line, sort) for path, line, sort in RecordingJudge.found]


def measure(truths: list[dict[str, Any]], sources: Path, jobs: int) -> dict[str, tuple[int, int]]:
    """By sort, the findings on statements that ran, and those of them that waited."""
    files = Sources(sources)
    ran: Counter[Statement] = Counter()
    waited: set[Statement] = set()
    for truth in truths:
        for file, lines in truth["executed"].items():
            for line, times in lines.items():
                statement = files.statement(file, int(line))
                ran[statement] = max(ran[statement], times)
        waited.update(files.statement(row["file"], row["line"]) for row in truth["waits"])
    counts: Counter[str] = Counter()
    right: Counter[str] = Counter()
    repositories = sorted({truth["repo"] for truth in truths})
    with ProcessPoolExecutor(jobs) as pool:
        for found in pool.map(partial(findings, sources.resolve()), repositories):
            for file, line, sort in found:
                statement = files.statement(file, line)
                if ran[statement] >= LEAST_EXECUTIONS:
                    counts[sort] += 1
                    right[sort] += statement in waited
    return {sort: (number, right[sort]) for sort, number in sorted(counts.items())}


def main() -> int:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpusync-truth"
    parser = argparse.ArgumentParser(
        prog="confidence.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=cache, help=f"the folder of make.py (default: {cache})")
    parser.add_argument("--sources", type=Path, help="repositories at their commits (default: FOLDER/sources)")
    parser.add_argument("--runs", type=Path, help="results of make.py (default: FOLDER/runs)")
    parser.add_argument("--dry-run", action="store_true", help="print the table, and do not write it")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="repositories linted at the same time (2)")
    options = parser.parse_args()
    truths = read_truths(options.runs or options.folder / "runs", "learn", [])
    if not truths:
        parser.error("no runs of the half learn are there; make them with make.py first")
    counts = measure(truths, options.sources or options.folder / "sources", options.jobs)
    print("sort                                     ran  waited  confidence")
    for sort, (ran, waited) in counts.items():
        stated = Confidence(sort.partition(" ")[0])
        print(f"{sort:38} {ran:5} {waited:7}  {confidence_of(stated, ran, waited).value}")
    if not options.dry_run:
        rows = ",\n".join(f"  {json.dumps(sort)}: {list(pair)}" for sort, pair in counts.items())
        written = TABLE.with_suffix(".tmp")
        written.write_text(f'{{"runs": {len(truths)}, "sorts": {{\n{rows}\n}}}}\n', encoding="utf-8")
        written.replace(TABLE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
