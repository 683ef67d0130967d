"""Decides what is measured of a test, from its markers and fixtures and the options of the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpusync.plugin.current_session import begin_session
from pytest_gpusync.plugin.measured_test import MeasuredTest
from pytest_gpusync.plugin.messages import fail, too_late
from pytest_gpusync.plugin.options import (
    COUNTING_FIXTURES,
    MarkerError,
    marker_budget,
    marker_growth,
    marker_ignores_races,
)
from pytest_gpusync.plugin.stash_keys import BASELINE_RESULT, MEASURED_TEST
from pytest_gpusync.reporting.terminal import LINES_SHOWN

if TYPE_CHECKING:
    import pytest

    from pytest_gpusync.plugin.session import GpuSession


def begin_test(item: pytest.Item, gpu: GpuSession) -> MeasuredTest:
    """Decide what is measured of a test, and return where it is kept."""
    refusal = None
    try:
        marked, growth, ignores_races = marker_budget(item), marker_growth(item), marker_ignores_races(item)
    except MarkerError as error:
        refusal = f"{item.nodeid}: {error}"
    if refusal is not None:
        fail(refusal)
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


def measured_test_for(request: pytest.FixtureRequest) -> MeasuredTest:
    """Return the measurements of the test that requests a fixture."""
    gpu = begin_session(request.config)
    run: MeasuredTest | None = request.node.stash.get(MEASURED_TEST, None)
    if run is None:  # requested with getfixturevalue(), or by a doctest
        if gpu.device.is_late:
            fail(too_late(request.node.nodeid))
        gpu.measures = True
        run = begin_test(request.node, gpu)
    run.device.switch_on()
    return run
