"""Hold the simulated device against a GPU, on the programs on which the linter is held against the simulated device.

    python benchmarks/programs_on_gpu.py run --device {cuda,simulated} --json OUT [--every N]
    python benchmarks/programs_on_gpu.py compare GPU.json SIMULATED.json [--json OUT]

`run` counts the syncs of each program: those of `tests/simulated/agreement_programs.py` and `agreement_idioms.py`, and
those of every N-th operator that takes a number (`number_operators.py`). The set-up runs once, the statements three
times, and the third turn is counted. An error on the GPU may end all work of its process, so another process goes on
after the program that caused it. `compare` wants two runs of the same programs with the same version of torch; it ends
with status 1 if the host waits on one device only, or if a program was not measured.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import textwrap
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests/simulated"))

_TURNS = 3
_ENDED = "the process ended"


def programs(every: int) -> list[Any]:
    """The programs, in an order that only the version of torch and `every` decide."""
    from agreement_idioms import IDIOMS, SHARED
    from agreement_programs import GROUPS, OBJECTS, SETUP
    from linter_agreement import Program
    from number_operators import all_programs

    chosen = [Program(statement, SETUP) for group in GROUPS.values() for statement in group.split("\n")[1:-1]]
    chosen += [Program(statement, f"{SETUP}{setup}\n") for setup, statement in OBJECTS.values()]
    chosen += [Program(statement, SHARED + setup) for setup, statement in IDIOMS]
    return chosen + all_programs(every)[0]


def count(program: Any, number: int) -> dict[str, Any]:
    """The syncs of one program by kind, or its error."""
    from linter_agreement import PRELUDE

    from pytest_gpusync import record

    code = compile(f"for step in range(1):\n{textwrap.indent(program.statement, '    ')}", "<program>", "exec")
    scope: dict[str, Any] = {}
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            exec(PRELUDE, scope)
            exec(program.setup, scope)
            for _ in range(_TURNS - 1):
                exec(code, scope)
            with record(f"program-{number}") as seen:
                exec(code, scope)
        result = seen.result()
    except Exception as error:
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:160]}
    if result.problem:
        return {"problem": result.problem}
    return {"syncs": dict(Counter(sync.kind for sync in result.all_syncs))}


def work(device: str, every: int, start: int) -> None:
    """Count the programs from one on, a line of JSON for each."""
    import torch

    from pytest_gpusync.simulated import simulated_cuda

    torch.set_num_threads(1)
    chosen = programs(every)
    with simulated_cuda() if device == "simulated" else contextlib.nullcontext():
        for number, program in enumerate(chosen[start:], start):
            row = {"number": number, "statement": program.statement, **count(program, number)}
            print(json.dumps(row), file=sys.__stdout__, flush=True)
            if any(name in row.get("error", "") for name in ("CUDA error", "AcceleratorError")):
                return


def run(device: str, every: int) -> dict[str, Any]:
    """Count all programs in processes of their own."""
    import torch

    total, rows = len(programs(every)), []
    own = [sys.executable, __file__, "work", "--device", device, "--every", str(every), "--start"]
    # The simulated device refuses to start where torch has found a GPU.
    environment = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if device == "simulated" else {})
    while len(rows) < total:
        done = subprocess.run([*own, str(len(rows))], stdout=subprocess.PIPE, text=True, check=False, env=environment)
        found = [json.loads(row) for row in done.stdout.splitlines() if row.startswith("{")]
        if not found and not rows:
            raise SystemExit("no program was run")
        rows += found or [{"number": len(rows), "problem": _ENDED}]
        print(f"{len(rows)} of {total} programs", file=sys.stderr, flush=True)
    return {"torch": torch.__version__, "device": device, "every": every, "programs": rows}


def compare(gpu: dict[str, Any], simulated: dict[str, Any]) -> dict[str, Any]:
    """The outcomes of the programs that both ran, and what they differ in."""
    if gpu["torch"].partition("+")[0] != simulated["torch"].partition("+")[0] or gpu["every"] != simulated["every"]:
        raise SystemExit("the runs are of other programs: another version of torch, or another --every")
    pairs = list(zip(gpu["programs"], simulated["programs"], strict=True))
    if any(
        one["statement"] != other["statement"] for one, other in pairs if "statement" in one and "statement" in other
    ):
        raise SystemExit("the runs are of other programs: make both with the same version of this project")
    outcomes: Counter[str] = Counter()
    differences = []
    for one, other in pairs:
        first, second = one.get("syncs"), other.get("syncs")
        if "problem" in one or "problem" in other:
            outcome = "not measured"
        elif first is None or second is None:
            refusing = "GPU" if first is None else "simulated device"
            outcome = "refused by both" if first is second else f"refused by the {refusing}"
        elif sum(first.values()) == sum(second.values()):
            outcome = "as many syncs"
        else:
            waiting = "GPU" if first else "simulated device"
            outcome = "another count" if first and second else f"waits on the {waiting} only"
        outcomes[outcome] += 1
        if outcome not in ("as many syncs", "refused by both"):
            row = {"statement": one.get("statement") or other.get("statement"), "outcome": outcome}
            reasons = [each.get("problem") or each.get("error") or "no syncs" for each in (one, other)]
            differences.append(row | {"gpu": first or reasons[0], "simulated": second or reasons[1]})
    return {"torch": gpu["torch"], "outcomes": dict(outcomes), "differences": differences}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "work"):
        each = commands.add_parser(name, help="count the syncs of the programs" if name == "run" else argparse.SUPPRESS)
        each.add_argument("--every", type=int, default=1, metavar="N", help="every N-th operator (1)")
        each.add_argument("--device", choices=("cuda", "simulated"), required=True)
    commands.choices["run"].add_argument("--json", type=Path, required=True)
    commands.choices["work"].add_argument("--start", type=int, default=0)
    both = commands.add_parser("compare", help="compare two runs")
    both.add_argument("gpu", type=Path)
    both.add_argument("simulated", type=Path)
    both.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.command == "work":
        work(options.device, options.every, options.start)
        return 0
    if options.command == "run":
        options.json.write_text(json.dumps(run(options.device, options.every)) + "\n")
        return 0
    result = compare(json.loads(options.gpu.read_text()), json.loads(options.simulated.read_text()))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"torch {result['torch']}:", ", ".join(f"{number} {name}" for name, number in result["outcomes"].items()))
    for row in result["differences"]:
        print(f"{row['outcome']}: {row['statement']!r}\n    GPU {row['gpu']}, simulated {row['simulated']}")
    return int(any("waits on" in name or name == "not measured" for name in result["outcomes"]))


if __name__ == "__main__":
    sys.exit(main())
