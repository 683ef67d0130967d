"""pytest hooks. They do nothing unless an option, a marker or a fixture of this plugin is used.

Every start of pytest imports this module, in projects that never use a GPU too. So it imports nothing but pytest and
:mod:`~pytest_gpusync.plugin.options`; a hook imports what it needs. The state of the session, :class:`GpuSession`, is
made when something is used, and the hooks return at once while there is none.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

from pytest_gpusync.plugin.options import (
    BUDGET_MARKER,
    COUNTING_FIXTURES,
    GPU_FIXTURES,
    GPU_ONLY_MARKER,
    GROWTH_MARKER,
    MARKERS,
    TIMING_FIXTURES,
    add_options,
    any_setting,
)
from pytest_gpusync.plugin.stash_keys import (
    BASELINE_RESULT,
    DESELECTED,
    LINE_COVERAGE,
    MEASURED_TEST,
    PREPARED,
    SESSION,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Generator, Iterator, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpusync.model.document import Document
    from pytest_gpusync.plugin.baseline_check import BaselineCheck
    from pytest_gpusync.plugin.fixtures import GpuCapture, GpuElapsed, GpuMemory, GpuSync
    from pytest_gpusync.plugin.inference import GpuInfer
    from pytest_gpusync.plugin.measured_test import MeasuredTest
    from pytest_gpusync.plugin.options import Options
    from pytest_gpusync.plugin.session import GpuSession
    from pytest_gpusync.plugin.training import GpuTrain
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
    _prepare_device(early_config, early_config.known_args_namespace)


def _prepare_device(config: pytest.Config, namespace: argparse.Namespace) -> None:
    """Let the simulated device be switched on when torch is imported, if the settings or the tests ask for it. Their
    source is read only then.
    """
    config.stash[PREPARED] = True
    gpu = _begin_session(config, namespace) if any_setting(config, namespace) else None
    if gpu is not None and (gpu.options.measures_every_test or gpu.options.device == "simulated"):
        gpu.device.switch_on_with_torch()
        return

    def torch_imported() -> None:
        if _tree_asks_to_be_measured(config):
            _begin_session(config, namespace).device.switch_on()

    if "torch" in sys.modules:
        torch_imported()
        return
    from pytest_gpusync.machine.import_hooks import AfterImport

    finder = AfterImport("torch", torch_imported)
    sys.meta_path.insert(0, finder)
    config.add_cleanup(finder.remove)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers, and the reporter in the process that draws reports."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    if not config.stash.get(PREPARED, False):  # a conftest has loaded the plugin
        _prepare_device(config, config.option)
    gpu = _session(config)
    if gpu is not None and gpu.options.lines and not config.option.collectonly:
        _record_lines(config)
    if not _is_worker(config):
        config.pluginmanager.register(_Reporter(config), "gpusync-reporter")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse options that cannot work, in one line, before any test runs."""
    gpu = _session(session.config)
    if gpu is not None and not session.config.option.collectonly and not _is_worker(session.config):
        gpu.check()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Report what steps run on, if any option was given."""
    gpu = _session(config)
    if gpu is None or not gpu.options.any_given:
        return None
    workers = getattr(config.option, "numprocesses", None)
    return _escaped(gpu.header(workers if isinstance(workers, int) else 0))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that need a real GPU if there is none."""
    for item in items:
        if item.get_closest_marker(GPU_ONLY_MARKER) is None:
            continue
        missing = _begin_session(config).device.no_gpu_reason
        if missing is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs a real GPU: {missing}"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Switch the simulated device on if any test asks to be measured, for all tests of the session."""
    config = session.config
    if config.option.collectonly:
        return
    asking = next((item for item in session.items if _uses_gpu(item)), None)
    gpu = _session(config) if asking is None else _begin_session(config)
    if gpu is None:
        return
    if asking is not None:
        gpu.measures = True
        if gpu.device.is_late:
            raise pytest.UsageError(_escaped(_too_late(asking.nodeid)))
        gpu.device.switch_on()
    if gpu.measures:  # now, because the set-up of a test may have a time limit
        import_module("pytest_gpusync.plugin.measured_test")
    if gpu.baseline is not None:
        _find_missing_tests(session, gpu)
    if _is_worker(config):
        return
    if gpu.device.unavailable is not None and gpu.options.must_measure:
        raise pytest.UsageError(_escaped(f"nothing can be measured here: {gpu.device.unavailable}"))
    gpu.watch_ranks(lambda: _finish_without_the_test(config))


