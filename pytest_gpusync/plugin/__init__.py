"""The pytest hooks. They do nothing unless an option, a marker or a fixture of this plugin is used.

Every start of pytest imports this module, in projects that never use a GPU too. So what it imports loads nothing but
pytest; a hook imports what it needs. The state of the session, :class:`GpuSession`, is made when something is used, and
the hooks return at once while there is none.
"""

from __future__ import annotations

from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from pytest_gpusync.plugin import reporter
from pytest_gpusync.plugin.current_session import begin_session, is_worker, prepare_device, session_of
from pytest_gpusync.plugin.fixture_functions import (
    gpu_capture,
    gpu_elapsed,
    gpu_infer,
    gpu_memory,
    gpu_sync,
    gpu_sync_module,
    gpu_train,
)
from pytest_gpusync.plugin.messages import escaped, too_late
from pytest_gpusync.plugin.options import GPU_ONLY_MARKER, MARKERS, add_options, uses_gpu
from pytest_gpusync.plugin.stash_keys import DESELECTED, LINE_COVERAGE, MEASURED_TEST, PREPARED

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from pytest_gpusync.plugin.measured_test import MeasuredTest

__all__ = ["gpu_capture", "gpu_elapsed", "gpu_infer", "gpu_memory", "gpu_sync", "gpu_sync_module", "gpu_train"]
"""pytest finds fixtures among the names of a plugin."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register options and ini keys."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Prepare the simulated device before the first conftest is imported: it may ask torch whether there is a GPU."""
    early_config.stash[PREPARED] = True
    prepare_device(early_config, early_config.known_args_namespace)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers, and the reporter in the process that draws reports."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    if not config.stash.get(PREPARED, False):  # a conftest has loaded the plugin
        prepare_device(config, config.option)
    gpu = session_of(config)
    if gpu is not None and gpu.options.lines and not config.option.collectonly:
        _record_lines(config)
    if not is_worker(config):
        config.pluginmanager.register(reporter.Reporter(config), reporter.NAME)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse options that cannot work, in one line, before any test runs."""
    gpu = session_of(session.config)
    if gpu is not None and not session.config.option.collectonly and not is_worker(session.config):
        gpu.check()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Report what steps run on, if any option was given."""
    gpu = session_of(config)
    if gpu is None or not gpu.options.any_given:
        return None
    workers = getattr(config.option, "numprocesses", None)
    return escaped(gpu.header(workers if isinstance(workers, int) else 0))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that need a real GPU if there is none."""
    for item in items:
        if item.get_closest_marker(GPU_ONLY_MARKER) is None:
            continue
        missing = begin_session(config).device.no_gpu_reason
        if missing is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs a real GPU: {missing}"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Switch the simulated device on if any test asks to be measured, for all tests of the session."""
    config = session.config
    if config.option.collectonly:
        return
    asking = next((item for item in session.items if uses_gpu(item)), None)
    gpu = session_of(config) if asking is None else begin_session(config)
    if gpu is None:
        return
    if asking is not None:
        gpu.measures = True
        if gpu.device.is_late:
            raise pytest.UsageError(escaped(too_late(asking.nodeid)))
        gpu.device.switch_on()
    if gpu.measures:  # now, because the set-up of a test may have a time limit
        import_module("pytest_gpusync.plugin.measured_items")
    if gpu.baseline is not None:
        reporter.find_missing_tests(session, gpu)
    if is_worker(config):
        return
    if gpu.device.unavailable is not None and gpu.options.must_measure:
        raise pytest.UsageError(escaped(f"nothing can be measured here: {gpu.device.unavailable}"))
    gpu.watch_ranks(lambda: reporter.finish_without_the_test(config))


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
    gpu = session_of(item.config)
    if gpu is None or not (gpu.options.measures_every_test or uses_gpu(item)):
        return None
    from pytest_gpusync.plugin.measured_items import begin_test

    return begin_test(item, gpu)


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
    gpu = session_of(item.config)
    if gpu is not None:
        gpu.enter_test(item.nodeid)
    try:
        return (yield)
    except (KeyboardInterrupt, pytest.exit.Exception):
        run = item.stash.get(MEASURED_TEST, None)
        document = run.document() if run is not None else None
        if document is not None:
            begin_session(item.config).take_interrupted(item.nodeid, document)
        raise


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Measure the call of a test, without its setup and teardown."""
    # The last wrapper is the innermost one: the hooks of other plugins are not measured.
    run = item.stash.get(MEASURED_TEST, None)
    if run is None:
        return (yield)
    from pytest_gpusync.plugin.measured_call import leased, measured_call, measured_method

    instance = getattr(item, "instance", None)
    is_unittest = hasattr(instance, "_callTestMethod")
    with leased(item), measured_method(item, run, instance) if is_unittest else measured_call(item, run):
        result = yield
    run.raise_deferred_failure()
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
    from pytest_gpusync.plugin.report_attachments import attach

    attach(item, call, report, run)
    return report


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
