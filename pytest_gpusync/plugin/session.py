"""A pytest session that uses the plugin: its options, its device, and what the tests measured.

The code that draws reports is imported only when there is something to report.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpusync.distributed.rank_exchange import rank
from pytest_gpusync.machine import devices
from pytest_gpusync.plugin.session_device import SessionDevice
from pytest_gpusync.reporting.files import ending_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpusync.distributed.rank_exchange import RankGroup
    from pytest_gpusync.distributed.rank_watchdog import RankWatchdog
    from pytest_gpusync.model.document import Document
    from pytest_gpusync.plugin.baseline_check import BaselineCheck
    from pytest_gpusync.plugin.options import Options


class GpuSession:
    """State of one session. In a distributed run, every worker has one to measure with, and the controller one to
    report with.
    """

    def __init__(self, options: Options, baseline: BaselineCheck | None = None) -> None:
        self.options = options
        self._process = os.getpid()
        self.baseline = baseline
        """The baseline, if the session has one."""
        self.device = SessionDevice(
            options.device, devices=options.devices, values=options.values, memory=options.memory
        )
        self.environment: Document | None = None
        """Where the tests were measured; None until the first was."""
        self.tests: dict[str, list[Document]] = {}
        """Region objects by node id; a repeated test replaces its own."""
        self.failed: dict[str, tuple[str, int] | None] = {}
        """By node id, where a failed test is defined (relative to rootdir, line counted from 0); None for
        the others."""
        self.passed: dict[str, bool] = {}
        """By node id, whether a test passed."""
        self.lines: Document | None = {} if options.lines else None
        """Lines of the project that ran, by path; None unless recorded."""
        self.notes: list[str] = []
        """Lines for the user that no exit code depends on."""
        self.errors: list[str] = []
        """Lines that explain an exit code that no test explains."""
        self.measures = options.measures_every_test
        """True if a test of the session may be measured."""
        self.rank = rank()
        """Rank of this process in a distributed run; None if there is only one process."""
        self._ranks: RankGroup | None = None
        self._watchdog: RankWatchdog | None = None
        self._current: str | None = None
        """The running test, if other ranks are told."""
        self._reporting_rank = 0
        """The rank that reports for all, once they have met."""
        self._merged_run: Document | None = None
        """The run of all ranks, once they have met."""

    @property
    def is_forked(self) -> bool:
        """True in a child that a test has forked and that returned from the test: the session is its parent's."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Refuse options that cannot work, before any test runs.

        Raises:
            pytest.UsageError: one line that says what is missing.
        """
        device, options = self.device, self.options
        if options.lines and ".json" not in map(ending_of, (path.name for path in options.reports)):
            raise pytest.UsageError("--gpu-sync-lines needs a JSON report: add --gpu-sync-report=PATH.json")
        if options.require and device.choice == "simulated":
            raise pytest.UsageError(
                "gpu_require needs a real GPU, and gpu_device=simulated excludes it; remove one of them "
                "(-o gpu_require=false overrides the ini file)"
            )
        needs_torch = device.choice == "simulated" or options.must_measure
        if needs_torch and device.is_simulated and devices.torch_build() is None:
            raise pytest.UsageError(
                "nothing can be measured here: torch is not installed, and the simulated CUDA device needs it "
                "(pip install torch)"
            )
        if (options.require or device.choice == "cuda") and device.no_gpu_reason is not None:
            asked = "--gpu-require" if options.require else "--gpu-device=cuda"
            raise pytest.UsageError(f"{asked}: there is no GPU to run on: {device.no_gpu_reason}")

    def header(self, workers: int = 0) -> str:
        """Return the line for the session's header; `workers`: number of processes that the tests are spread over."""
        device = self.device
        if device.is_simulated:
            why = f" (no GPU: {device.found.reason})" if device.choice == "auto" else ""
            many = self.options.devices or 1
            name = "simulated CUDA device" if many == 1 else f"{many} simulated CUDA devices"
            parts = [f"{name}{why}", "recorder simulated", "coverage simulated"]
        else:
            driver = f" (driver {device.found.driver})" if device.found.driver else ""
            recorders = "recorder cupti, coverage driver (else torch-hooks, coverage torch)"
            if device.found.kind == "other":
                recorders = "recorder dispatcher, coverage dispatcher"
            parts = [f"{device.found.gpu}{driver}", recorders]
        if self.options.budget is not None:
            noun = "sync" if self.options.budget.max == 1 else "syncs"
            parts.append(f"{self.options.budget} {noun} per step")
        if self.options.growth is not None:
            parts.append(f"{self.options.growth} of memory growth per step")
        if self.options.baseline is not None:
            parts.append(f"baseline {self.options.baseline.name}")
        if workers:
            parts.append(f"{workers} workers" if workers > 1 else "1 worker")
        return f"gpusync: {', '.join(parts)}"

    def take(self, nodeid: str, document: Document) -> None:
        """Add the measurements of a test from its report."""
        if self.baseline is not None:
            self.baseline.take(nodeid, document["ratchet"])
        if document["regions"]:
            self.tests[nodeid] = document["regions"]
        if document["lines"] is not None:
            from pytest_gpusync.source.line_coverage import merged

            self.lines = merged(self.lines or {}, document["lines"])
        if document["environment"] is not None:
            self.environment = self.environment or document["environment"]

    def take_tear_down(self, nodeid: str, region: Document) -> None:
        """Add what the tear-down of a test did on the device."""
        self.tests.setdefault(nodeid, []).append(region)

    def take_interrupted(self, nodeid: str, document: Document) -> None:
        """Add what was measured of a test in which the session was interrupted."""
        self.tests[nodeid] = document["regions"]
        self.environment = self.environment or document["environment"]

    def take_crash(self, nodeid: str) -> None:
        """Add a test whose process crashed."""
        from pytest_gpusync.reporting.run_file import unmeasured_document

        self.tests[nodeid] = [unmeasured_document(nodeid, "the worker crashed while it ran this test")]

    def annotations(self, base: Path, root: Path) -> list[str]:
        """Return the budgets broken by failed tests as commands for a GitHub job; none outside of one.

        Args:
            base: the folder that paths of measurements are relative to.
            root: the folder that paths of tests are relative to.
        """
        if not self.tests:
            return []
        from pytest_gpusync.reporting.github import FailedTest, commands, runs_in_github

        if not runs_in_github(os.environ):
            return []
        workspace = os.environ.get("GITHUB_WORKSPACE")
        failed = [
            FailedTest(nodeid, str(root / place[0]), place[1] + 1)
            for nodeid, place in self.failed.items()
            if place is not None
        ]
        return commands(failed, self.tests, base=base, workspace=Path(workspace) if workspace else None)

    @property
    def measured_nothing(self) -> bool:
        """True if no region counted the syncs of something that ran on the device."""
        from pytest_gpusync.reporting.summary import is_measured

        return not any(is_measured(region) for regions in self.tests.values() for region in regions)

    def watch_ranks(self, finish: Callable[[], None]) -> None:
        """Watch the other ranks of a distributed run, if there are any, until :meth:`leave_ranks`.

        Args:
            finish: reports for this rank, on another thread, if the run ends and a test does not return.
        """
        if self.rank is None or not self.measures:
            return
        from pytest_gpusync.distributed.rank_exchange import RankGroup, connect
        from pytest_gpusync.distributed.rank_watchdog import Heartbeats, RankWatchdog

        found, again = connect(), connect()
        if found is not None and again is not None:
            self._ranks = RankGroup(*found)
            self._watchdog = RankWatchdog(self._ranks, Heartbeats(*again), finish)
            self._watchdog.start()

    def enter_test(self, nodeid: str) -> None:
        """Tell the other ranks which test this one is in."""
        if self._watchdog is not None and self._ranks is not None:
            self._current = nodeid
            self._ranks.note_test(nodeid)

    @property
    def ended(self) -> str | None:
        """Why a distributed run is ended before its tests; None if it is not."""
        return self._watchdog.reason if self._watchdog is not None else None

    def claim_report(self) -> None:
        """Claim reporting for this thread; if the watching thread has claimed it, wait until it ends the process."""
        if self._watchdog is not None and not self._watchdog.claim():
            self._watchdog.wait_for_exit()

    def give_up_test(self) -> None:
        """Report that the running test did not return before the run ended."""
        if self._watchdog is None or self._current is None:
            return
        from pytest_gpusync.reporting.run_file import unmeasured_document

        where = self._watchdog.current_user_line()
        waits = f" and still waits at {where}" if where else ""
        problem = f"{self.ended}: the test had not returned{waits}"
        self.errors.append(f"{self._current}: {problem}")
        self.tests[self._current] = [unmeasured_document(self._current, problem)]

    def exchange_with_ranks(self, *, passed: bool) -> bool:
        """Exchange runs with the other ranks of a distributed run; False if one of them failed or did not respond.

        From then on, the first rank that responded reports for all. Without other ranks, or if they cannot be reached,
        nothing happens.
        """
        if self.rank is None or not self.measures:
            return True
        from pytest_gpusync.distributed.rank_exchange import join

        self._ranks = self._ranks or join()
        if self._ranks is None:
            return True
        from pytest_gpusync.reporting.merging import merge_runs

        if self.ended is not None:
            self._ranks.shorten_waits()
        found = self._ranks.exchange({"passed": passed, "ended": self.ended is not None, "run": self._own_run()})
        there = [(number, document) for number, document in enumerate(found) if document is not None]
        late = [number for number, document in enumerate(found) if document is None]
        failed = [number for number, document in there if not (document["passed"] or document["ended"])]
        failed = [number for number in failed if number != self.rank]
        runs = [(f"rank {number}", document["run"]) for number, document in there]
        for number in late:
            runs.append((f"rank {number}", self._run_of_lost_rank(self._ranks, number)))
        self._merged_run = merge_runs(runs)
        self._reporting_rank = there[0][0]
        for number in failed:
            self.errors.append(f"rank {number} failed{_first_broken(found[number])}")
        return not late and not failed and self.ended is None

    def _run_of_lost_rank(self, ranks: RankGroup, number: int) -> Document:
        """Report a rank that sent nothing, and return its part of the merged run."""
        from pytest_gpusync.distributed.rank_exchange import EXCHANGE_SECONDS
        from pytest_gpusync.reporting.run_file import run_document, unmeasured_document

        if self.ended is None and number not in ranks.dead:
            problem = f"rank {number} sent no results within {EXCHANGE_SECONDS:g} s"
        else:
            problem = f"rank {number} died or was killed"
        test = ranks.last_test(number)
        self.errors.append(f"{problem}; its last test was {test}" if test else problem)
        document = run_document(None, [unmeasured_document(test or f"rank {number}", problem)])
        return {**document, "rank": number}

    def leave_ranks(self) -> None:
        """Wait, for a limited time, until all ranks are about to end."""
        if self._watchdog is not None:
            self._watchdog.stop()
        if self._ranks is not None and self.ended is None:
            self._ranks.leave()

    def _own_run(self) -> Document:
        from pytest_gpusync.reporting.run_file import run_document

        regions = [{**region, "test": nodeid} for nodeid, found in self.tests.items() for region in found]
        return run_document(self.environment, regions, self.lines)

    def write_reports(self) -> bool:
        """Write every requested report; False if one could not be written, with an error that says where it is instead.

        If ranks have met, the first one writes the reports of all; otherwise each rank writes its own.
        """
        if not self.options.reports or (self._merged_run is not None and self.rank != self._reporting_rank):
            return True
        from pytest_gpusync.reporting.files import path_of_rank, write_report

        document = self._merged_run or self._own_run()
        written = True
        for wanted in self.options.reports:
            path = wanted if self._merged_run is not None else path_of_rank(wanted)
            try:
                write_report(document, path)
            except OSError as error:
                written = False
                self.errors.append(f"{path} cannot be written ({error.strerror}){_rescue(path, document)}")
        return written

    def check_baseline(self) -> bool:
        """Compare the session with its baseline, or rewrite it; False if that failed, with errors that say why."""
        baseline = self.baseline
        if baseline is None or (baseline.update and self.rank not in (None, 0)):
            return True
        coverage = self.environment["coverage"] if self.environment is not None else None
        if baseline.update:
            try:
                self.notes.append(baseline.write(coverage))
            except OSError as error:
                self.errors.append(f"{baseline.path} cannot be written ({error.strerror})")
                return False
            return True
        self.notes += baseline.notes(coverage)
        stale = baseline.stale()
        self.errors += stale
        return not stale

    def summary(self) -> list[str]:
        """Return the lines of the terminal summary; empty if there is nothing to report."""
        if not self.tests and self.options.measures_every_test:
            return ["nothing was measured: no test used the GPU"]
        if not self.tests:
            return []
        from pytest_gpusync.reporting.summary import caught_lines, summary_lines

        if self._merged_run is not None and self.rank == self._reporting_rank:
            of_all = {region["name"]: [region] for region in self._merged_run["regions"]}
            return summary_lines(self._merged_run["environment"], of_all)
        passed = [regions for nodeid, regions in self.tests.items() if self.passed.get(nodeid)]
        return summary_lines(self.environment, self.tests) + caught_lines(passed)


def _first_broken(sent: Document | None) -> str:
    """Return the first budget broken on another rank, as the end of a sentence; empty if it failed for
    another reason.
    """
    from pytest_gpusync.reporting.page_model import failed_sentences

    regions = sent["run"]["regions"] if sent is not None else []
    return next((f": {region['name']}: {said}" for region in regions for said in failed_sentences(region)), "")


def _rescue(path: Path, document: Document) -> str:
    """Write a report that cannot be written to its path into the folder for temporary files instead; return where."""
    from pytest_gpusync.reporting.files import write_report

    rescued = Path(tempfile.mkdtemp(prefix="gpusync-")) / path.name
    try:
        write_report(document, rescued)
    except OSError:
        return ""
    return f"; the report is in {rescued}"
