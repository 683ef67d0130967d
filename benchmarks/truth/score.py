"""Hold the linter against the truth that ``make.py`` made.

    python benchmarks/truth/score.py --half {learn,scored} [REPOSITORY ...] [--misses FILE.md]

Each repository is linted by itself. A statement is *hot* if it waited in at least half of the measured steps of a run.
A finding is on a statement if their lines overlap; of a compound statement, its header counts.

    recall      hot statements with a finding: a warning (heat ``step`` or ``capture``), or also a note (``guarded``,
                ``epoch``), or at any heat (``--heat once``). Own code: the wait is made by the statement or by torch
                below it, not by another installed library.
    precision   of the findings on statements that ran at least 3 times, those whose statement waited at least once
                in some run

``--table`` counts, for each rule, heat and confidence, the findings on statements that ran, and how many of those
waited at least once and in half of the steps.

``--misses`` writes each hot statement of own code without a warning. There is none for the half ``scored``, whose lines
nobody reads: a linter that was improved on them would be scored by what it has learnt.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repositories import HALVES

ROOT = Path(__file__).resolve().parents[2]
WARNINGS = frozenset({"step", "capture"})
"""The heats of findings about waits that a plain `gpusync lint` shows as warnings."""
NOTES = WARNINGS | {"guarded", "epoch"}

Span = tuple[int, int]
"""First and last line of a statement."""
Statement = tuple[str, Span]
"""A file, as OWNER+NAME/PATH, and a statement of it."""


@dataclass
class Waited:
    """What the runs say of one statement."""

    syncs: int = 0
    hot: bool = False
    via: str | None = None
    """The library between the statement and the wait; None for a direct wait."""
    share: float = 0.0
    """The largest share of a run's measured steps in which it waited."""
    runs: list[str] = field(default_factory=list)


@dataclass
class Sort:
    """Findings of one rule, heat and confidence, on statements that ran."""

    ran: int = 0
    waited: int = 0
    hot: int = 0


@dataclass(frozen=True)
class Score:
    """The figures of some repositories."""

    runs: int
    repositories: int
    hot: list[Statement]
    own: list[Statement]
    heats: dict[Statement, set[str]]
    """Heats of the findings on each hot statement."""
    right: Counter[str]
    """Findings on statements that ran and waited, by heat."""
    wrong: list[tuple[Statement, dict[str, Any]]]
    """Findings on statements that ran and did not wait."""
    waited: dict[Statement, Waited]
    sorts: dict[tuple[str, str, str], Sort]
    """By rule, heat and confidence."""

    def recall(self, statements: list[Statement], accepted: frozenset[str] | None) -> float | None:
        """Return the share of statements with a finding of an accepted heat, of any heat for None."""
        if not statements:
            return None
        found = sum(bool(self.heats[each] if accepted is None else self.heats[each] & accepted) for each in statements)
        return found / len(statements)

    def precision(self, accepted: frozenset[str]) -> tuple[float | None, int]:
        """Return the share of right findings among those of an accepted heat, and their number."""
        right = sum(number for heat, number in self.right.items() if heat in accepted)
        total = right + sum(finding["heat"] in accepted for _, finding in self.wrong)
        return (right / total if total else None), total

    def lines(self) -> list[str]:
        """The figures as text."""
        rows = [f"{self.runs} runs of {self.repositories} repositories"]
        for name, statements in (("own code", self.own), ("with libraries", self.hot)):
            shares = [self.recall(statements, accepted) for accepted in (WARNINGS, NOTES, None)]
            texts = [
                f"{label} {_percent(share)}"
                for label, share in zip(("default", "with notes", "--heat once"), shares, strict=True)
            ]
            rows.append(
                f"recall, {name}: {len(statements)} statements that wait in half of the steps: {', '.join(texts)}"
            )
        for label, accepted in (("warnings", WARNINGS), ("warnings and notes", NOTES)):
            share, total = self.precision(accepted)
            rows.append(f"precision of {label}: {_percent(share)} of {total} findings on statements that ran")
        return rows

    def table(self) -> list[str]:
        """How often the findings of each sort wait, as text."""
        rows = ["rule    heat     confidence   ran  waited   in half of the steps"]
        for (code, heat, confidence), sort in sorted(self.sorts.items()):
            rows.append(f"{code:7} {heat:8} {confidence:10} {sort.ran:5} {sort.waited:7} {sort.hot:7}")
        return rows


