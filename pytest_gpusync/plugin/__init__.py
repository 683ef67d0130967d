"""pytest hooks. They do nothing unless an option, a marker or a fixture of this plugin is used."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpusync.plugin.fixtures import gpu_elapsed as gpu_elapsed
from pytest_gpusync.plugin.fixtures import gpu_memory as gpu_memory
from pytest_gpusync.plugin.fixtures import gpu_sync as gpu_sync
from pytest_gpusync.plugin.fixtures import gpu_train as gpu_train
from pytest_gpusync.plugin.options import (
    GPU_FIXTURES,
    GPU_ONLY_MARKER,
    GROWTH_MARKER,
    MARKERS,
    TIMING_FIXTURES,
    MarkerError,
    add_options,
    marker_budget,
    marker_growth,
    marker_ignores_races,
    read_options,
)
from pytest_gpusync.plugin.stash_keys import BASELINE_RESULT, DESELECTED, LINE_COVERAGE, MEASURED_TEST, SESSION

if TYPE_CHECKING:
    import argparse
    from collections.abc import Generator, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpusync.model.document import Document
    from pytest_gpusync.plugin.baseline_check import BaselineCheck
    from pytest_gpusync.plugin.measured_test import MeasuredTest
    from pytest_gpusync.plugin.options import Options
    from pytest_gpusync.plugin.session import GpuSession
    from pytest_gpusync.reporting.failure import BudgetFailure

MISSING: Final = "gpusync_missing"
"""Key under which a worker sends the baseline's tests that no longer exist."""