def _too_late(nodeid: str) -> str:
    return (
        f"{nodeid} asks to be measured, which could not be seen before torch was imported: modules that "
        "chose their device at import run on the CPU. Add --gpu-device=simulated, or gpu_device = simulated to "
        "the ini file"
    )


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Remember that tests were deselected from collected files."""
    for item in items[:1]:
        item.config.stash[DESELECTED] = True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Decide what is measured of a test, and record what its set-up does, which no budget counts."""
    run = _prepare(item)
    if run is None:
        return (yield)
    run.open_fixtures()
    try:
        return (yield)
    finally:
        run.close_fixtures()


def _prepare(item: pytest.Item) -> MeasuredTest | None:
    """Return what is measured of a test; None if it is not measured. Its marker may be invalid, which fails it."""
    gpu = _session(item.config)
    if gpu is None or not (gpu.options.measures_every_test or _uses_gpu(item)):
        return None
    return _begin_test(item, gpu)


def _begin_test(item: pytest.Item, gpu: GpuSession) -> MeasuredTest:
    """Decide what is measured of a test, and return where it is kept."""
    from pytest_gpusync.plugin.measured_test import MeasuredTest
    from pytest_gpusync.plugin.options import MarkerError, marker_budget, marker_growth, marker_ignores_races
    from pytest_gpusync.reporting.terminal import LINES_SHOWN

    refusal = None
    try:
        marked, growth, ignores_races = marker_budget(item), marker_growth(item), marker_ignores_races(item)
    except MarkerError as error:
        refusal = f"{item.nodeid}: {error}"
    if refusal is not None:
        _fail(refusal)
    is_marked = (marked is not None and marked.budget is not None) or growth is not None
    run = item.stash[MEASURED_TEST] = MeasuredTest(
        item.nodeid,
        gpu.device,
        budget=marked.budget if marked is not None else gpu.options.budget,
        growth=growth if growth is not None else gpu.options.growth,
        warmup=marked.warmup if marked is not None and marked.warmup is not None else gpu.options.warmup,
        step_on=marked.step_on if marked is not None and marked.step_on is not None else gpu.options.step_at,
        marked=is_marked,
        growth_marked=growth is not None,
        must_measure=is_marked or gpu.options.must_measure,
        must_decide=gpu.options.require_measured,
        must_time=gpu.options.require,
        call_is_region=is_marked or gpu.options.measures_every_test,
        defers_failure=gpu.rank is not None,
        all_threads=gpu.options.all_threads,
        races="report" if ignores_races and gpu.options.races == "fail" else gpu.options.races,
        has_baseline=gpu.baseline is not None,
        names_fixtures=is_marked
        or gpu.options.measures_every_test
        or not COUNTING_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())),
        limit=LINES_SHOWN if item.config.option.verbose <= 0 else None,
    )
    if gpu.baseline is not None:
        from pytest_gpusync.plugin.baseline_check import BaselineResult

        item.stash[BASELINE_RESULT] = BaselineResult()
    return run


@pytest.fixture
def gpu_sync(request: pytest.FixtureRequest) -> GpuSync:
    """Count the syncs of a part of a test: gpu_sync.budget(max=0), gpu_sync.record(), gpu_sync.allow(reason)."""
    from pytest_gpusync.plugin.fixtures import GpuSync

    return GpuSync(_measured_test(request))


@pytest.fixture(scope="module")
def gpu_sync_module(request: pytest.FixtureRequest) -> GpuSync:
    """As gpu_sync, for fixtures of a module or class: records what several tests share, such as one training."""
    from pytest_gpusync.plugin.fixtures import GpuSync
    from pytest_gpusync.plugin.measured_test import MeasuredTest

    gpu = _begin_session(request.config)
    gpu.measures = True
    run = MeasuredTest(
        request.node.nodeid, gpu.device, must_decide=gpu.options.require_measured, all_threads=gpu.options.all_threads
    )
    request.node.stash[MEASURED_TEST] = run
    run.device.switch_on()
    return GpuSync(run)


@pytest.fixture
def gpu_train(request: pytest.FixtureRequest) -> GpuTrain:
    """Run real training steps and count their syncs: gpu_train(step, batches, steps=20).assert_syncs(max=1)."""
    from pytest_gpusync.plugin.progress import progress_of
    from pytest_gpusync.plugin.training import GpuTrain

    return GpuTrain(_measured_test(request), progress_of(request.config))


