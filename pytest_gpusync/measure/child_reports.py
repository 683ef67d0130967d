"""What the processes that a region starts report to it.

While a region asks for reports, the environment of new Python processes names a folder, and puts the ``sitecustomize``
of :mod:`pytest_gpusync.startup` in front of their path. A process started by ``multiprocessing`` (spawn and forkserver)
finds the folder in its preparation data, a forked one inherits it. A process that uses the device writes there at once
what it does, one JSON object a line, so nothing is lost if it is killed. Its times are those of the system's monotonic
clock, which all processes share. The region reads what lies within its own time, so a process that was started before,
such as an engine, reports to it as well.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
import threading
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.machine.child_environment import PATH, REPORTS, STARTUP
from pytest_gpusync.measure import step_boundaries
from pytest_gpusync.model.measurement import Measurement, Race, Site, Sync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pytest_gpusync.model.measurement import Environment

_CONTEXT: Final = re.compile(r" rw-s .*/dev/nvidia-uvm$")


@dataclass
class _Process:
    """What one process has reported so far."""

    file: Path
    pid: int = 0
    name: str = "process"
    used_ns: int | None = None
    """When it first used the device."""
    unseen: str | None = None
    """Why its syncs cannot be counted."""
    syncs: list[dict[str, Any]] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    """Time and optimizer of each ``optimizer.step()``."""
    races: list[Race] = field(default_factory=list)
    raced: list[tuple[int, int]] = field(default_factory=list)
    """When a race happened, and its place in ``races``."""
    stepping: set[tuple[int, str]] = field(default_factory=set)
    """The threads that called them, with their names."""
    read: int = 0
    """Bytes of the file that were read."""

    def update(self) -> None:
        """Read what was written since the last time."""
        with self.file.open("rb") as lines:
            lines.seek(self.read)
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # it is being written
                self.read += len(line)
                self._take(json.loads(line))

    def _take(self, entry: dict[str, Any]) -> None:
        if "sync" in entry:
            self.syncs.append(entry["sync"])
        elif "step" in entry:
            self.steps.append((entry["step"], entry["optimizer"]))
            self.stepping.add(tuple(entry["thread"]))
        elif "raced" in entry:
            self.raced.append((entry["at"], entry["raced"]))
        elif "race" in entry:
            race = entry["race"]
            places = {name: Site(*race[name]) for name in ("site", "other")}
            self.races.append(Race(**{**race, **places, "shape": tuple(race["shape"])}))
        elif "unseen" in entry:
            self.unseen = entry["unseen"]
        else:
            self.pid, self.name, self.used_ns = entry["pid"], entry["name"], entry["used"]


@dataclass(frozen=True)
class Window:
    """The region that processes are measured for."""

    name: str
    environment: Environment
    opened_ns: int
    closed_ns: int
    step_ends: Sequence[int]
    """When its steps ended; empty for a region without steps."""
    step_source: str
    warmup: int
    checks_races: bool
    """It looks for races."""


class ChildReports:
    """Asks new processes for reports while any region is open, and reads them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._folder: str | None = None
        self._owner = 0
        self._processes: dict[str, _Process] = {}
        self._restore: list[Callable[[], None]] = []

    @property
    def folder(self) -> str | None:
        """The folder that processes started now report to; None if no region asks for it."""
        return self._folder if self._users else os.environ.get(REPORTS)

    def open(self, report_to: Callable[[str], None]) -> None:
        """Ask processes that are started from now on for reports; calls nest.

        `report_to` makes a process report to a folder.
        """
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            if self._folder is None:
                self._make_folder()
            assert self._folder is not None
            self._set(REPORTS, self._folder)
            others = os.environ.get(PATH, "").split(os.pathsep)
            if STARTUP not in others:
                self._set(PATH, os.pathsep.join([STARTUP, *filter(None, others)]))
            self._prepare_spawned(report_to, self._folder)

    def close(self) -> None:
        """Stop asking; the last of nested calls restores the environment."""
        with self._lock:
            self._users -= 1
            while self._restore and not self._users:
                self._restore.pop()()

    def measured(self, window: Window) -> list[Measurement]:
        """Return what each process that used the device did within the time of a region, which is still open or was
        just closed.
        """
        with self._lock:
            if self._folder is None:
                return []
            for file in sorted(Path(self._folder).iterdir()):
                self._processes.setdefault(file.name, _Process(file)).update()
            found = [
                made for process in self._processes.values() if (made := _measurement(process, window)) is not None
            ]
            if window.environment.device == "cuda":
                reporting = {process.pid for process in self._processes.values()}
                found += [_unreported(pid, window) for pid in _users_of_a_gpu(os.getpid()) if pid not in reporting]
            return found

    def _make_folder(self) -> None:
        import atexit

        self._folder, self._owner = tempfile.mkdtemp(prefix="gpusync-children-"), os.getpid()
        atexit.register(self._remove_folder, self._folder, self._owner)

    @staticmethod
    def _remove_folder(folder: str, owner: int) -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    def _set(self, name: str, value: str) -> None:
        before = os.environ.get(name)
        os.environ[name] = value

        def restore() -> None:
            if os.environ.get(name) != value:
                return  # the program has set it since
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before

        self._restore.append(restore)

    def _prepare_spawned(self, report_to: Callable[[str], None], folder: str) -> None:
        """Tell processes of ``multiprocessing``, whose server may have been started with another environment."""
        from multiprocessing import spawn

        prepare = spawn.get_preparation_data

        def get_preparation_data(*arguments: Any, **named: Any) -> dict[str, Any]:
            return {**prepare(*arguments, **named), "gpusync_reports": _Call(report_to, folder)}

        spawn.get_preparation_data = get_preparation_data

        def restore() -> None:
            if spawn.get_preparation_data is get_preparation_data:
                spawn.get_preparation_data = prepare

        self._restore.append(restore)