_PACKAGE_FOLDER = Path(__file__).parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register options and ini keys."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Prepare the simulated device before the first conftest is imported: it may ask torch whether there is a GPU."""
    _session(early_config, early_config.known_args_namespace)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers, and the reporter in the process that draws reports."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    gpu = _session(config, config.option)
    if gpu.options.lines and not config.option.collectonly:
        _record_lines(config)
    if not _is_worker(config):
        config.pluginmanager.register(_Reporter(gpu), "gpusync-reporter")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse options that cannot work, in one line, before any test runs."""
    if not session.config.option.collectonly and not _is_worker(session.config):
        _session(session.config).check()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Report what steps run on, if any option was given."""
    gpu = _session(config)
    if not gpu.options.any_given:
        return None
    workers = getattr(config.option, "numprocesses", None)
    return gpu.header(workers if isinstance(workers, int) else 0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that need a real GPU if there is none."""
    for item in items:
        if item.get_closest_marker(GPU_ONLY_MARKER) is None:
            continue
        missing = _session(config).device.no_gpu_reason
        if missing is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs a real GPU: {missing}"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Switch the simulated device on if any test asks to be measured, for all tests of the session."""
    config = session.config
    if config.option.collectonly:
        return
    gpu = _session(config)
    if any(_uses_gpu(item) for item in session.items):
        gpu.measures = True
        gpu.device.switch_on()
    if gpu.baseline is not None:
        _find_missing_tests(session, gpu)
    if _is_worker(config):
        return
    if gpu.device.unavailable is not None and gpu.options.must_measure:
        raise pytest.UsageError(f"nothing can be measured here: {gpu.device.unavailable}")
    gpu.watch_ranks(lambda: _finish_without_the_test(config))


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Remember that tests were deselected from collected files."""
    for item in items[:1]:
        item.config.stash[DESELECTED] = True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Decide what is measured of a test."""
    gpu = _session(item.config)
    refusal = None
    try:
        marked, growth, ignores_races = marker_budget(item), marker_growth(item), marker_ignores_races(item)
    except MarkerError as error:
        refusal = f"{item.nodeid}: {error}"
    if refusal is not None:
        pytest.fail(refusal, pytrace=False)
    if not gpu.options.measures_every_test and not _uses_gpu(item):
        return
    is_marked = (marked is not None and marked.budget is not None) or growth is not None
    from pytest_gpusync.plugin.measured_test import MeasuredTest
    from pytest_gpusync.reporting.terminal import LINES_SHOWN

    item.stash[MEASURED_TEST] = MeasuredTest(
        item.nodeid,
        gpu.device,
        budget=marked.budget if marked is not None else gpu.options.budget,
        growth=growth if growth is not None else gpu.options.growth,
        warmup=marked.warmup if marked is not None else None,
        marked=is_marked,
        growth_marked=growth is not None,
        must_measure=is_marked or gpu.options.must_measure,
        must_decide=gpu.options.require,
        call_is_region=is_marked or gpu.options.measures_every_test,
        defers_failure=gpu.rank is not None,
        all_threads=gpu.options.all_threads,
        races="report" if ignores_races and gpu.options.races == "fail" else gpu.options.races,
        has_baseline=gpu.baseline is not None,
        limit=LINES_SHOWN if item.config.option.verbose <= 0 else None,
    )
    if gpu.baseline is not None:
        from pytest_gpusync.plugin.baseline_check import BaselineResult

        item.stash[BASELINE_RESULT] = BaselineResult()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep what was measured of an interrupted test, for which pytest makes no report."""
    _session(item.config).enter_test(item.nodeid)
    try:
        return (yield)
    except (KeyboardInterrupt, pytest.exit.Exception):
        run = item.stash.get(MEASURED_TEST, None)
        document = run.document() if run is not None else None
        if document is not None:
            _session(item.config).take_interrupted(item.nodeid, document)
        raise


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Measure the call of a test, without its setup and teardown."""
    # The last wrapper is the innermost one: the hooks of other plugins are not measured.
    run = item.stash.get(MEASURED_TEST, None)
    if run is None:
        return (yield)
    with _lease(item):
        result = yield from _measured_call(item, run)
    run.raise_deferred_failure()
    return result


def _measured_call(item: pytest.Item, run: MeasuredTest) -> Generator[None, object, object]:
    if not run.call_is_region:
        return (yield)
    baseline = _session(item.config).baseline
    if baseline is None:
        with run.call():
            return (yield)
    ended = False
    try:
        with run.call():
            result = yield
            ended = True
    except AssertionError:
        if ended:  # the test has ended and broke another budget: its syncs still belong in the baseline
            baseline.count(run, item.stash[BASELINE_RESULT])
        raise
    baseline.judge(run, item.stash[BASELINE_RESULT])
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show a broken budget as its sentence and lines, and attach what was measured to the report."""
    report = yield
    run = item.stash.get(MEASURED_TEST, None)
    if run is None:
        return report  # its lines are sent with the next test that is measured
    from pytest_gpusync.model.budgets import BudgetExceeded, NotMeasured

    if call.excinfo is not None and isinstance(call.excinfo.value, (BudgetExceeded, NotMeasured)):
        failure = _failure(item, call.excinfo)
        report.longrepr = failure  # type: ignore[assignment]
        report.gpusync_failure = failure.to_text()  # type: ignore[attr-defined]
    elif call.when == "call" and report.failed:
        report.sections += [("gpusync", text) for text in run.failed_verdicts()]
    if call.when == "call":
        baseline = item.stash.get(BASELINE_RESULT, None)
        # Text on the report arrives from workers of a distributed run, whatever serializer they use.
        document = run.document()
        if baseline is not None:
            document = document or {"environment": None, "regions": []}
            baseline.annotate(document["regions"])
        _note_properties(item, document)
        lines = item.config.stash.get(LINE_COVERAGE, None)
        if lines is not None:
            document = document or {"environment": None, "regions": []}
        if document is not None:
            document["ratchet"] = baseline.document() if baseline is not None else None
            document["lines"] = lines.take() if lines is not None else None
        report.gpusync = json.dumps(document) if document is not None else None  # type: ignore[attr-defined]
    return report


def _note_properties(item: pytest.Item, document: Document | None) -> None:
    """Add a test's measurements to its properties, which are sent from workers and written to JUnit files."""
    from pytest_gpusync.reporting.junit import PREFIX, properties

    # A test that is run again keeps the properties of its last run.
    item.user_properties = [(name, value) for name, value in item.user_properties if not name.startswith(PREFIX)]
    if document is not None:
        item.user_properties += properties(document["environment"], document["regions"])


class _Reporter:
    """Collects what the tests measured and reports it; in a distributed run only the controller has one."""

    def __init__(self, gpu: GpuSession) -> None:
        self._gpu = gpu

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        failure = getattr(report, "gpusync_failure", None)
        if failure is not None and isinstance(report.longrepr, str):  # as received from a worker
            from pytest_gpusync.reporting.failure import BudgetFailure

            report.longrepr = BudgetFailure.from_text(failure)  # type: ignore[assignment]
        if report.when == "call":
            self._gpu.failed[report.nodeid] = (report.location[0], report.location[1] or 0) if report.failed else None
        document = getattr(report, "gpusync", None)
        if document is not None:
            self._gpu.take(report.nodeid, json.loads(document))

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str) -> None:
        """Report that a pytest-xdist worker crashed in a test; what it had measured of the test is lost."""
        if self._gpu.options.measures_every_test:
            self._gpu.take_crash(crashitem)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a pytest-xdist worker sent when it ended; one that was killed sent nothing."""
        if self._gpu.baseline is not None:
            self._gpu.baseline.take_missing(getattr(node, "workeroutput", {}).get(MISSING, ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.config.option.collectonly:
            return
        self._gpu.claim_report()
        passed = session.exitstatus == pytest.ExitCode.OK
        is_interrupted = session.exitstatus == pytest.ExitCode.INTERRUPTED and self._gpu.ended is None
        if not self.finish(passed=passed, meet=not is_interrupted) and passed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def finish(self, *, passed: bool, meet: bool = True) -> bool:
        """Decide the verdict of the session as a whole, and write its reports; False if it has to fail.

        Args:
            passed: whether the tests passed.
            meet: whether the other ranks of a distributed run can be met.
        """
        gpu = self._gpu
        settled = gpu.check_baseline()
        unproven = gpu.options.require and gpu.measured_nothing
        if unproven:
            gpu.errors.append("--gpu-require: no test ran anything on the GPU under a budget")
        united = not meet or gpu.exchange_with_ranks(passed=passed and settled and not unproven)
        written = gpu.write_reports()
        return settled and united and written and not unproven

    def pytest_unconfigure(self) -> None:
        """Wait until the other ranks have printed: a launcher ends all of them when one has failed."""
        self._gpu.leave_ranks()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self._annotate(terminalreporter)
        shown = terminalreporter.verbosity >= 0 and not terminalreporter.config.option.collectonly
        lines = self._gpu.summary() if shown else []
        if shown:
            lines += self._gpu.notes
        if not lines and not self._gpu.errors:
            return
        terminalreporter.write_sep("=", "gpusync")
        from pytest_gpusync.reporting.terminal import wrap_line

        for row in (row for line in lines for row in wrap_line(line)):
            terminalreporter.write_line(row)
        for error in self._gpu.errors:  # unbroken: other programs search for them
            terminalreporter.write_line(error, red=True)

    def _annotate(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print workflow commands, which GitHub reads at the start of a line."""
        config = terminalreporter.config
        found = self._gpu.annotations(config.invocation_params.dir, config.rootpath)
        if found:
            terminalreporter.ensure_newline()
        for command in found:
            terminalreporter.write_line(command)


