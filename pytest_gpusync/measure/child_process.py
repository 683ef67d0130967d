"""Reports what this process does on the device to a region of the process that started it.

Nothing happens before CUDA is initialized here. Then a region is opened that lasts as long as the process, and each
sync, each race and each ``optimizer.step()`` is written to a file at once; see
:mod:`pytest_gpusync.measure.child_reports`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pytest_gpusync.machine.child_environment import REPORTS
from pytest_gpusync.machine.import_hooks import AfterImport
from pytest_gpusync.measure import child_reports, recording
from pytest_gpusync.measure.region_log import RegionLog
from pytest_gpusync.measure.sync_log import SyncLog
from pytest_gpusync.model.measurement import MeasurementError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpusync.measure.sync_log import SyncOrigin
    from pytest_gpusync.model.measurement import Race, Site

_reporting_pid: int | None = None
"""The process that prepares to report, or reports: this one, or one that it was forked from."""


def report_to(folder: str) -> None:
    """Report to `folder` once torch has initialized CUDA in this process. Does nothing if it prepares to already."""
    global _reporting_pid
    if _reporting_pid == os.getpid():
        return
    _reporting_pid = os.getpid()
    os.environ[REPORTS] = folder  # for processes that this one starts
    if "torch" in sys.modules:
        _start_with_cuda(folder)
    else:
        sys.meta_path.insert(0, AfterImport("torch", lambda: _start_with_cuda(folder)))


def _start_with_cuda(folder: str) -> None:
    torch: Any = sys.modules["torch"]
    pid = os.getpid()

    def start() -> None:
        if os.getpid() == pid:  # else it was forked again, and prepares by itself
            _start(folder)

    torch.cuda._lazy_call(start)


def _start(folder: str) -> None:
    """Open the region of this process."""
    try:
        write = _writer(folder)
    except OSError:
        return  # the process that measures has ended
    write({"pid": os.getpid(), "name": _name(), "used": time.perf_counter_ns()})
    log = _ReportedLog(write)
    try:
        recording.current.open(log, "auto", "auto")
    except MeasurementError as error:
        write({"unseen": str(error)})
        return
    pid = os.getpid()
    _at_exit(lambda: _close(log, pid))


def _close(log: _ReportedLog, opened_in: int) -> None:
    if log.result is None and os.getpid() == opened_in:
        recording.current.close(log)
        if log.problem is not None:
            log.report_problem(log.problem)


def _at_exit(close: Callable[[], None]) -> None:
    """Call `close` when the process ends, be it one of ``multiprocessing``, which skips ``atexit`` after a fork."""
    import atexit

    atexit.register(close)
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, close, exitpriority=1)


def _writer(folder: str) -> Callable[[dict[str, Any]], None]:
    """Return a function that writes an object to a new file of `folder`, whole or not at all."""
    name = os.path.join(folder, f"{time.time_ns()}-{os.getpid()}.jsonl")
    file = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def write(entry: dict[str, Any]) -> None:
        os.write(file, json.dumps(entry).encode() + b"\n")

    return write


def _name() -> str:
    """Return what reports call this process."""
    process: Any = sys.modules.get("multiprocessing.process")
    name = process.current_process().name if process is not None else "MainProcess"
    if name != "MainProcess":
        return str(name)
    return os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else f"process {os.getpid()}"


class _Written(SyncLog):
    """Takes syncs and keeps none."""

    def __init__(self, take: Callable[[SyncOrigin, int | None], None]) -> None:
        super().__init__()
        self._take = take

    def append(self, origin: SyncOrigin, *, blocked_ns: int | None, began_ns: int | None, sequence: int | None) -> None:
        self._take(origin, began_ns)


class _ReportedLog(RegionLog):
    """The log of a region whose data is written as it is recorded."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        super().__init__("process", None, None, all_threads=False)
        self.scope.is_immediate = True
        self.syncs = _Written(self._write_sync)
        self._write = write
        self._numbers: dict[Race, int] = {}

    def raced(self, race: Race) -> None:
        """Write that a race happened, and when it is new, the race."""
        number = self._numbers.get(race)
        if number is None:
            number = self._numbers[race] = len(self._numbers)
            self._write({"race": asdict(race) | {"site": _site(race.site), "other": _site(race.other)}})
        self._write({"raced": number, "at": time.perf_counter_ns()})

    def optimizer_stepped(
        self, optimizer: object, number: int, buffered: int, now: int, thread: tuple[int, str]
    ) -> None:
        self._stepping.add(thread)
        self._write({"step": now, "optimizer": number, "thread": thread})

    def report_problem(self, problem: str) -> None:
        """Report why not everything was counted."""
        self._write({"unseen": problem})

    def _write_sync(self, origin: SyncOrigin, began_ns: int | None) -> None:
        entry = {
            "began": began_ns or time.perf_counter_ns(),
            "kind": origin.kind,
            "site": _site(origin.site),
            "direction": origin.direction,
            "bytes": origin.nbytes,
            "phase": origin.phase,
            "thread": origin.thread,
            "owner": origin.owner,
            "owned": self._owns(origin.owner, origin.thread, origin.held),
            "device": origin.device,
            "allowed": origin.allowed,
        }
        self._write({"sync": entry})


def _site(site: Site) -> list[Any]:
    return [site.path, site.line, site.function, site.via]


def _after_fork() -> None:
    """In a forked child: report to the region that was open in the parent."""
    folder = child_reports.reports.folder
    child_reports.reports = child_reports.ChildReports()  # the folder and what was replaced belong to the parent
    if folder is None:
        return
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        report_to(folder)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
