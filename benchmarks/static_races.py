"""Missing waits: what the linter reports for small programs that were run on a GPU behind a busy queue.

    python benchmarks/static_races.py TRUTH.json [--only NAME] [--simulated RACES.json] [--json OUT.json]

TRUTH.json is that of `simulated_races.py`, which runs the same programs. A row is right if the linter reports a race
(GS706 to GS709, GS806) and it raced, or reports none and it did not. With ``--simulated``, the file that
`simulated_races.py --json` wrote, the reported line must be one of the two lines that the simulated device names.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.model.levels import Confidence
from gpusync_lint.run import engine

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, str(Path(__file__).parent))
from simulated_races import source

CODES = ("GS706", "GS707", "GS708", "GS709", "GS806")


def rows(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """The programs, each with whether it raced on any rank."""
    for row in document["rows"]:
        yield row, row["raced"] > 0
    for row in document.get("two_gpus", {}).get("rows", []):
        yield row, any(row["raced"])


def found(text: str) -> list[tuple[str, int, str]]:
    """The races that the linter reports in a program: code, line, and message."""
    findings = engine.analyze([Source("row.py", text)], EngineSettings()).findings
    return [
        (one.code, one.span.line, one.message)
        for one in findings
        if one.code in CODES and one.confidence is not Confidence.LOW
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("truth", type=Path, help="the programs, and what they did on a GPU")
    parser.add_argument("--only", metavar="NAME", help="lint only the rows whose names contain this")
    parser.add_argument("--simulated", type=Path, help="what `simulated_races.py --json` wrote")
    parser.add_argument("--json", type=Path, help="write what was reported to this file")
    options = parser.parse_args()
    document = json.loads(options.truth.read_text(encoding="utf-8"))
    seen = json.loads(options.simulated.read_text(encoding="utf-8")) if options.simulated else {}
    results: dict[str, Any] = {}
    right = {True: 0, False: 0}
    total = {True: 0, False: 0}
    for row, raced in rows(document):
        if options.only and options.only not in row["name"]:
            continue
        text = source(row)
        lines = text.splitlines()
        reported = found(text)
        races = [race for key, one in seen.items() if key.partition(" (")[0] == row["name"] for race in one["races"]]
        named = {race[side] for race in races for side in ("later", "earlier")}
        misplaced = [line for _, line, _ in reported if named and lines[line - 1].strip() not in named]
        agrees = bool(reported) == raced and not misplaced
        total[raced] += 1
        right[raced] += agrees
        print(f"{'same     ' if agrees else 'DIFFERENT'} {row['name']}: raced {row['raced']}")
        for code, line, message in reported:
            print(f"    {line}: {code} {message}\n      {lines[line - 1].strip()}")
        results[row["name"]] = {"raced": raced, "reported": [[code, line] for code, line, _ in reported]}
    print(f"{right[True]} of {total[True]} races reported, {right[False]} of {total[False]} ordered programs silent")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