def _finish_without_the_test(config: pytest.Config) -> None:
    """Report for a rank whose test does not return, from another thread than the test's."""
    gpu = _session(config)
    reporter: Any = config.pluginmanager.get_plugin("gpusync-reporter")
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


def _session(config: pytest.Config, namespace: argparse.Namespace | None = None) -> GpuSession:
    """Return the state of this session; the first call makes it, from the command line in `namespace`."""
    gpu = config.stash.get(SESSION, None)
    if gpu is None:
        from pytest_gpusync.plugin.session import GpuSession

        options = read_options(config, namespace if namespace is not None else config.option)
        if options.any_given and options.device != "simulated":
            from pytest_gpusync.machine.gpu_lease import take_own_gpu

            take_own_gpu()
        gpu = config.stash[SESSION] = GpuSession(options, _baseline_check(config, options))
        # Not in pytest_unconfigure, which does not run for a configuration that was read but never configured.
        config.add_cleanup(gpu.device.close)
        if options.measures_every_test or options.device == "simulated":
            gpu.device.switch_on_with_torch()
    return gpu


def _record_lines(config: pytest.Config) -> None:
    """Record from here to the end of the session which lines of the project run."""
    from pytest_gpusync.source.line_coverage import CoverageUnavailable, LineCoverage

    lines = config.stash[LINE_COVERAGE] = LineCoverage()
    recording = ExitStack()
    try:
        recording.enter_context(lines.recording())
    except CoverageUnavailable as error:
        raise pytest.UsageError(f"--gpu-sync-lines: {error}") from None
    config.add_cleanup(recording.close)


