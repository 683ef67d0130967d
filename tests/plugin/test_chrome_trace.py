"""The Chrome trace of a run: what Perfetto reads of it, and that times are told where they were taken only."""

from __future__ import annotations

import json

import pytest
from measurements import H200, SIMULATED, stepped, sync, whole

from pytest_gpusync.model.measurement import RegionTimes
from pytest_gpusync.reporting.chrome_trace import UNIT_US
from pytest_gpusync.reporting.files import render
from pytest_gpusync.reporting.run_file import region_document, run_document, unmeasured_document

MS = 10**6


def trace(*measurements, environment=H200):
    document = run_document(environment, [region_document(one) for one in measurements])
    return json.loads(render(document, ".trace.json"))


def slices(document, category):
    return [event for event in document["traceEvents"] if event["ph"] == "X" and event["cat"] == category]


TIMED = stepped(
    [0, 0],
    name="train.py",
    extra=(
        sync(0, began_ns=1 * MS, blocked_ns=2 * MS, direction="D2H"),
        sync(1, line=2, began_ns=5 * MS, blocked_ns=MS, background=True, thread="loader"),
    ),
    times=RegionTimes((4 * MS, 7 * MS), 9 * MS),
)
UNTIMED = stepped([2, 1], name="train.py")


@pytest.mark.parametrize("measurement", [TIMED, UNTIMED, whole(sync(via='a"b\n'), name="<a> é")])
def test_every_event_has_what_the_format_asks_for(measurement):
    document = trace(measurement)
    assert isinstance(document["traceEvents"], list)
    for event in document["traceEvents"]:
        assert event["ph"] in ("M", "X", "i")
        assert (isinstance(event["name"], str), type(event["pid"]), type(event["tid"])) == (True, int, int)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")


@pytest.mark.parametrize("measurement", [TIMED, UNTIMED])
def test_every_track_has_a_name(measurement):
    events = trace(measurement)["traceEvents"]
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"} <= named


def test_waits_lie_in_microseconds_where_they_were():
    assert [(event["ts"], event["dur"]) for event in slices(trace(TIMED), "sync")] == [(1000, 2000), (5000, 1000)]


def test_each_thread_has_a_track():
    assert len({event["tid"] for event in slices(trace(TIMED), "sync")}) == 2


def test_no_track_has_a_number_that_another_has_or_that_stands_for_a_process():
    # Perfetto takes a track without a number, or with 0, for the one that is numbered as its process.
    events = trace(TIMED, UNTIMED)["traceEvents"]
    tracks = {(event["pid"], event["tid"]) for event in events}
    numbers = [track for _, track in tracks]
    assert len(set(numbers)) == len(numbers)
    assert set(numbers).isdisjoint({0, *(process for process, _ in tracks)})


def test_steps_lie_one_after_the_other_and_warm_up_is_marked():
    document = trace(TIMED)
    assert [(event["name"], event["ts"], event["dur"]) for event in slices(document, "warm-up")] == [
        ("step 0", 0, 4000)
    ]
    assert [(event["name"], event["ts"], event["dur"]) for event in slices(document, "step")] == [
        ("step 1", 4000, 3000),
        ("after the last step", 7000, 2000),
    ]


def test_syncs_that_were_not_timed_stand_in_order_and_the_region_says_so():
    document = trace(UNTIMED, environment=SIMULATED)
    assert [event["ts"] for event in slices(document, "sync")] == [0, UNIT_US, 2 * UNIT_US]
    assert document["traceEvents"][0]["args"]["name"] == "train.py (not timed: the order of the syncs)"


def test_each_region_is_a_process():
    assert {event["pid"] for event in trace(TIMED, UNTIMED)["traceEvents"]} == {1, 2}


def test_the_rule_and_the_reason_of_a_wait_are_with_it():
    [event] = slices(trace(whole(sync(allowed="early stop", via="x.py:3 f"))), "sync")
    assert event["args"]["allowed"] == "early stop"
    assert event["args"]["via"] == "x.py:3 f"


def test_syncs_that_are_not_listed_are_counted():
    document = run_document(H200, [region_document(TIMED)])
    document["regions"][0]["order"]["left_out"] = 3
    events = json.loads(render(document, ".trace.json"))["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "i"] == ["3 later syncs are not listed"]


def test_a_region_that_was_not_measured_leaves_a_valid_trace():
    document = run_document(None, [unmeasured_document("t", "no recorder")])
    assert json.loads(render(document, ".trace.json"))["traceEvents"] == []