class _Call:
    """When unpickled, calls a function."""

    def __init__(self, function: Callable[[str], None], argument: str) -> None:
        self._function = function
        self._argument = argument

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return self._function, (self._argument,)


def _measurement(process: _Process, window: Window) -> Measurement | None:
    """Return what a process did within a region; None if it did not use the device in that time."""

    def inside(time_ns: int | None) -> bool:
        return time_ns is not None and window.opened_ns <= time_ns <= window.closed_ns

    syncs = [sync for sync in process.syncs if inside(sync["began"])]
    steps = [step for step in process.steps if inside(step[0])]
    raced = Counter(number for at, number in process.raced if inside(at))
    if not syncs and not steps and not raced and not inside(process.used_ns):
        return None
    ends: Sequence[int] = [
        steps[index][0] for index in step_boundaries.boundaries([(n, step[1]) for n, step in enumerate(steps)])
    ]
    source = "optimizer.step()"
    if len(ends) < 2:
        ends, source = window.step_ends, window.step_source
    return _made(
        window,
        process.name,
        [_sync(sync, ends, sync["owned"] or (sync["owner"], sync["thread"]) in process.stepping) for sync in syncs],
        ends,
        source,
        problem=_why_unseen(process.name, process.unseen) if process.unseen is not None else None,
        races=tuple(replace(process.races[number], times=times) for number, times in raced.items())
        if window.checks_races and process.unseen is None
        else None,
    )


def _unreported(pid: int, window: Window) -> Measurement:
    name = f"process {pid}{_command(Path('/proc') / str(pid))}"
    problem = _why_unseen(name, "it did not start as a Python process with the environment of this one")
    return _made(window, name, [], (), "whole region", problem=problem)


def _made(
    window: Window,
    process: str,
    syncs: list[Sync],
    ends: Sequence[int],
    source: str,
    problem: str | None,
    races: tuple[Race, ...] | None = None,
) -> Measurement:
    return Measurement(
        name=f"{window.name} in {process}",
        environment=window.environment,
        all_syncs=tuple(syncs),
        steps=len(ends) or 1,
        warmup=min(window.warmup, len(ends) - 1) if ends else 0,
        step_source=source if ends else "whole region",
        complete=problem is None,
        problem=problem,
        process=process,
        races=races,
    )


def _why_unseen(process: str, reason: str) -> str:
    return f"{process}, which the test started, used the device unseen: {reason}"


def _sync(entry: dict[str, Any], ends: Sequence[int], owned: bool) -> Sync:
    step: int | None = bisect_right(ends, entry["began"] - 1)
    return Sync(
        kind=entry["kind"],
        site=Site(*entry["site"]),
        step=None if ends and step == len(ends) else step,
        direction=entry["direction"],
        nbytes=entry["bytes"],
        phase=entry["phase"],
        thread=entry["thread"],
        device=entry["device"],
        allowed=entry["allowed"],
        background=not owned,
    )


def _users_of_a_gpu(parent: int, proc: Path = Path("/proc")) -> Iterable[int]:
    """Yield the running processes below `parent` that have a CUDA context.

    A context maps the device of unified memory. CUDA that is only initialised does not, and a fork does not inherit
    the mapping, so workers that never use the GPU are not among them.
    """
    try:
        tasks = list((proc / str(parent) / "task").iterdir())
        children = {int(pid) for task in tasks for pid in (task / "children").read_text().split()}
    except OSError:
        return
    for pid in sorted(children):
        if _has_context(proc / str(pid)):
            yield pid
        yield from _users_of_a_gpu(pid, proc)


def _has_context(process: Path) -> bool:
    try:
        return any(_CONTEXT.search(line) for line in (process / "maps").read_text().splitlines())
    except OSError:
        return False


def _command(process: Path) -> str:
    """Return the beginning of a process's command in parentheses; nothing if it has ended."""
    try:
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return f" ({shlex.join(words[:3])})" if words[0] else ""


reports = ChildReports()
"""The reports to this process."""