def _baseline_check(config: pytest.Config, options: Options) -> BaselineCheck | None:
    if options.baseline is None:
        return None
    from pytest_gpusync.plugin.baseline_check import BaselineCheck
    from pytest_gpusync.plugin.baseline_file import Folders

    folders = Folders(config.rootpath, config.invocation_params.dir)
    return BaselineCheck(options.baseline, folders, update=options.update_baseline)


def _find_missing_tests(session: pytest.Session, gpu: GpuSession) -> None:
    """Find the baseline's tests that no longer exist; a test that was only not selected still does."""
    config = session.config
    assert gpu.baseline is not None
    narrowed = config.stash.get(DESELECTED, False) or getattr(config.option, "lf", False)
    narrowed = narrowed or any("::" in argument for argument in config.args)
    missing = gpu.baseline.missing_tests([item.nodeid for item in session.items], whole_files=not narrowed)
    if _is_worker(config):
        config.workeroutput[MISSING] = missing  # type: ignore[attr-defined]
    else:
        gpu.baseline.take_missing(missing)


def _lease(item: pytest.Item) -> AbstractContextManager[None]:
    """Lock the GPU: exclusively for tests that take times on it, shared for the others."""
    gpu = _session(item.config).device
    if not _is_worker(item.config) or gpu.no_gpu_reason is not None:
        return nullcontext()
    from pytest_gpusync.machine.gpu_lease import lease

    return lease(gpu.found.uuid, exclusive=not TIMING_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())))


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _uses_gpu(item: pytest.Item) -> bool:
    """Return whether a test itself asks to be measured."""
    if not GPU_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        return True
    if item.get_closest_marker(GROWTH_MARKER) is not None:
        return True
    try:
        marked = marker_budget(item)
    except MarkerError:  # reported when the test is set up
        return True
    return marked is not None and marked.budget is not None


def _failure(item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException]) -> BudgetFailure:
    from pytest_gpusync.reporting.failure import BudgetFailure, Place

    text = str(excinfo.value)
    place = _place_in_test(item, excinfo)
    path, line = place if place is not None else (item.location[0], (item.location[1] or 0) + 1)
    asserted_at = None if place is None else f"{path}:{line}: {excinfo.typename}"
    return BudgetFailure(text, Place(path, line, text.partition("\n")[0]), asserted_at)


def _place_in_test(item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException]) -> tuple[str, int] | None:
    """Return the innermost line of user code that led to the failure; None for a budget on the test as a whole."""
    for entry in reversed(excinfo.traceback):
        path = Path(entry.path)
        inside = path == item.path or item.config.rootpath in path.parents
        if inside and _PACKAGE_FOLDER not in path.parents and "site-packages" not in path.parts:
            return os.path.relpath(path, item.config.invocation_params.dir), entry.lineno + 1
    return None