@pytest.fixture
def gpu_infer(request: pytest.FixtureRequest) -> GpuInfer:
    """Answer real requests and count their syncs: gpu_infer(model, requests, steps=20).assert_syncs(max=1)."""
    from pytest_gpusync.plugin.inference import GpuInfer
    from pytest_gpusync.plugin.progress import progress_of

    return GpuInfer(_measured_test(request), progress_of(request.config))


@pytest.fixture
def gpu_memory(request: pytest.FixtureRequest) -> GpuMemory:
    """Limit the growth of GPU memory per step: gpu_memory.budget(max="1 MiB"), gpu_memory.record()."""
    from pytest_gpusync.plugin.fixtures import GpuMemory

    return GpuMemory(_measured_test(request))


@pytest.fixture
def gpu_elapsed(request: pytest.FixtureRequest) -> GpuElapsed:
    """Compare elapsed times on a real GPU: gpu_elapsed.ratio(with_item, without_item).low > 1.0."""
    from pytest_gpusync.plugin.fixtures import GpuElapsed

    return GpuElapsed(_measured_test(request))


@pytest.fixture
def gpu_capture(request: pytest.FixtureRequest) -> GpuCapture:
    """Check that a step can be captured as a CUDA graph: gpu_capture.assert_capturable(step, batch)."""
    from pytest_gpusync.plugin.fixtures import GpuCapture

    return GpuCapture(_measured_test(request))


def _measured_test(request: pytest.FixtureRequest) -> MeasuredTest:
    """Return the measurements of the test that requests a fixture."""
    gpu = _begin_session(request.config)
    run: MeasuredTest | None = request.node.stash.get(MEASURED_TEST, None)
    if run is None:  # requested with getfixturevalue(), or by a doctest
        if gpu.device.is_late:
            _fail(_too_late(request.node.nodeid))
        gpu.measures = True
        run = _begin_test(request.node, gpu)
    run.device.switch_on()
    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Record what the tear-down of a test does, which no budget counts."""
    run = item.stash.get(MEASURED_TEST, None)
    if run is None:
        return (yield)
    run.begin_tear_down()
    try:
        return (yield)
    finally:
        run.close_fixtures()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep what was measured of an interrupted test, for which pytest makes no report."""
    gpu = _session(item.config)
    if gpu is not None:
        gpu.enter_test(item.nodeid)
    try:
        return (yield)
    except (KeyboardInterrupt, pytest.exit.Exception):
        run = item.stash.get(MEASURED_TEST, None)
        document = run.document() if run is not None else None
        if document is not None:
            _begin_session(item.config).take_interrupted(item.nodeid, document)
        raise


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Measure the call of a test, without its setup and teardown."""
    # The last wrapper is the innermost one: the hooks of other plugins are not measured.
    run = item.stash.get(MEASURED_TEST, None)
    if run is None:
        return (yield)
    instance = getattr(item, "instance", None)
    is_unittest = hasattr(instance, "_callTestMethod")
    with _lease(item), _measured_method(item, run, instance) if is_unittest else _measured_call(item, run):
        result = yield
    run.raise_deferred_failure()
    return result


@contextmanager
def _measured_call(item: pytest.Item, run: MeasuredTest) -> Iterator[None]:
    """Measure what runs in a ``with`` block as the call of the test."""
    __tracebackhide__ = True
    if not run.call_is_region:
        yield
        return
    from pytest_gpusync.plugin.repetitions import repetitions_are_steps

    baseline = _begin_session(item.config).baseline
    if baseline is None:
        with run.call(), repetitions_are_steps(item, run.end_step):
            yield
        return
    ended = False
    try:
        with run.call(), repetitions_are_steps(item, run.end_step):
            yield
            ended = True
    except AssertionError:
        if ended:  # the test has ended and broke another budget: its syncs still belong in the baseline
            baseline.count(run, item.stash[BASELINE_RESULT])
        raise
    baseline.judge(run, item.stash[BASELINE_RESULT])


@contextmanager
def _measured_method(item: pytest.Item, run: MeasuredTest, case: Any) -> Iterator[None]:
    """Measure the test method that a ``unittest.TestCase`` calls within a ``with`` block, without its ``setUp()`` and
    ``tearDown()``.

    A broken budget is then a failure of the method, which ``unittest.expectedFailure`` expects.
    """
    call = case._callTestMethod

    def call_measured(*arguments: Any) -> Any:
        __tracebackhide__ = True
        run.close_fixtures()
        try:
            with _measured_call(item, run):
                return call(*arguments)
        finally:
            run.open_fixtures()

    case._callTestMethod = call_measured
    run.open_fixtures()
    try:
        yield
    finally:
        run.close_fixtures()
        del case._callTestMethod


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
    if call.when == "call" or (call.when == "setup" and report.failed):
        baseline = item.stash.get(BASELINE_RESULT, None)
        # Text on the report arrives from workers of a distributed run, whatever serializer they use.
        document = _with_shared(item, run.document())
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
    elif call.when == "teardown":
        tear_down = run.tear_down_document()
        report.gpusync_tear_down = json.dumps(tear_down) if tear_down is not None else None  # type: ignore[attr-defined]
    return report


def _with_shared(item: pytest.Item, document: Document | None) -> Document | None:
    """Add the regions of the test's module that were not sent yet: the first test that is reported sends them."""
    for node in item.listchain()[:-1]:
        shared = node.stash.get(MEASURED_TEST, None)
        found = shared.document() if shared is not None else None
        if shared is None or found is None:
            continue
        shared.records.clear()
        document = document or {"environment": None, "regions": []}
        document["environment"] = document["environment"] or found["environment"]
        document["regions"] += found["regions"]
    return document


