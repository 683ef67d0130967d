"""The plugin that collects what the tests measured and reports it at the end of the session."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpusync.plugin.current_session import begin_session, is_worker, session_of
from pytest_gpusync.plugin.messages import escaped
from pytest_gpusync.plugin.stash_keys import DESELECTED

if TYPE_CHECKING:
    from pytest_gpusync.plugin.session import GpuSession

NAME: Final = "gpusync-reporter"
"""The name that pytest knows it by."""

_MISSING: Final = "gpusync_missing"
"""Key under which a worker sends the baseline's tests that no longer exist."""


class Reporter:
    """Collects what the tests measured and reports it; in a distributed run only the controller has one."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._without_result: dict[str, None] | None = None
        """The tests that pytest-xdist has collected and that have no result yet; None before that."""

    @property
    def _gpu(self) -> GpuSession | None:
        return session_of(self._config)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what was measured of a test from its report, and restore a broken budget that a worker sent as text."""
        if self._without_result:
            self._without_result.pop(report.nodeid, None)
        failure = getattr(report, "gpusync_failure", None)
        if failure is not None and isinstance(report.longrepr, str):  # as received from a worker
            from pytest_gpusync.reporting.failure import BudgetFailure

            report.longrepr = BudgetFailure.from_text(failure)  # type: ignore[assignment]
        document = getattr(report, "gpusync", None)
        tear_down = getattr(report, "gpusync_tear_down", None)
        # The first measured test of a worker begins the session of a controller without options.
        gpu = self._gpu if document is None and tear_down is None else begin_session(self._config)
        if gpu is None:
            return
        if report.when == "call":
            gpu.passed[report.nodeid] = report.passed
            gpu.failed[report.nodeid] = (report.location[0], report.location[1] or 0) if report.failed else None
        if document is not None:
            gpu.take(report.nodeid, json.loads(document))
        if tear_down is not None:
            gpu.take_tear_down(report.nodeid, json.loads(tear_down))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Remember what the first worker has collected: the others collect the same."""
        if self._without_result is None and self._gpu is not None and self._gpu.options.measures_every_test:
            self._without_result = dict.fromkeys(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str) -> None:
        """Report that a pytest-xdist worker crashed in a test; what it had measured of the test is lost."""
        if self._gpu is not None and self._gpu.options.measures_every_test:
            self._gpu.take_crash(crashitem)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a pytest-xdist worker sent when it ended; one that was killed sent nothing."""
        if self._gpu is not None and self._gpu.baseline is not None:
            self._gpu.baseline.take_missing(getattr(node, "workeroutput", {}).get(_MISSING, ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the reports, and fail the session if something of it that is no test's has failed."""
        gpu = self._gpu
        if gpu is None or gpu.is_forked or session.config.option.collectonly:
            return
        gpu.claim_report()
        passed = session.exitstatus == pytest.ExitCode.OK
        is_interrupted = session.exitstatus == pytest.ExitCode.INTERRUPTED and gpu.ended is None
        if self._without_result and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            gpu.take_lost(list(self._without_result))
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            passed = False
        if not self.finish(passed=passed, meet=not is_interrupted) and passed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def finish(self, *, passed: bool, meet: bool = True) -> bool:
        """Decide the verdict of the session as a whole, and write its reports; False if it has to fail.

        Args:
            passed: whether the tests passed.
            meet: whether the other ranks of a distributed run can be met.
        """
        gpu = begin_session(self._config)
        settled = gpu.check_baseline()
        unproven = gpu.options.require_measured and gpu.measured_nothing
        if unproven:
            asked, device = ("--gpu-require", "GPU") if gpu.options.require else ("--gpu-require-measured", "device")
            gpu.errors.append(f"{asked}: no test ran anything on the {device} under a budget")
        united = not meet or gpu.exchange_with_ranks(passed=passed and settled and not unproven)
        written = gpu.write_reports()
        return settled and united and written and not unproven

    def pytest_unconfigure(self) -> None:
        """Wait until the other ranks have printed: a launcher ends all of them when one has failed."""
        if self._gpu is not None and not self._gpu.is_forked:
            self._gpu.leave_ranks()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary, notes and errors of the session."""
        gpu = self._gpu
        if gpu is None or gpu.is_forked:
            return
        self._annotate(terminalreporter, gpu)
        shown = terminalreporter.verbosity >= -1 and not terminalreporter.config.option.collectonly
        lines = gpu.summary() if shown else []
        if shown:
            lines += gpu.notes
        if not lines and not gpu.errors:
            return
        terminalreporter.write_sep("=", "gpusync")
        from pytest_gpusync.reporting.terminal import wrap_line

        for row in (row for line in lines for row in wrap_line(escaped(line))):
            terminalreporter.write_line(row)
        for error in gpu.errors:  # unbroken: other programs search for them
            terminalreporter.write_line(escaped(error), red=True)

    def _annotate(self, terminalreporter: pytest.TerminalReporter, gpu: GpuSession) -> None:
        """Print workflow commands, which GitHub reads at the start of a line."""
        config = terminalreporter.config
        found = gpu.annotations(config.invocation_params.dir, config.rootpath)
        if found:
            terminalreporter.ensure_newline()
        for command in found:
            terminalreporter.write_line(command)


def finish_without_the_test(config: pytest.Config) -> None:
    """Report for a rank whose test does not return, from another thread than the test's."""
    gpu = begin_session(config)
    reporter: Any = config.pluginmanager.get_plugin(NAME)
    gpu.give_up_test()
    reporter.finish(passed=False)
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if capture is not None:  # the test that does not return still captures standard output
        capture.suspend()
    if terminal is not None:
        terminal.write_line("")
        reporter.pytest_terminal_summary(terminal)
        terminal.flush()


def find_missing_tests(session: pytest.Session, gpu: GpuSession) -> None:
    """Find the baseline's tests that no longer exist; a test that was only not selected still does."""
    config = session.config
    assert gpu.baseline is not None
    narrowed = config.stash.get(DESELECTED, False) or getattr(config.option, "lf", False)
    narrowed = narrowed or any("::" in argument for argument in config.args)
    missing = gpu.baseline.missing_tests([item.nodeid for item in session.items], whole_files=not narrowed)
    if is_worker(config):
        config.workeroutput[_MISSING] = missing  # type: ignore[attr-defined]
    else:
        gpu.baseline.take_missing(missing)
