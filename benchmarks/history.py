"""How sound a history is: 60 commits of a made project, with planted changes, are measured and drawn.

The project is a git repository in a temporary folder. Its training steps are written from a seed: at some commits a
line that waits is added, removed, or waits more or less often; at others lines move, the text of a line is edited, a
test is not run, or a count varies at random. Every commit is measured for real on the simulated device. Then
`gpusync report history` has to name exactly the planted changes, each at its commit, and `gpusync report diff` those
from each commit to the next.

    python benchmarks/history.py [--seeds 3] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import linecache
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

COMMITS = 60
TESTS = ("encoder", "decoder", "loader", "sampler", "ranker", "tagger")
SLOTS = 5
STEPS = 23
"""With the step of warm-up; rates are over the others."""

RATES = ("absent", "tenth", "one", "two", "three")
"""How often a line waits: never, in every tenth step, and so often in every step."""


@dataclass
class Planted:
    """A change of how often a line waits."""

    commit: int
    test: str
    slot: int
    before: str
    after: str


@dataclass
class Project:
    """What the project's training steps do at a commit."""

    rates: dict[tuple[str, int], str]
    texts: dict[tuple[str, int], int]
    """How often the text of a line was edited."""
    moved: dict[str, int]
    """Lines that were put above a step."""
    varying: dict[str, int]
    """Syncs of the lines whose count varies at random."""
    skipped: set[str] = field(default_factory=set)
    """Tests that are not run at this commit."""
    subject: str = "Begin"


def planned(seed: int) -> tuple[list[Project], list[Planted]]:
    """Return the project at each commit, and the changes that a history has to name."""
    chance = random.Random(seed)
    slots = [(test, slot) for test in TESTS for slot in range(SLOTS)]
    rates = {slot: chance.choice(("absent", "one", "tenth", "one")) for slot in slots}
    texts, moved = dict.fromkeys(slots, 0), dict.fromkeys(TESTS, 0)
    at = {commit: _kinds(chance) for commit in range(1, COMMITS)}
    changed: dict[tuple[str, int], int] = {}
    restore: dict[int, tuple[tuple[str, int], str]] = {}
    projects, planted = [], []
    for commit in range(COMMITS):
        subjects = []
        busy: set[str] = set()
        if commit in restore:
            slot, rate = restore[commit]
            planted.append(Planted(commit, *slot, rates[slot], rate))
            rates[slot] = rate
            busy.add(slot[0])
            subjects.append(f"Revert: {slot[0]} {slot[1]} is {rate} again")
        for kind in at.get(commit, ()):
            # A line has to be on its level for some commits before it changes, and a function changes in one way.
            free = [slot for slot in slots if changed.get(slot, -9) < commit - 8 and slot[0] not in busy]
            free = [slot for slot in free if not any(held == slot for held, _ in restore.values())]
            if not free:
                continue
            slot = chance.choice(free)
            busy.add(slot[0])
            if kind in ("change", "short"):
                after = chance.choice([rate for rate in RATES if rate != rates[slot]])
                planted.append(Planted(commit, *slot, rates[slot], after))
                changed[slot] = commit
                end = commit + chance.choice((1, 2, 3))
                if kind == "short" and end < COMMITS - 1:
                    restore[end] = (slot, rates[slot])
                    changed[slot] = end + 12
                rates[slot] = after
                subjects.append(f"{slot[0]} {slot[1]} is {after}")
            elif kind == "edit":
                texts[slot] += 1
                subjects.append(f"Edit a line of {slot[0]}")
            else:
                moved[slot[0]] += chance.randrange(1, 4)
                subjects.append(f"Comment on {slot[0]}")
        varying = {test: chance.randrange(4) for test in TESTS[:2]}
        skipped = {test for test in TESTS if chance.random() < 0.05}
        skipped -= {one.test for one in planted if one.commit == commit}
        skipped -= busy
        subject = "; ".join(subjects) or "Change nothing"
        projects.append(Project(dict(rates), dict(texts), dict(moved), varying, skipped, subject))
    return projects, planted


def _kinds(chance: random.Random) -> list[str]:
    odds = {"change": 0.3, "short": 0.06, "edit": 0.2, "move": 0.5}
    return [kind for kind, probability in odds.items() if chance.random() < probability]


def source(test: str, project: Project) -> str:
    """Return the module of a test's training step."""
    lines = ["import torch", "", "", *["# A comment."] * project.moved[test]]
    lines += ["def step(number, batch, seen):", "    loss = (batch * batch).sum()"]
    for slot in range(SLOTS):
        rate = project.rates[test, slot]
        read = f"seen[{slot}] = loss.item(){' + 0' * project.texts[test, slot]}"
        if rate == "tenth":
            lines += ["    if number % 10 == 1:", f"        {read}"]
        elif rate != "absent":
            lines += [f"    for _ in range({RATES.index(rate) - 1}):", f"        {read}"]
    if test in project.varying:
        lines += [f"    for _ in range({project.varying[test]}):", "        seen[-1] = batch.sum().item()"]
    return "\n".join([*lines, ""])


def measure(folder: Path, project: Project, out: Path) -> None:
    """Write the run file of a commit: its steps on the simulated device."""
    import torch

    from pytest_gpusync import record, simulated_cuda
    from pytest_gpusync.reporting.run_file import region_document, run_document, to_text

    regions = []
    linecache.checkcache()
    with simulated_cuda():
        parameter = torch.nn.Parameter(torch.ones(2, device="cuda"))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        parameter.grad = torch.zeros_like(parameter)
        batch = torch.ones(3, device="cuda")
        for test in TESTS:
            if test in project.skipped:
                continue
            path = folder / f"{test}.py"
            namespace: dict[str, object] = {}
            exec(compile(path.read_text(), str(path), "exec"), namespace)
            seen: dict[int, float] = {}
            with record(f"test_{test}.py::test_step", warmup=1) as region:
                for number in range(STEPS):
                    namespace["step"](number, batch, seen)  # type: ignore[operator]
                    optimizer.step()
            measurement = region.result()
            regions.append(region_document(measurement))
            environment = measurement.environment
    out.write_text(to_text(run_document(environment, regions)))


