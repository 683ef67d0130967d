"""What is concluded from elapsed times: the parts of a step, and overlap. The times are made up."""

from __future__ import annotations

from math import inf

import pytest

from pytest_gpusync.elapsed.decomposition import Decomposition
from pytest_gpusync.elapsed.overlap import Triple, overlap_of
from pytest_gpusync.model.measurement import Disturbance

QUIET = Disturbance(None, invalidates=False)


@pytest.mark.parametrize(
    ("dispatch", "device", "end"),
    [
        pytest.param(0.1, 2.0, 0.1 + 10 * 2.0 + 0.5, id="the device is slower"),
        pytest.param(2.0, 0.1, 10 * 2.0 + 0.1 + 0.5, id="the host is slower"),
    ],
)
def test_with_one_read_at_the_end_the_slower_side_sets_the_pace(dispatch, device, end):
    parts = Decomposition(10, dispatch, device, read_ms=0.5, each_ms=0.0, end_ms=0.0)
    assert parts.end_predicted_ms == pytest.approx(end)


def test_with_a_read_in_each_step_nothing_overlaps():
    assert Decomposition(10, 0.1, 2.0, 0.5, each_ms=0.0, end_ms=0.0).each_predicted_ms == pytest.approx(26.0)


def test_the_parts_are_told_beside_what_was_predicted():
    parts = Decomposition(100, 0.1, 0.2, 0.05, each_ms=36.0, end_ms=20.4, note="the GPU was at its power limit")
    assert repr(parts) == (
        "dispatch 0.1 ms, device 0.2 ms, read 0.05 ms; 100 steps with a read in each: 36 ms (35 predicted), "
        "with one at the end: 20.4 ms (20.15 predicted); the GPU was at its power limit"
    )


@pytest.mark.parametrize(
    ("both", "overlap"),
    [
        pytest.param(3.0, 0.0, id="one after the other"),
        pytest.param(2.0, 1.0, id="the shorter costs nothing"),
        pytest.param(2.5, 0.5, id="half of it"),
        pytest.param(3.5, -0.5, id="in each other's way"),
    ],
)
def test_overlap_is_the_part_of_the_shorter_that_costs_no_time(both, overlap):
    found = overlap_of([Triple(2.0, 1.0, both)] * 12, 0.1, QUIET)
    assert (found.value, found.low, found.high, found.outcome) == (overlap, overlap, overlap, "measured")


def test_a_wide_interval_is_too_noisy_to_tell():
    found = overlap_of([Triple(2.0, 1.0, 2.0 + step / 12) for step in range(12)], 0.1, QUIET)
    assert found.outcome == "too noisy to tell"
    assert found.low < 0.5 < found.high


def test_a_disturbed_machine_claims_nothing():
    found = overlap_of([Triple(2.0, 1.0, 2.5)] * 12, 0.1, Disturbance("the GPU was throttled", invalidates=True))
    assert (found.low, found.high, found.outcome) == (-inf, inf, "too noisy to tell")
    assert repr(found).endswith("; the GPU was throttled")