def _percent(share: float | None) -> str:
    return "not measured" if share is None else f"{100 * share:.1f} %"


def spans(path: Path) -> dict[int, Span]:
    """Map each line of a file to the innermost statement that holds it; of a compound statement, to its header."""
    found: dict[int, Span] = {}
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return found
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        body = getattr(node, "body", None)
        is_compound = isinstance(body, list) and body and isinstance(body[0], ast.stmt)
        last = max(node.lineno, body[0].lineno - 1) if is_compound else (node.end_lineno or node.lineno)
        for line in range(node.lineno, last + 1):
            known = found.get(line)
            if known is None or last - node.lineno < known[1] - known[0]:
                found[line] = (node.lineno, last)
    return found


class Sources:
    """The statements of files below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._spans: dict[str, dict[int, Span]] = {}

    def statement(self, file: str, line: int) -> Statement:
        if file not in self._spans:
            self._spans[file] = spans(self.folder / file)
        return file, self._spans[file].get(line, (line, line))

    def text(self, statement: Statement) -> str:
        lines = (self.folder / statement[0]).read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[statement[1][0] - 1].strip() if statement[1][0] <= len(lines) else ""


def lint(folder: Path) -> list[dict[str, Any]]:
    """Return the findings in a repository, at every heat, with paths relative to it."""
    command = [sys.executable, "-m", "pytest_gpusync", "lint", "--no-cache", "--exit-zero", "--heat", "once"]
    done = subprocess.run(
        [*command, "--output-format", "json", "."],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "lint")])},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        findings = json.loads(done.stdout)["findings"]
    except (ValueError, KeyError):
        raise SystemExit(f"{folder}: the linter failed: {done.stderr.strip()[-300:]}") from None
    return [finding for finding in findings if not finding["suppressed"]]


def score(truths: list[dict[str, Any]], sources: Path, jobs: int = 2) -> Score:
    """Hold the linter against some runs."""
    files = Sources(sources)
    waited: defaultdict[Statement, Waited] = defaultdict(Waited)
    ran: Counter[Statement] = Counter()
    for truth in truths:
        for file, lines in truth["executed"].items():
            for line, times in lines.items():
                statement = files.statement(file, int(line))
                ran[statement] = max(ran[statement], times)
        for row in truth["waits"]:
            entry = waited[files.statement(row["file"], row["line"])]
            entry.syncs += row["syncs"]
            entry.via = entry.via or row["via"]
            entry.share = max(entry.share, row["steps"] / truth["steps"])
            if truth["steps"] >= 3 and row["steps"] >= truth["steps"] / 2:
                entry.hot = True
                entry.runs.append(truth["name"])
    repositories = sorted({truth["repo"] for truth in truths})
    heats: defaultdict[Statement, set[str]] = defaultdict(set)
    right: Counter[str] = Counter()
    wrong: list[tuple[Statement, dict[str, Any]]] = []
    sorts: defaultdict[tuple[str, str, str], Sort] = defaultdict(Sort)
    by_file: defaultdict[str, list[Statement]] = defaultdict(list)
    for statement in waited:
        by_file[statement[0]].append(statement)
    with ThreadPoolExecutor(jobs) as pool:
        for repository, findings in zip(
            repositories, pool.map(lambda name: lint(sources / name), repositories), strict=True
        ):
            for finding in findings:
                file = f"{repository}/{os.path.normpath(finding['path'])}"
                for statement in by_file[file]:
                    if finding["line"] <= statement[1][1] and finding["end_line"] >= statement[1][0]:
                        heats[statement].add(finding["heat"])
                statement = files.statement(file, finding["line"])
                if ran[statement] >= 3:
                    sort = sorts[finding["code"], finding["heat"], finding["confidence"]]
                    sort.ran += 1
                    sort.waited += statement in waited
                    sort.hot += statement in waited and waited[statement].hot
                    if statement in waited:
                        right[finding["heat"]] += 1
                    else:
                        wrong.append((statement, finding))
    hot = sorted(statement for statement, entry in waited.items() if entry.hot)
    own = [each for each in hot if not waited[each].via or str(waited[each].via).startswith("torch/")]
    return Score(len(truths), len(repositories), hot, own, heats, right, wrong, dict(waited), dict(sorts))


def misses(result: Score, sources: Path) -> list[str]:
    """Each hot statement of own code without a warning, and each warning that the runs contradict, as Markdown."""
    files = Sources(sources)
    cool = [each for each in result.own if not result.heats[each] & WARNINGS]
    rows = ["# Statements that wait in at least half of the steps and have no warning", ""]
    rows += result.lines()
    for title, chosen in (
        ("No finding", [each for each in cool if not result.heats[each]]),
        ("Judged too rare", [each for each in cool if result.heats[each]]),
    ):
        rows += ["", f"## {title}: {len(chosen)}", ""]
        repository = ""
        for each in chosen:
            name, path = each[0].split("/", 1)
            if name != repository:
                repository = name
                rows += ["", f"### {name}", ""]
            entry = result.waited[each]
            told = ", ".join(sorted(result.heats[each])) or "none"
            via = f"; via {entry.via}" if entry.via else ""
            rows.append(f"- {path}:{each[1][0]} `{files.text(each)}`")
            runs = ", ".join(sorted(set(entry.runs)))
            rows.append(f"  in {_percent(entry.share)} of the steps of {runs}; finding: {told}{via}")
    warned = [entry for entry in result.wrong if entry[1]["heat"] in WARNINGS]
    rows += ["", f"## Warnings on statements that ran and never waited: {len(warned)}", ""]
    for statement, finding in warned:
        rows.append(f"- {statement[0]}:{statement[1][0]} `{files.text(statement)}`")
        rows.append(f"  {finding['code']} {finding['confidence']}: {finding['message']}")
    return rows


def read_truths(runs: Path, half: str, repositories: list[str]) -> list[dict[str, Any]]:
    """Return the runs of a half, of all its repositories or of some."""
    folders = {name.replace("/", "+") for name in repositories}
    truths = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((runs / half).glob("*.json"))]
    return [truth for truth in truths if not folders or truth["repo"] in folders]


def main() -> int:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpusync-truth"
    parser = argparse.ArgumentParser(
        prog="score.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repositories", nargs="*", metavar="OWNER/NAME", help="only these repositories")
    parser.add_argument("--half", choices=HALVES, required=True)
    parser.add_argument("--folder", type=Path, default=cache, help=f"the folder of make.py (default: {cache})")
    parser.add_argument("--sources", type=Path, help="repositories at their commits (default: FOLDER/sources)")
    parser.add_argument("--runs", type=Path, help="results of make.py (default: FOLDER/runs)")
    parser.add_argument(
        "--misses", type=Path, metavar="FILE.md", help="write what has no warning; only of --half learn"
    )
    parser.add_argument("--table", action="store_true", help="count the findings by rule, heat and confidence")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="repositories linted at the same time (2)")
    options = parser.parse_args()
    if options.misses and options.half != "learn":
        parser.error("--misses: what is missed in the scored half is not read; use --half learn")
    sources = options.sources or options.folder / "sources"
    truths = read_truths(options.runs or options.folder / "runs", options.half, options.repositories)
    if not truths:
        parser.error(f"no runs of the half {options.half} are there; make them with make.py first")
    result = score(truths, sources, options.jobs)
    print("\n".join(result.lines()))
    if options.table:
        print("\n".join(result.table()))
    if options.misses:
        options.misses.write_text("\n".join(misses(result, sources)) + "\n", encoding="utf-8")
        print(f"wrote {options.misses}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