def git(*arguments: str, **environment: str) -> None:
    """Run git in the working directory."""
    settings = ("user.name=Nobody", "user.email=nobody@example.com", "commit.gpgsign=false")
    named = [word for setting in settings for word in ("-c", setting)]
    subprocess.run(["git", *named, *arguments], check=True, capture_output=True, env={**os.environ, **environment})


def made(folder: Path, projects: list[Project]) -> None:
    """Make the repository, and the run files in a folder beside it."""
    (folder / "runs").mkdir()
    repository = folder / "project"
    repository.mkdir()
    os.chdir(repository)
    git("init", "-q", "-b", "main")
    for number, project in enumerate(projects):
        for test in TESTS:
            (repository / f"{test}.py").write_text(source(test, project))
        git("add", ".")
        date = f"2026-09-{1 + number // 2:02d}T{12 * (number % 2):02d}:00:00Z"
        git("commit", "-q", "--allow-empty", "-m", project.subject, GIT_COMMITTER_DATE=date, GIT_AUTHOR_DATE=date)
        measure(repository, project, folder / "runs" / _name(number))


def _name(number: int) -> str:
    """Return the name of a commit's run file. The order of the names is not that of the commits."""
    return f"{(number * 37) % 101:03d}.json"


def found_in(document: dict) -> set[tuple[int, str, str, bool]]:
    """Return the changes of sites in a history: commit, test, line as written, and whether it is more."""
    found = set()
    for change in document["changes"]:
        for number in change["series"]:
            series = document["series"][number]
            if series["site"] is None:
                continue
            test, read = series["test"], series["site"]["source"].partition(" + 0")[0]
            up = change["direction"] == "more"
            found.add((change["moment"], test, read, up))
            if change["end"] is not None:
                found.add((change["end"], test, read, not up))
    return found


def expected(planted: list[Planted]) -> set[tuple[int, str, str, bool]]:
    """Return the changes that have to be named."""
    found = set()
    for one in planted:
        is_more = RATES.index(one.after) > RATES.index(one.before)
        found.add((one.commit, f"test_{one.test}.py::test_step", f"seen[{one.slot}] = loss.item()", is_more))
    return found


def compared(folder: Path, projects: list[Project]) -> dict[str, int]:
    """Compare each commit with the one before it, and return how many of the planted differences were told."""
    from pytest_gpusync.commands.report import main as report

    files = [str(folder / "runs" / _name(number)) for number in range(COMMITS)]
    counts = {"pairs": 0, "planted": 0, "found": 0, "invented": 0}
    for number, (before, after) in enumerate(pairwise(projects)):
        wanted = set()
        for (test, slot), rate in after.rates.items():
            earlier = before.rates[test, slot]
            if rate != earlier and test not in before.skipped | after.skipped:
                is_more = RATES.index(rate) > RATES.index(earlier)
                wanted.add((f"test_{test}.py::test_step", f"seen[{slot}] = loss.item()", is_more))
        out = str(folder / "diff.json")
        report(["diff", files[number], files[number + 1], "-o", out])
        sites = json.loads(Path(out).read_text())["sites"]
        found = {
            (test, site["source"].partition(" + 0")[0], site["state"] in ("new", "more"))
            for site in sites
            for test in site["tests"]
            if site["state"] != "edited" and not site["source"].startswith("seen[-1]")  # which varies
        }
        counts["pairs"] += 1
        counts["planted"] += len(wanted)
        counts["found"] += len(found & wanted)
        counts["invented"] += len(found - wanted)
    return counts


def main() -> int:
    """Measure, compare with what was planted, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="how many projects")
    parser.add_argument("--keep", type=Path, help="a folder for the page and the run files of the first project")
    options = parser.parse_args()
    keep = options.keep and options.keep.resolve()
    results = []
    for seed in range(options.seeds):
        projects, planted = planned(seed)
        with contextlib.ExitStack() as stack:
            folder = keep if keep and seed == 0 else Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder.mkdir(parents=True, exist_ok=True)
            made(folder, projects)
            results.append({"seed": seed, **result(folder, planted), "diff": compared(folder, projects)})
            os.chdir("/")
        print(json.dumps(results[-1]))
    exact = {"missed": [], "invented": []}
    return int(any({key: one[key] for key in exact} != exact or one["diff"]["invented"] for one in results))


def result(folder: Path, planted: list[Planted]) -> dict[str, object]:
    """Draw the history of a project, and compare it with what was planted."""
    from pytest_gpusync.commands.report import main as report

    runs = str(folder / "runs")
    began = time.perf_counter()
    if report(["history", runs, "-o", str(folder / "history.html")]):
        sys.exit("no page")
    seconds = time.perf_counter() - began
    report(["history", runs, "-o", str(folder / "history.json")])
    found = found_in(json.loads((folder / "history.json").read_text()))
    wanted = expected(planted)
    return {
        "commits": COMMITS,
        "planted": len(wanted),
        "found": len(found & wanted),
        "missed": sorted(map(list, wanted - found)),
        "invented": sorted(map(list, found - wanted)),
        "page_seconds": round(seconds, 2),
        "page_bytes": (folder / "history.html").stat().st_size,
    }


if __name__ == "__main__":
    sys.exit(main())