def _note_properties(item: pytest.Item, document: Document | None) -> None:
    """Add a test's measurements to its properties, which are sent from workers and written to JUnit files."""
    from pytest_gpusync.reporting.junit import PREFIX, properties

    # A test that is run again keeps the properties of its last run.
    item.user_properties = [(name, value) for name, value in item.user_properties if not name.startswith(PREFIX)]
    if document is not None:
        item.user_properties += properties(document["environment"], document["regions"])


class _Reporter:
    """Collects what the tests measured and reports it; in a distributed run only the controller has one."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._without_result: dict[str, None] | None = None
        """The tests that pytest-xdist has collected and that have no result yet; None before that."""

    @property
    def _gpu(self) -> GpuSession | None:
        return _session(self._config)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._without_result:
            self._without_result.pop(report.nodeid, None)
        failure = getattr(report, "gpusync_failure", None)
        if failure is not None and isinstance(report.longrepr, str):  # as received from a worker
            from pytest_gpusync.reporting.failure import BudgetFailure

            report.longrepr = BudgetFailure.from_text(failure)  # type: ignore[assignment]
        document = getattr(report, "gpusync", None)
        tear_down = getattr(report, "gpusync_tear_down", None)
        # The first measured test of a worker begins the session of a controller without options.
        gpu = self._gpu if document is None and tear_down is None else _begin_session(self._config)
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
            self._gpu.baseline.take_missing(getattr(node, "workeroutput", {}).get(MISSING, ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
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
        gpu = _begin_session(self._config)
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

        for row in (row for line in lines for row in wrap_line(_escaped(line))):
            terminalreporter.write_line(row)
        for error in gpu.errors:  # unbroken: other programs search for them
            terminalreporter.write_line(_escaped(error), red=True)

    def _annotate(self, terminalreporter: pytest.TerminalReporter, gpu: GpuSession) -> None:
        """Print workflow commands, which GitHub reads at the start of a line."""
        config = terminalreporter.config
        found = gpu.annotations(config.invocation_params.dir, config.rootpath)
        if found:
            terminalreporter.ensure_newline()
        for command in found:
            terminalreporter.write_line(command)


def _finish_without_the_test(config: pytest.Config) -> None:
    """Report for a rank whose test does not return, from another thread than the test's."""
    gpu = _begin_session(config)
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


def _session(config: pytest.Config) -> GpuSession | None:
    """Return the state of this session; None as long as nothing of the plugin is used."""
    return config.stash.get(SESSION, None)


