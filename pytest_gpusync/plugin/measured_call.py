"""Measures the call of a test, while it holds the GPU."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from pytest_gpusync.plugin.current_session import begin_session, is_worker
from pytest_gpusync.plugin.messages import escaped, fail
from pytest_gpusync.plugin.options import TIMING_FIXTURES
from pytest_gpusync.plugin.repetitions import repetitions_are_steps
from pytest_gpusync.plugin.stash_keys import BASELINE_RESULT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    import pytest

    from pytest_gpusync.plugin.measured_test import MeasuredTest


@contextmanager
def measured_call(item: pytest.Item, run: MeasuredTest) -> Iterator[None]:
    """Measure what runs in a ``with`` block as the call of the test."""
    __tracebackhide__ = True
    if not run.call_is_region:
        yield
        return
    baseline = begin_session(item.config).baseline
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
def measured_method(item: pytest.Item, run: MeasuredTest, case: Any) -> Iterator[None]:
    """Measure the test method that a ``unittest.TestCase`` calls within a ``with`` block, without its ``setUp()`` and
    ``tearDown()``.

    A broken budget is then a failure of the method, which ``unittest.expectedFailure`` expects.
    """
    call = case._callTestMethod

    def call_measured(*arguments: Any) -> Any:
        __tracebackhide__ = True
        run.close_fixtures()
        try:
            with measured_call(item, run):
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


def leased(item: pytest.Item) -> AbstractContextManager[None]:
    """Lock the GPU: exclusively for tests that take times on it, shared for the others."""
    if not is_worker(item.config):
        return nullcontext()
    device = begin_session(item.config).device
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
            fail(refusal)
        yield


def _announce(item: pytest.Item, message: str) -> None:
    """Show a line at once, although the output of the test is captured; a worker's goes to standard error."""
    capture: Any = item.config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
        print(escaped(f"gpusync: {item.nodeid}: {message}"), file=sys.stderr, flush=True)
