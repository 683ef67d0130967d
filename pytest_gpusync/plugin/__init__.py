"""pytest hooks. Without an option, a marker or a fixture of this plugin in use they do nothing."""

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
    read_options,
)
from pytest_gpusync.plugin.stash_keys import DESELECTED, LINES, RATCHET, RUN, SESSION

if TYPE_CHECKING:
    import argparse
    from collections.abc import Generator, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpusync.model.document import Document
    from pytest_gpusync.plugin.baseline_check import Ratchet
    from pytest_gpusync.plugin.measured_test import TestRun
    from pytest_gpusync.plugin.options import Options
    from pytest_gpusync.plugin.session import GpuSession
    from pytest_gpusync.reporting.failure import BudgetFailure

MISSING: Final = "gpusync_missing"
"""Key under which a worker sends home the tests of the baseline that are no longer there."""

_PACKAGE_FOLDER = Path(__file__).parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register options and ini keys."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Arm the simulated device before the first conftest is imported: it may ask torch whether there is a GPU."""
    _session(early_config, early_config.known_args_namespace)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers, and the reporter where reports are drawn."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    gpu = _session(config, config.option)
    if gpu.options.lines and not config.option.collectonly:
        _record_lines(config)
    if not _is_worker(config):
        config.pluginmanager.register(_Reporter(gpu), "gpusync-reporter")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse what cannot work, in one line, before any test runs."""
    if not session.config.option.collectonly and not _is_worker(session.config):
        _session(session.config).check()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what steps run on, if anything was asked."""
    gpu = _session(config)
    if not gpu.options.asked:
        return None
    workers = getattr(config.option, "numprocesses", None)
    return gpu.header(workers if isinstance(workers, int) else 0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs a real GPU where there is none."""
    for item in items:
        if item.get_closest_marker(GPU_ONLY_MARKER) is None:
            continue
        missing = _session(config).device.missing
        if missing is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs a real GPU: {missing}"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Switch the simulated device on for tests that ask to be measured, for all tests of the session alike."""
    config = session.config
    if config.option.collectonly:
        return
    gpu = _session(config)
    if any(_uses_gpu(item) for item in session.items):
        gpu.measures = True
        gpu.device.switch_on()
    if gpu.ratchet is not None:
        _find_missing_tests(session, gpu)
    if _is_worker(config):
        return
    if gpu.device.refusal is not None and gpu.options.insistent:
        raise pytest.UsageError(f"nothing can be measured here: {gpu.device.refusal}")
    gpu.watch_ranks(lambda: _finish_without_the_test(config))


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Remember that tests were left out of the files that were collected."""
    for item in items[:1]:
        item.config.stash[DESELECTED] = True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Decide what is measured of a test."""
    gpu = _session(item.config)
    refusal = None
    try:
        marked, growth = marker_budget(item), marker_growth(item)
    except MarkerError as error:
        refusal = f"{item.nodeid}: {error}"
    if refusal is not None:
        pytest.fail(refusal, pytrace=False)
    if not gpu.options.measures_every_test and not _uses_gpu(item):
        return
    is_marked = (marked is not None and marked.budget is not None) or growth is not None
    from pytest_gpusync.plugin.measured_test import TestRun
    from pytest_gpusync.reporting.terminal import LINES_SHOWN

    item.stash[RUN] = TestRun(
        item.nodeid,
        gpu.device,
        budget=marked.budget if marked is not None else gpu.options.budget,
        growth=growth if growth is not None else gpu.options.growth,
        warmup=marked.warmup if marked is not None else None,
        marked=is_marked,
        growth_marked=growth is not None,
        insistent=is_marked or gpu.options.insistent,
        strict=gpu.options.require,
        call_is_region=is_marked or gpu.options.measures_every_test,
        holds_back=gpu.rank is not None,
        all_threads=gpu.options.all_threads,
        limit=LINES_SHOWN if item.config.option.verbose <= 0 else None,
    )
    if gpu.ratchet is not None:
        from pytest_gpusync.plugin.baseline_check import TestRatchet

        item.stash[RATCHET] = TestRatchet()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep what an interrupted test had shown: pytest makes no report of it."""
    _session(item.config).enter_test(item.nodeid)
    try:
        return (yield)
    except (KeyboardInterrupt, pytest.exit.Exception):
        run = item.stash.get(RUN, None)
        document = run.document() if run is not None else None
        if document is not None:
            _session(item.config).take_interrupted(item.nodeid, document)
        raise


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Measure the call of a test: not its set-up, nor its tear-down."""
    # A wrapper that comes last is the innermost: the hooks of other plugins are not measured.
    run = item.stash.get(RUN, None)
    if run is None:
        return (yield)
    with _lease(item):
        result = yield from _measured_call(item, run)
    run.raise_held_back()
    return result


def _measured_call(item: pytest.Item, run: TestRun) -> Generator[None, object, object]:
    if not run.call_is_region:
        return (yield)
    ratchet = _session(item.config).ratchet
    if ratchet is None:
        with run.call():
            return (yield)
    ended = False
    try:
        with run.call():
            result = yield
            ended = True
    except AssertionError:
        if ended:  # the test is over and broke another budget: what it made still belongs in the baseline
            ratchet.count(run, item.stash[RATCHET])
        raise
    ratchet.judge(run, item.stash[RATCHET])
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show a broken budget as its sentence and lines, and send home what was measured."""
    report = yield
    run = item.stash.get(RUN, None)
    if run is None:
        return report  # lines that ran in it go home with the next test that is measured
    from pytest_gpusync.model.budgets import BudgetExceeded, NotMeasured

    if call.excinfo is not None and isinstance(call.excinfo.value, (BudgetExceeded, NotMeasured)):
        failure = _failure(item, call.excinfo)
        report.longrepr = failure  # type: ignore[assignment]
        report.gpusync_failure = failure.to_text()  # type: ignore[attr-defined]
    elif call.when == "call" and report.failed:
        report.sections += [("gpusync", text) for text in run.failed_verdicts()]
    if call.when == "call":
        ratchet = item.stash.get(RATCHET, None)
        # Text on the report travels home from the workers of a distributed run, whatever they pickle with.
        document = run.document()
        if ratchet is not None:
            document = document or {"environment": None, "regions": []}
            ratchet.annotate(document["regions"])
        _note_properties(item, document)
        lines = item.config.stash.get(LINES, None)
        if lines is not None:
            document = document or {"environment": None, "regions": []}
        if document is not None:
            document["ratchet"] = ratchet.document() if ratchet is not None else None
            document["lines"] = lines.take() if lines is not None else None
        report.gpusync = json.dumps(document) if document is not None else None  # type: ignore[attr-defined]
    return report


def _note_properties(item: pytest.Item, document: Document | None) -> None:
    """Give the figures of a test to pytest as its properties: they travel from workers, and stand in JUnit files."""
    from pytest_gpusync.reporting.junit import PREFIX, properties

    # A test that is run again has those of its last run.
    item.user_properties = [(name, value) for name, value in item.user_properties if not name.startswith(PREFIX)]
    if document is not None:
        item.user_properties += properties(document["environment"], document["regions"])


class _Reporter:
    """Gathers what the tests measured and reports it; in a distributed run only the controller has one."""

    def __init__(self, gpu: GpuSession) -> None:
        self._gpu = gpu

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        failure = getattr(report, "gpusync_failure", None)
        if failure is not None and isinstance(report.longrepr, str):  # as it comes from a worker
            from pytest_gpusync.reporting.failure import BudgetFailure

            report.longrepr = BudgetFailure.from_text(failure)  # type: ignore[assignment]
        if report.when == "call":
            self._gpu.failed[report.nodeid] = (report.location[0], report.location[1] or 0) if report.failed else None
        document = getattr(report, "gpusync", None)
        if document is not None:
            self._gpu.take(report.nodeid, json.loads(document))

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str) -> None:
        """Say in the reports that a worker of pytest-xdist died of a test; what it had measured of it is lost."""
        if self._gpu.options.measures_every_test:
            self._gpu.take_crash(crashitem)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker of pytest-xdist sent home when it ended; one that was killed sent nothing."""
        if self._gpu.ratchet is not None:
            self._gpu.ratchet.take_missing(getattr(node, "workeroutput", {}).get(MISSING, ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.config.option.collectonly:
            return
        self._gpu.claim_report()
        passed = session.exitstatus == pytest.ExitCode.OK
        is_interrupted = session.exitstatus == pytest.ExitCode.INTERRUPTED and self._gpu.ended is None
        if not self.finish(passed=passed, meet=not is_interrupted) and passed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def finish(self, *, passed: bool, meet: bool = True) -> bool:
        """Decide what the session as a whole must, and write its reports; False if it is to fail for that.

        Args:
            passed: what the tests made of it.
            meet: the other ranks of a distributed run are there to be met.
        """
        gpu = self._gpu
        settled = gpu.settle_baseline()
        unproven = gpu.options.require and gpu.measured_nothing
        if unproven:
            gpu.complaints.append("--gpu-require: no test ran anything on the GPU under a budget")
        united = not meet or gpu.meet_ranks(passed=passed and settled and not unproven)
        written = gpu.write_reports()
        return settled and united and written and not unproven

    def pytest_unconfigure(self) -> None:
        """Stay until the other ranks have printed what they have to say: a launcher ends all when one has failed."""
        self._gpu.leave_ranks()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self._annotate(terminalreporter)
        shown = terminalreporter.verbosity >= 0 and not terminalreporter.config.option.collectonly
        lines = self._gpu.summary() if shown else []
        if shown:
            lines += self._gpu.notes
        if not lines and not self._gpu.complaints:
            return
        terminalreporter.write_sep("=", "gpusync")
        from pytest_gpusync.reporting.terminal import fold

        for row in (row for line in lines for row in fold(line)):
            terminalreporter.write_line(row)
        for complaint in self._gpu.complaints:  # whole: other programs look for them
            terminalreporter.write_line(complaint, red=True)

    def _annotate(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print workflow commands, which GitHub reads at the beginning of a line."""
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
    if capture is not None:  # the test that does not return still has standard output
        capture.suspend()
    if terminal is not None:
        terminal.write_line("")
        reporter.pytest_terminal_summary(terminal)
        terminal.flush()


def _session(config: pytest.Config, namespace: argparse.Namespace | None = None) -> GpuSession:
    """Return the state of this session, making it from the command line in `namespace` the first time."""
    gpu = config.stash.get(SESSION, None)
    if gpu is None:
        from pytest_gpusync.plugin.session import GpuSession

        options = read_options(config, namespace if namespace is not None else config.option)
        if options.asked and options.device != "simulated":
            from pytest_gpusync.machine.gpu_lease import take_own_gpu

            take_own_gpu()
        gpu = config.stash[SESSION] = GpuSession(options, _ratchet(config, options))
        # Not in pytest_unconfigure: a configuration that was only read, and never configured, is left without it.
        config.add_cleanup(gpu.device.close)
        if options.measures_every_test or options.device == "simulated":
            gpu.device.switch_on_with_torch()
    return gpu


def _record_lines(config: pytest.Config) -> None:
    """Record from here to the end of the session which lines of the project run."""
    from pytest_gpusync.source.line_coverage import LinesRan, RecordingUnavailable

    lines = config.stash[LINES] = LinesRan()
    recording = ExitStack()
    try:
        recording.enter_context(lines.recording())
    except RecordingUnavailable as error:
        raise pytest.UsageError(f"--gpu-sync-lines: {error}") from None
    config.add_cleanup(recording.close)


def _ratchet(config: pytest.Config, options: Options) -> Ratchet | None:
    if options.baseline is None:
        return None
    from pytest_gpusync.plugin.baseline_check import Ratchet
    from pytest_gpusync.plugin.baseline_file import Folders

    folders = Folders(config.rootpath, config.invocation_params.dir)
    return Ratchet(options.baseline, folders, update=options.update_baseline)


def _find_missing_tests(session: pytest.Session, gpu: GpuSession) -> None:
    """Find the tests of the baseline that are gone; one that was only not asked for is not."""
    config = session.config
    assert gpu.ratchet is not None
    narrowed = config.stash.get(DESELECTED, False) or getattr(config.option, "lf", False)
    narrowed = narrowed or any("::" in argument for argument in config.args)
    missing = gpu.ratchet.missing_tests([item.nodeid for item in session.items], whole_files=not narrowed)
    if _is_worker(config):
        config.workeroutput[MISSING] = missing  # type: ignore[attr-defined]
    else:
        gpu.ratchet.take_missing(missing)


def _lease(item: pytest.Item) -> AbstractContextManager[None]:
    """Keep other workers off the GPU while times are taken on it, and times from being taken while others work."""
    gpu = _session(item.config).device
    if not _is_worker(item.config) or gpu.missing is not None:
        return nullcontext()
    from pytest_gpusync.machine.gpu_lease import lease

    return lease(gpu.found.uuid, exclusive=not TIMING_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())))


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _uses_gpu(item: pytest.Item) -> bool:
    """Tell whether a test itself asks to be measured."""
    if not GPU_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        return True
    if item.get_closest_marker(GROWTH_MARKER) is not None:
        return True
    try:
        marked = marker_budget(item)
    except MarkerError:  # said when the test is set up
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
    """Return the innermost line of the user's that led to the failure; None for a budget on the test as a whole."""
    for entry in reversed(excinfo.traceback):
        path = Path(entry.path)
        inside = path == item.path or item.config.rootpath in path.parents
        if inside and _PACKAGE_FOLDER not in path.parents and "site-packages" not in path.parts:
            return os.path.relpath(path, item.config.invocation_params.dir), entry.lineno + 1
    return None