def _begin_session(config: pytest.Config, namespace: argparse.Namespace | None = None) -> GpuSession:
    """Return the state of this session; the first call makes it, from the command line in `namespace`."""
    gpu = config.stash.get(SESSION, None)
    if gpu is None:
        from pytest_gpusync.plugin.options import read_options
        from pytest_gpusync.plugin.session import GpuSession

        try:
            options = read_options(config, namespace if namespace is not None else config.option)
            baseline = _baseline_check(config, options)
        except pytest.UsageError as error:  # it quotes the ini file, which may be a stranger's
            raise pytest.UsageError(*map(_escaped, error.args)) from None
        if options.any_given and options.device != "simulated":
            from pytest_gpusync.machine.gpu_lease import take_own_gpu

            take_own_gpu()
        gpu = config.stash[SESSION] = GpuSession(options, baseline)
        # Not in pytest_unconfigure, which does not run for a configuration that was read but never configured.
        config.add_cleanup(gpu.device.close)
    return gpu


def _tree_asks_to_be_measured(config: pytest.Config) -> bool:
    """Return whether the tests that this session may collect use a marker or a fixture of the plugin, by their
    source.
    """
    from pytest_gpusync.plugin.usage_scan import UsageScan

    if not GPU_FIXTURES.isdisjoint(config.getini("usefixtures")):
        return True
    scan = UsageScan((BUDGET_MARKER, GROWTH_MARKER), GPU_FIXTURES, config.getini("python_functions"))
    return scan.finds_use(_collected_paths(config), config.rootpath, config.getini("norecursedirs"))


def _collected_paths(config: pytest.Config) -> list[Path]:
    """Return the files and folders that pytest collects from. Before it has read its arguments itself, as it does."""
    invoked, root = config.invocation_params.dir, config.rootpath
    given = getattr(config.known_args_namespace, "file_or_dir", None) or []
    if given:
        names = [argument.partition("::")[0].partition("[")[0] for argument in given]
        paths = [invoked / name for name in names]
        if getattr(config.known_args_namespace, "pyargs", False):
            paths += [Path(place) for name in names for place in _places_of_package(name)]
        return [path for path in paths if path.exists()]
    if invoked == root:
        found = [path for pattern in config.getini("testpaths") for path in sorted(root.glob(pattern))]
        if found:
            return found
    return [invoked]


def _places_of_package(name: str) -> list[str]:
    from importlib.util import find_spec

    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    return list(spec.submodule_search_locations or ([spec.origin] if spec.origin else []))


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
    from pytest_gpusync.reporting.baseline_file import Folders

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
    if not _is_worker(item.config):
        return nullcontext()
    device = _begin_session(item.config).device
    if device.no_gpu_reason is not None:
        return nullcontext()
    return _leased(item, device.found.uuid)


@contextmanager
def _leased(item: pytest.Item, gpu: str | None) -> Iterator[None]:
    from pytest_gpusync.machine.gpu_lease import LeaseUnavailable, lease

    exclusive = not TIMING_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    with ExitStack() as stack:
        refusal = None
        try:
            stack.enter_context(lease(gpu, exclusive=exclusive, announce=lambda said: _announce(item, said)))
        except LeaseUnavailable as error:
            refusal = str(error)
        if refusal is not None:
            _fail(refusal)
        yield


def _announce(item: pytest.Item, message: str) -> None:
    """Show a line at once, although the output of the test is captured; a worker's goes to standard error."""
    capture: Any = item.config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
        print(_escaped(f"gpusync: {item.nodeid}: {message}"), file=sys.stderr, flush=True)


def _escaped(text: str) -> str:
    """Return text that may contain what others have written, such as names and reasons, as one harmless line."""
    from gpusync_lint.escaping import escaped

    return escaped(text)


def _fail(message: str) -> NoReturn:
    """Fail the test with a message instead of a traceback."""
    pytest.fail(_escaped(message), pytrace=False)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _uses_gpu(item: pytest.Item) -> bool:
    """Return whether a test itself asks to be measured."""
    if not GPU_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        return True
    if item.get_closest_marker(GROWTH_MARKER) is not None:
        return True
    if item.get_closest_marker(BUDGET_MARKER) is None:
        return False
    from pytest_gpusync.plugin.options import MarkerError, marker_budget

    try:
        marked = marker_budget(item)
    except MarkerError:  # reported when the test is set up
        return True
    return marked is not None and marked.budget is not None


def _failure(item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException]) -> BudgetFailure:
    from pytest_gpusync.reporting.failure import BudgetFailure, Place

    text = "\n".join(map(_escaped, str(excinfo.value).split("\n")))
    place = _place_in_test(item, excinfo)
    path, line = place if place is not None else (item.location[0], (item.location[1] or 0) + 1)
    path = _escaped(path)
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
