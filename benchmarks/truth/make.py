"""Make truth without a GPU: run public programs on the simulated device, and write where each waited.

    python benchmarks/truth/make.py [RUN|OWNER/NAME ...] [--half {learn,scored}] [--jobs N] [--again] [--list]

``repositories.toml`` lists the repositories and how each is started. Each is cloned at its commit and copied. The copy
runs in an environment of its own under ``record.py``, for a few training steps, with data that is made up. A run writes
``FOLDER/runs/HALF/NAME.json``:

    {"name", "address", "repo": "OWNER+NAME", "commit", "half", "ended", "torch",
     "steps": measured steps,
     "waits": [{"file": "OWNER+NAME/PATH", "line", "syncs", "steps": in how many it waited, "via"}],
     "races": [{"kind", "message", "times"}],
     "executed": {"OWNER+NAME/PATH": {LINE: times, at least 3}}}

Runs whose file is there are not made again, so an interrupted command goes on where it stopped. A run that fails is
reported with the last line of its log, ``FOLDER/logs/NAME.log``, and the others go on.

A repository belongs to one of two halves, by a hash of its name. The linter may be improved by what is found in the
half ``learn``. The half ``scored`` only gives figures: nobody reads which of its lines are missed.

exit status: 0 all runs were made or there; 1 some failed; 2 wrong usage or list.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import venv
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkout import CheckoutError, check_out
from record import Job
from repositories import HALVES, LIST, ListError, Run, load

ROOT = Path(__file__).resolve().parents[2]
LEAST_STEPS = 3
"""A run with fewer measured steps says nothing about half of them."""
_GRACE = 240.0
"""Seconds beyond its limit in which a run may start and write its result, before it is killed."""

_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "disabled",
    "MPLBACKEND": "Agg",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # compiled code has no lines of its own
    "PYTHONDONTWRITEBYTECODE": "1",
}


class RunError(RuntimeError):
    """A run made no truth; the message is one line."""


@dataclass(frozen=True)
class Folders:
    """Where everything is kept."""

    sources: Path
    clones: Path
    environments: Path
    runs: Path
    logs: Path


class Environments:
    """Virtual environments, made when a run first needs them."""

    def __init__(self, folder: Path, requirements: dict[str, list[str]]) -> None:
        self._folder = folder
        self._requirements = requirements
        self._lock = threading.Lock()

    def python(self, name: str) -> Path:
        """Return the interpreter of an environment."""
        with self._lock:
            folder = self._folder / name
            python = folder / "bin" / "python"
            stamp = folder / ".requirements.txt"
            wanted = "\n".join(self._requirements[name]) + "\n"
            if not stamp.is_file() or stamp.read_text() != wanted:
                print(f"making the environment {folder}", flush=True)
                if not python.exists():
                    venv.create(folder, with_pip=True, symlinks=True)
                listed = folder / ".wanted.txt"
                listed.write_text(wanted)
                done = subprocess.run(
                    [python, "-m", "pip", "install", "--quiet", "-r", listed],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    raise RunError(f"environment {name}: {_last_line(done.stderr)}")
                listed.replace(stamp)
            return python


def make(run: Run, folders: Folders, environments: Environments) -> dict[str, Any]:
    """Make the truth of one run, and write it.

    Raises:
        RunError: the program failed, or made too few steps.
        CheckoutError: the repository cannot be had.
    """
    python = environments.python(run.repository.environment)
    source = check_out(run.repository, folders.sources, folders.clones)
    log = folders.logs / f"{run.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="truth-") as scratch:
        root = Path(scratch) / run.repository.folder
        shutil.copytree(source, root)
        output = Path(scratch) / "result.json"
        job = Path(scratch) / "job.json"
        job.write_text(json.dumps({"root": str(root), "output": str(output), **run.job}))
        paths = [str(ROOT), str(ROOT / "lint"), *(str(root / folder) for folder in run.job.get("path", ()))]
        environment = {
            **os.environ,
            **_QUIET,
            "HF_HOME": str(Path(scratch) / "huggingface"),
            "HOME": scratch,
            "PYTHONPATH": os.pathsep.join(paths),
            **run.env,
        }
        limit = float(run.job.get("limit", Job.limit)) + _GRACE
        with log.open("w", encoding="utf-8") as stream:
            status = _in_a_group(
                [str(python), str(Path(__file__).with_name("record.py")), str(job)], environment, stream, limit
            )
        if not output.is_file():
            raise RunError(f"{status}: {_last_line(log.read_text(errors='replace'))}")
        result = json.loads(output.read_text())
    if result["steps"] < LEAST_STEPS:
        raise RunError(f"only {result['steps']} measured steps ({result['ended']})")
    if not result["executed"]:
        raise RunError("no line of the repository ran three times")
    truth = _truth(run, result)
    target = folders.runs / run.repository.half / f"{run.name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(truth, indent=1) + "\n", encoding="utf-8")
    partial.replace(target)
    return truth


def _truth(run: Run, result: dict[str, Any]) -> dict[str, Any]:
    repository = run.repository
    waits = [{**row, "file": f"{repository.folder}/{row['file']}"} for row in result.pop("waits")]
    executed = {f"{repository.folder}/{path}": lines for path, lines in result.pop("executed").items() if lines}
    return {
        "name": run.name,
        "address": repository.url,
        "repo": repository.folder,
        "commit": repository.commit,
        "half": repository.half,
        "kinds": repository.kinds,
        **result,
        "waits": waits,
        "executed": executed,
    }


_running: set[int] = set()
"""Process groups of the runs in progress."""


def _end_groups() -> None:
    """Kill the runs in progress, with their children."""
    for group in list(_running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _in_a_group(command: list[str], environment: dict[str, str], log: Any, limit: float) -> str:
    """Run a command with its children; kill all of them when it has ended or its time is up. Return how it ended."""
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    ) as process:
        _running.add(process.pid)
        try:
            status = f"exit status {process.wait(limit)}"
        except subprocess.TimeoutExpired:
            status = f"killed after {limit:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            _running.discard(process.pid)
    return status


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "it printed nothing"


def _parser() -> argparse.ArgumentParser:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpusync-truth"
    parser = argparse.ArgumentParser(
        prog="make.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="RUN|OWNER/NAME", help="only these runs or repositories")
    parser.add_argument("--half", choices=HALVES, help="only the runs of one half")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at the same time (default: 1)")
    parser.add_argument("--again", action="store_true", help="make runs again whose file is there")
    parser.add_argument("--list", action="store_true", help="list the runs, their halves and whether they are made")
    parser.add_argument("--folder", type=Path, default=cache, help=f"where everything is kept (default: {cache})")
    parser.add_argument("--sources", type=Path, help="repositories at their commits (default: FOLDER/sources)")
    parser.add_argument("--clones", type=Path, help="clones, named OWNER+NAME (default: FOLDER/clones)")
    parser.add_argument("--environments", type=Path, help="virtual environments (default: FOLDER/environments)")
    parser.add_argument("--runs", type=Path, help="where the results are written (default: FOLDER/runs)")
    parser.add_argument("--repositories", type=Path, default=LIST, metavar="FILE", help="another list of repositories")
    return parser


def _folders(options: argparse.Namespace) -> Folders:
    def at(chosen: Path | None, name: str) -> Path:
        return (chosen or options.folder / name).absolute()

    return Folders(
        at(options.sources, "sources"),
        at(options.clones, "clones"),
        at(options.environments, "environments"),
        at(options.runs, "runs"),
        at(None, "logs"),
    )


def _chosen(runs: tuple[Run, ...], names: list[str], half: str | None) -> list[Run]:
    known = {run.name for run in runs} | {run.repository.name for run in runs}
    for name in names:
        if name not in known:
            raise ListError(f"{name}: no such run or repository; --list shows them")
    return [
        run
        for run in runs
        if (not names or run.name in names or run.repository.name in names) and half in (None, run.repository.half)
    ]


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error("--jobs takes a number of at least 1")
    try:
        listed = load(options.repositories)
        runs = _chosen(listed.runs, options.names, options.half)
    except ListError as error:
        parser.error(str(error))
    folders = _folders(options)

    def is_made(run: Run) -> bool:
        return (folders.runs / run.repository.half / f"{run.name}.json").is_file()

    if options.list:
        for run in runs:
            made = "made" if is_made(run) else "-"
            kinds = ", ".join(run.repository.kinds)
            print(f"{run.name:34} {run.repository.half:6} {made:4} {run.repository.name}  {kinds}")
        return 0
    wanted = runs if options.again else [run for run in runs if not is_made(run)]
    if len(wanted) < len(runs):
        print(f"{len(runs) - len(wanted)} of {len(runs)} runs are there; --again makes them anew")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    environments = Environments(folders.environments, listed.requirements)
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        begun = {pool.submit(make, run, folders, environments): run for run in wanted}
        try:
            for number, future in enumerate(as_completed(begun), 1):
                run = begun[future]
                try:
                    truth = future.result()
                    # Only the number of lines is told: the lines of the scored half are not to be read.
                    lines = len(truth["waits"])
                    told = f"{truth['steps']} steps, {lines} lines waited, {truth['ended']}, {truth['seconds']} s"
                except (RunError, CheckoutError, OSError) as error:
                    failed += 1
                    told = f"FAILED {error}"
                print(f"[{number}/{len(wanted)}] {run.name} ({run.repository.half}): {told}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            _end_groups()
            print("interrupted; the runs that are made are kept", file=sys.stderr)
            return 130
    if failed:
        print(f"{failed} of {len(wanted)} runs failed; see {folders.logs}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
