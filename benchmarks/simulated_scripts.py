"""Compare the lines at which a script waits on a GPU with those at which it waits on the simulated device.

    python benchmarks/simulated_scripts.py count EXECUTED.json --device simulated --json RUN.json SCRIPT [ARG...]
    python benchmarks/simulated_scripts.py compare TRUTH.json NAME RUN.json EXECUTED.json

``count`` is ``gpusync trace`` with what follows EXECUTED.json, and counts besides how often each line of the program
ran. ``compare`` sets that beside script NAME of TRUTH.json, which holds for each script ``sync_lines`` (file, line and
syncs of the lines that made the host wait, as a CUPTI callback saw them) and ``executed`` (how often each line of each
file ran). Counts are compared per execution of the line, so that the two runs may differ in length; those of a line
that waited on the GPU in a few executions only, as at first use, in all. A line is

    equal        as many syncs per execution, or in all
    differs      another number, but the host waits in both
    only there   the host waits on the GPU alone
    only here    the host waits on the simulated device alone
    not reached  it did not run on the other side
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
"""Frames of their own up to Python 3.11: not executions of the line, which the frame around them counts."""
Lines = dict[tuple[str, int], int]
"""A number for each file and line."""


@dataclass(frozen=True)
class Side:
    """What a line did in one run."""

    syncs: int
    executed: int

    @property
    def rate(self) -> Fraction:
        return Fraction(self.syncs, self.executed) if self.executed else Fraction(0)

    def __str__(self) -> str:
        return f"{self.syncs:>6} in {self.executed:<5} {float(self.rate):>6.4g}" if self.executed else "not reached"


def count(output: Path, arguments: list[str]) -> int:
    """Run ``gpusync trace`` and write how often each line ran, by absolute path and line."""
    from pytest_gpusync.commands.trace import main as trace

    elsewhere = tuple({sys.prefix, *sysconfig.get_paths().values(), str(Path(__file__).parents[1])})
    executed: defaultdict[str, Counter[int]] = defaultdict(Counter)
    own: dict[str, str | None] = {}

    def own_path(name: str) -> str | None:
        path = os.path.abspath(name)
        return None if name.startswith("<") or path.startswith(elsewhere) else path

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if name not in own:
            own[name] = own_path(name)
        path = own[name]
        if path is None or frame.f_code.co_name in _COMPREHENSIONS:
            return None
        lines = executed[path]
        last = 0

        def step(frame: FrameType, event: str, argument: object) -> Any:
            # A loop within one line goes on, it does not run the line again.
            nonlocal last
            if event == "line" and frame.f_lineno != last:
                last = frame.f_lineno
                lines[last] += 1
            return step

        return step

    sys.settrace(enter)
    try:
        status = trace(arguments)
    finally:
        sys.settrace(None)
    output.write_text(json.dumps(executed, indent=1), encoding="utf-8")
    return status


def compare(truth: dict[str, Any], run: dict[str, Any], executed: dict[str, dict[str, int]]) -> list[tuple[str, ...]]:
    """The rows of the table, headline first."""
    there: Lines = {(row["file"], row["line"]): row["syncs"] for row in truth["sync_lines"]}
    here: Counter[tuple[str, int]] = Counter()
    files = list(truth["executed"])
    for site in run["regions"][0]["sites"]:
        # A pageable copy waits without any call that synchronizes: the GPU's count has none.
        if site["kind"] != "pageable":
            here[_known_as(site["path"], files), site["line"]] += site["syncs"]
    ran: Lines = {
        (_known_as(path, files), int(line)): times for path, lines in executed.items() for line, times in lines.items()
    }
    seldom = {(row["file"], row["line"]): 4 * row["execs"] <= row["executed"] for row in truth["sync_lines"]}
    details = {(row["file"], row["line"]): _detail(row) for row in truth["sync_lines"]}
    rows: list[tuple[str, ...]] = [("line", "GPU: syncs in executions, each", "simulated", "", "")]
    for file, line in sorted({*there, *here}):
        place = (file, line)
        gpu = Side(there.get(place, 0), truth["executed"].get(file, {}).get(str(line), 0))
        simulated = Side(here[place], ran.get(place, 0))
        outcome = _outcome(gpu, simulated, seldom.get(place, False))
        detail = details[place] if outcome == "only there" else ""
        rows.append((f"{file}:{line}", str(gpu), str(simulated), outcome, detail))
    return rows


def _detail(row: dict[str, Any]) -> str:
    """How the host waited, and how seldom."""
    return f"{', '.join(row['kinds'])} in {row['execs']} of {row['executed']} executions"


def _known_as(path: str, files: list[str]) -> str:
    """The name that the truth has for a file: one ends with the other."""
    parts = PurePath(path).parts
    for file in files:
        known = PurePath(file).parts
        length = min(len(parts), len(known))
        if parts[-length:] == known[-length:]:
            return file
    return path


def _outcome(gpu: Side, simulated: Side, seldom: bool) -> str:
    if not (gpu.executed and simulated.executed):
        return "not reached"
    if gpu.rate == simulated.rate or (seldom and gpu.syncs == simulated.syncs):
        return "equal"
    if not simulated.syncs:
        return "only there"
    return "differs" if gpu.syncs else "only here"


def _print(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    tally = Counter(row[-2] for row in rows[1:])
    print(", ".join(f"{outcome} {number}" for outcome, number in sorted(tally.items())))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    counting = commands.add_parser("count", help="gpusync trace that counts how often each line runs")
    counting.add_argument("executed", type=Path, metavar="EXECUTED.json")
    counting.add_argument("trace", nargs=argparse.REMAINDER, help="arguments of gpusync trace")
    comparing = commands.add_parser("compare", help="set a run beside what a GPU did")
    comparing.add_argument("truth", type=Path, metavar="TRUTH.json")
    comparing.add_argument("name")
    comparing.add_argument("run", type=Path, metavar="RUN.json")
    comparing.add_argument("executed", type=Path, metavar="EXECUTED.json")
    options = parser.parse_args()
    if options.command == "count":
        return count(options.executed.absolute(), options.trace)
    scripts = json.loads(options.truth.read_text(encoding="utf-8"))["scripts"]
    if options.name not in scripts:
        parser.error(f"{options.truth} has no script {options.name!r}; it has {', '.join(scripts)}")
    run = json.loads(options.run.read_text(encoding="utf-8"))
    print(f"{options.name}: GPU beside torch {run['environment']['torch']}, simulated")
    _print(compare(scripts[options.name], run, json.loads(options.executed.read_text(encoding="utf-8"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
