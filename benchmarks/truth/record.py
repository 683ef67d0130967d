"""Run one program on the simulated device and write where it waited, in the environment of the program.

    python record.py JOB.json

``make.py`` writes JOB.json and starts this with the interpreter of the run's environment. JOB.json has the keys of
:class:`Job`. The result is written to ``output``; a job that could not be started or measured writes none and ends with
status 1, its traceback on standard error.
"""

from __future__ import annotations

import collections
import json
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import CodeType, FrameType

    from pytest_gpusync.model.measurement import Measurement

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
"""Frames of their own up to Python 3.11. They are not executions of the line: the frame around them counts it."""

LEAST_EXECUTIONS = 3
"""Lines that ran less often say nothing about how often they wait; they are not written."""


class Stop(BaseException):
    """Raised in the program when it has made enough steps, or its time is up. Programs do not catch it."""


@dataclass(frozen=True)
class Job:
    """What to run, and how."""

    root: str
    """The copy of the repository that runs. Its files are the program's own code."""
    output: str
    script: str = ""
    """Path below ``root``. Either this, or ``module``, or ``code``."""
    module: str = ""
    code: str = ""
    """Python that uses the repository as a library."""
    args: list[str] = field(default_factory=list)
    folder: str = ""
    """Working directory below ``root``."""
    path: list[str] = field(default_factory=list)
    """Folders below ``root`` to import from."""
    before: str = ""
    """Python that runs first, for instance to stub a download."""
    data: list[str] = field(default_factory=list)
    """Data sets to make up: ``KIND:FOLDER`` with a kind of ``data.py``; the folder is below the working directory."""
    step: str = ""
    """``FILE:FUNCTION``: a step ends when this function of the repository returns or yields (FUNCTION is a qualified
    name). ``end_step()``: where ``code`` calls it. Empty: at ``optimizer.step()``."""
    steps: int = 24
    """Stop after so many steps."""
    limit: float = 240.0
    """Stop after so many seconds."""
    devices: int = 1
    """Simulated GPUs."""


class LineCounts:
    """How often each line below a folder runs, and where a function of it returns."""

    def __init__(self, root: str, step: str, on_step: Callable[[], None]) -> None:
        self._root = os.path.join(os.path.realpath(root), "")
        self._step_file, _, self._step_function = step.rpartition(":")
        self._on_step = on_step
        self._counts: dict[str, Counter[int]] = {}
        self._counts_by_filename: dict[str, Counter[int] | None] = {}

    def result(self) -> dict[str, dict[str, int]]:
        """Return executions by line, by path below the folder."""
        return {
            path: {str(line): times for line, times in sorted(counts.items()) if times >= LEAST_EXECUTIONS}
            for path, counts in sorted(self._counts.items())
        }

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count while the block runs, on all threads started in it."""
        stop = self._monitor() if sys.version_info >= (3, 12) else self._trace()
        try:
            yield
        finally:
            stop()

    def _counts_of(self, code: CodeType) -> Counter[int] | None:
        filename = code.co_filename
        if filename not in self._counts_by_filename:
            path = os.path.realpath(filename)
            own = not filename.startswith("<") and path.startswith(self._root)
            self._counts_by_filename[filename] = (
                self._counts.setdefault(os.path.relpath(path, self._root), Counter()) if own else None
            )
        return self._counts_by_filename[filename]

    def _ends_step(self, code: CodeType) -> bool:
        name = getattr(code, "co_qualname", code.co_name)
        return bool(self._step_function) and name == self._step_function and code.co_filename.endswith(self._step_file)

    def _trace(self) -> Callable[[], None]:
        def enter(frame: FrameType, _event: str, _argument: object) -> Any:
            code = frame.f_code
            counts = self._counts_of(code)
            if counts is None or code.co_name in _COMPREHENSIONS:
                return None
            ends_step = self._ends_step(code)
            last = 0

            def step(frame: FrameType, event: str, argument: object) -> Any:
                nonlocal last
                if event == "line" and frame.f_lineno != last:  # a loop within one line does not run the line again
                    last = frame.f_lineno
                    counts[last] += 1
                elif event == "return" and ends_step:
                    self._on_step()
                return step

            return step

        threading.settrace(enter)
        sys.settrace(enter)

        def stop() -> None:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

        return stop

    def _monitor(self) -> Callable[[], None]:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        tool = monitoring.PROFILER_ID
        monitoring.use_tool_id(tool, "truth")
        events = monitoring.events

        def line_ran(code: CodeType, line: int) -> object:
            counts = self._counts_of(code)
            if counts is None:
                return monitoring.DISABLE
            counts[line] += 1
            return None

        def returned(code: CodeType, _offset: int, _value: object) -> object:
            if not self._ends_step(code):
                return monitoring.DISABLE
            self._on_step()
            return None

        monitoring.register_callback(tool, events.LINE, line_ran)
        monitoring.register_callback(tool, events.PY_RETURN, returned)
        monitoring.register_callback(tool, events.PY_YIELD, returned)
        chosen = events.LINE | (events.PY_RETURN | events.PY_YIELD if self._step_function else 0)
        monitoring.set_events(tool, chosen)

        def stop() -> None:
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)

        return stop


def waits_by_line(measurement: Measurement, root: str) -> list[dict[str, Any]]:
    """Return for each line of the repository its syncs, the measured steps in which it made any, and through what.

    Syncs of other threads than the main one and autograd's are left out, as they do not hold the step up.
    """
    folder = os.path.join(os.path.realpath(root), "")
    syncs: Counter[tuple[str, int]] = Counter()
    steps: collections.defaultdict[tuple[str, int], set[int]] = collections.defaultdict(set)
    ways: collections.defaultdict[tuple[str, int], Counter[tuple[bool, str | None]]] = collections.defaultdict(Counter)
    for sync in measurement.all_syncs:
        path = os.path.realpath(sync.site.path)
        if sync.background or not path.startswith(folder):
            continue
        place = (os.path.relpath(path, folder), sync.site.line)
        syncs[place] += 1
        measured = sync.step is not None and sync.step >= measurement.warmup
        ways[place][measured, sync.site.via] += 1
        if measured and sync.step is not None:
            steps[place].add(sync.step)
    return [
        {
            "file": file,
            "line": line,
            "syncs": number,
            "steps": len(steps[file, line]),
            "via": _via(ways[file, line]),
        }
        for (file, line), number in sorted(syncs.items())
    ]


def _via(ways: Counter[tuple[bool, str | None]]) -> str | None:
    """Return through what a line waited: the most direct way, and among those the most frequent in measured steps."""

    def rank(way: tuple[bool, str | None]) -> tuple[bool, int, int]:
        measured, via = way
        indirectness = 0 if via is None else 1 if via.startswith("torch/") else 2
        return not measured, indirectness, -ways[way]

    return min(ways, key=rank)[1]


def run(job: Job) -> dict[str, Any]:
    """Run the program and return what is written to the job's output.

    Raises:
        RuntimeError: the program could not be measured.
    """
    root = os.path.realpath(job.root)
    os.chdir(os.path.join(root, job.folder))
    make_data(job.data)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from pytest_gpusync import record
    from pytest_gpusync.simulated import switch_on
    from pytest_gpusync.source import attribution

    # Programs change their working directory: sites keep absolute paths.
    attribution.display_path = os.path.realpath  # type: ignore[assignment]
    switch_on(job.devices)
    import stubs
    import torch

    # The modules of this folder would hide those of programs.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    stubs.no_workers()
    began = time.monotonic()
    made = 0

    def step_made() -> None:
        nonlocal made
        made += 1
        if job.step:
            region.mark_step(job.step)
        if made >= job.steps:
            raise Stop(f"{made} steps")

    def time_is_up(_signal: int, _frame: FrameType | None) -> None:
        raise Stop(f"{job.limit:g} s")

    counts = LineCounts(root, job.step, step_made)
    sys.path[:0] = [os.path.join(root, folder) for folder in job.path]
    if job.before:
        exec(compile(job.before, "<before>", "exec"), {"__name__": "before"})
    hook = None if job.step else OptimizerSteps(torch, step_made)
    signal.signal(signal.SIGALRM, time_is_up)
    with record(job.script or job.module or "code") as region:
        signal.setitimer(signal.ITIMER_REAL, job.limit)
        try:
            with counts.counting():
                ended = _outcome(job, root, step_made)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            if hook is not None:
                hook.remove()
    measurement = region.result()
    if measurement.problem is not None:
        raise RuntimeError(f"{measurement.problem} ({ended})")
    if not measurement.device_used:
        raise RuntimeError(f"the program did not use the device ({ended})")
    return {
        "ended": ended,
        "seconds": round(time.monotonic() - began, 1),
        "torch": torch.__version__,
        "steps": measurement.steps - measurement.warmup,
        "step_ends_at": measurement.step_source,
        "waits": waits_by_line(measurement, root),
        "races": [
            {"kind": race.kind, "message": race.message.replace(f"{root}{os.sep}", ""), "times": race.times}
            for race in measurement.races or ()
        ],
        "executed": counts.result(),
    }


class OptimizerSteps:
    """Counts the steps as they are counted in the region: several optimizers that take turns make one step."""

    def __init__(self, torch: Any, on_step: Callable[[], None]) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._stepped: set[int] = set()
        self._on_step = on_step
        self._handle = register_optimizer_step_post_hook(self._stepped_once)

    def _stepped_once(self, optimizer: object, _args: object, _kwargs: object) -> None:
        if id(optimizer) in self._stepped:
            self._stepped.clear()
            self._on_step()
        self._stepped.add(id(optimizer))

    def remove(self) -> None:
        self._handle.remove()


def _outcome(job: Job, root: str, end_step: Callable[[], None]) -> str:
    """Run the program; return how it ended."""
    sys.argv = [job.script or job.module or "code", *job.args]
    try:
        if job.script:
            path = os.path.join(root, job.script)
            sys.argv[0] = path
            sys.path.insert(0, os.path.dirname(path))
            runpy.run_path(path, run_name="__main__")
        elif job.module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(job.module, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.getcwd())
            exec(compile(job.code, "<code>", "exec"), {"__name__": "__main__", "end_step": end_step})
    except Stop as stop:
        return f"stopped after {stop}"
    except SystemExit as leave:
        return "finished" if leave.code in (None, 0) else f"exit status {leave.code}"
    except BaseException as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return "finished"


def make_data(wanted: list[str]) -> None:
    """Make up the data sets of a job in the working directory."""
    if not wanted:
        return
    import data

    for entry in wanted:
        kind, _, folder = entry.partition(":")
        data.MAKERS[kind](Path(folder or "."))
    del sys.modules["data"]


def job_of(entries: Mapping[str, Any]) -> Job:
    return Job(**entries)


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    job = job_of(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    try:
        result = run(job)
    except Exception:
        traceback.print_exc()
        return 1
    partial = Path(f"{job.output}.partial")
    partial.write_text(json.dumps(result), encoding="utf-8")
    partial.replace(job.output)
    # Threads and children of the program are not waited for.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
