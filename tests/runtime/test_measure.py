"""Regions, steps, warm-up, allow regions, nesting and the self-check, on a scripted recorder."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest
from forked import in_forked_child

from pytest_gpusync.machine import devices
from pytest_gpusync.measure import recording
from pytest_gpusync.measure.recording import allow
from pytest_gpusync.measure.region import record
from pytest_gpusync.model.measurement import MeasurementError
from pytest_gpusync.model.site_counts import site_counts, syncs_per_step


def test_a_region_without_steps_is_one_step(scripted):
    with record() as seen:
        scripted.sync()
        scripted.sync()
    assert (seen.syncs, seen.steps, syncs_per_step(seen.result())) == (2, 1, [2])
    assert seen.result().step_source == "whole region"


def test_the_site_is_the_line_that_synced(scripted):
    with record() as seen:
        scripted.sync()
    (site,) = seen.sites
    assert site.site.path.endswith("tests/runtime/test_measure.py")
    assert site.site.function.endswith("test_the_site_is_the_line_that_synced")
    assert site.site.via is None


def test_marked_steps_hold_the_syncs_before_their_mark(scripted):
    with record(warmup=0) as seen:
        for syncs in (3, 1, 0):
            for _ in range(syncs):
                scripted.sync()
            seen.mark_step()
        scripted.sync()  # after the last step: in no step
    assert syncs_per_step(seen.result()) == [3, 1, 0]
    assert seen.syncs == 5


def test_syncs_that_are_delivered_after_their_step_belong_to_it_all_the_same(scripted):
    with record(warmup=0) as seen:
        for noted, at_once in ((3, 1), (0, 2), (1, 0)):
            for _ in range(noted):
                scripted.note()
            for _ in range(at_once):
                scripted.sync()
            seen.mark_step()
        scripted.note()
    assert syncs_per_step(seen.result()) == [4, 2, 1]
    assert seen.syncs == 8


def test_syncs_that_are_delivered_late_stand_where_they_began(scripted):
    with record() as seen:
        scripted.note("event", began_ns=1)
        scripted.sync("device", began_ns=2)
        scripted.note("stream", began_ns=3)
        scripted.sync("free", began_ns=4)
    assert [sync.kind for sync in seen.result().all_syncs] == ["event", "device", "stream", "free"]


def test_a_late_sync_is_no_sync_of_a_region_that_opened_after_it(scripted):
    with record() as outer:
        scripted.note()
        with record() as inner:
            scripted.note()
        scripted.note()
    assert (outer.syncs, inner.syncs) == (3, 1)


def test_a_late_sync_is_among_those_an_open_region_says_it_has_seen(scripted):
    with record("loop") as seen:
        scripted.note()
        assert repr(seen) == "<Region 'loop' open: 1 syncs seen>"


def test_a_late_sync_is_allowed_where_it_was_made(scripted):
    with record() as seen:
        scripted.note()
        with allow("needed"):
            scripted.note()
        scripted.note()
    assert seen.syncs == 2
    assert [sync.allowed for sync in seen.result().all_syncs] == [None, "needed", None]


def test_a_late_sync_has_the_phase_it_was_made_in(scripted):
    torch = pytest.importorskip("torch")
    with record() as seen:
        scripted.note()
        for name in ("forward", "backward"):
            with torch.autograd.profiler.record_function(name):
                scripted.note()
                with torch.autograd.profiler.record_function("within"):
                    scripted.note()
                scripted.note()
        scripted.note()
    phases = [sync.phase for sync in seen.result().all_syncs]
    assert phases == [None, *("forward", "within", "forward"), *("backward", "within", "backward"), None]


@pytest.mark.parametrize(("warmup", "expected"), [(None, [2, 2]), (0, [9, 2, 2]), (1, [2, 2]), (2, [2])])
def test_warm_up_is_left_out_of_the_steps(scripted, warmup, expected):
    with record(warmup=warmup) as seen:
        for syncs in (9, 2, 2):
            for _ in range(syncs):
                scripted.sync()
            seen.mark_step()
    assert syncs_per_step(seen.result()) == expected


def test_a_region_whose_steps_are_all_warm_up_was_not_measured(scripted):
    with record(warmup=3) as seen:
        for _ in range(3):
            seen.mark_step()
    assert seen.result().problem == "no step was measured: 3 ran, and warm-up takes 3"
    with pytest.raises(MeasurementError, match="no step was measured"):
        _ = seen.syncs


def test_optimizer_steps_end_steps(scripted):
    torch = pytest.importorskip("torch")
    weight = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with record() as seen:
        for _ in range(4):
            weight.sum().backward()
            scripted.sync()
            optimizer.step()
    assert (seen.steps, syncs_per_step(seen.result())) == (4, [1, 1, 1])
    assert seen.result().step_source == "optimizer.step()"


def test_one_optimizer_step_does_not_make_a_repeating_region(scripted):
    torch = pytest.importorskip("torch")
    weight = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with record() as seen:
        weight.sum().backward()
        scripted.sync()
        optimizer.step()
        scripted.sync()
    assert (seen.steps, syncs_per_step(seen.result())) == (1, [2])


def test_the_optimizer_hook_is_gone_after_the_region(scripted):
    optimizer = pytest.importorskip("torch.optim.optimizer")
    hooks = optimizer._global_optimizer_post_hooks
    before = len(hooks)
    with record():
        assert len(hooks) == before + 1
    assert len(hooks) == before


def test_allowed_syncs_are_reported_and_not_counted(scripted):
    with record() as seen:
        with allow("early stop needs the value"):
            scripted.sync()
        scripted.sync()
    assert seen.syncs == 1
    assert [c.allowed for c in seen.sites] == [None, "early stop needs the value"]


def test_allow_reaches_only_its_own_thread(scripted):
    with record() as seen, allow("here"):
        thread = threading.Thread(target=lambda: scripted.sync())
        thread.start()
        thread.join()
    (sync,) = seen.result().all_syncs
    assert (sync.allowed, sync.background) == (None, True)


@pytest.mark.parametrize("reason", ["", "  ", None])
def test_allow_wants_a_reason(reason):
    with pytest.raises(ValueError, match="reason"), allow(reason):
        pass


def test_syncs_of_other_threads_are_background(scripted):
    with record() as seen:
        thread = threading.Thread(target=lambda: scripted.sync(), name="loader")
        thread.start()
        thread.join()
        scripted.sync()
    assert seen.syncs == 1
    assert {(c.thread, c.background) for c in seen.sites} == {("MainThread", False), ("loader", True)}


def test_syncs_of_other_threads_count_where_that_is_asked_for(scripted):
    with record(all_threads=True) as all_of_them, record() as own:
        thread = threading.Thread(target=lambda: scripted.sync(), name="loader")
        thread.start()
        thread.join()
        scripted.sync()
    assert (all_of_them.syncs, own.syncs) == (2, 1)
    assert {(c.thread, c.background) for c in all_of_them.sites} == {("MainThread", False), ("loader", False)}


def test_regions_nest_and_both_see(scripted):
    with record("outer") as outer:
        scripted.sync()
        with record("inner") as inner:
            scripted.sync()
        scripted.sync()
    assert (outer.syncs, inner.syncs) == (3, 1)


def test_the_recorder_runs_only_while_a_region_is_open(scripted):
    assert scripted.running == 0
    with record():
        with record():
            assert scripted.running == 1
        assert scripted.running == 1
    assert scripted.running == 0


def test_the_recorder_stops_when_the_block_raises(scripted):
    with pytest.raises(KeyError), record() as seen:
        scripted.sync()
        raise KeyError
    assert scripted.running == 0
    assert seen.syncs == 1


def test_held_syncs_belong_to_the_step_they_were_made_in(scripted):
    with record(warmup=0) as seen:
        scripted.hold()
        seen.mark_step()
        scripted.hold()
        scripted.hold()
        seen.mark_step()
    assert syncs_per_step(seen.result()) == [1, 2]


def test_held_syncs_are_delivered_before_the_region_closes(scripted):
    with record() as seen:
        scripted.hold()
    assert seen.syncs == 1


def test_one_sync_is_planted_per_process_and_not_counted(scripted):
    for _ in range(3):
        with record() as seen:
            pass
        assert seen.syncs == 0
    assert scripted.planted == 1


def test_a_blind_recorder_makes_the_region_unmeasured(scripted):
    scripted.blind = True
    with record() as seen:
        pass
    result = seen.result()
    assert not result.complete
    assert "saw 0 of 1 planted sync" in result.problem


def test_nothing_is_planted_before_cuda_is_initialised(scripted, monkeypatch):
    monkeypatch.setattr(devices, "cuda_is_initialized", lambda: False)
    with record():
        pass
    assert scripted.planted == 0


def test_a_region_in_which_nothing_ran_did_not_use_the_device_although_the_process_did(scripted):
    scripted.idle = True
    with record() as busy:
        scripted.watcher(threading.get_ident())
    with record() as idle:
        pass
    assert [busy.result().device_used, idle.result().device_used] == [True, False]


def test_a_sync_alone_is_a_use_of_the_device(scripted):
    scripted.idle = True
    with record() as seen:
        scripted.sync()
    assert seen.result().device_used


def test_work_of_another_thread_is_no_use_by_the_region_and_the_thread_is_named(scripted):
    scripted.idle = True
    with record() as seen:
        other = threading.Thread(target=lambda: scripted.watcher(threading.get_ident()), name="loader")
        other.start()
        other.join()
    assert not seen.result().device_used
    assert "only by other threads (loader)" in seen.result().unused


def test_without_a_recorder_the_region_does_not_open(scripted):
    scripted.unavailable = "it is Sunday"
    with pytest.raises(MeasurementError, match="no recorder can run: scripted: it is Sunday"), record():
        pytest.fail("the region opened")


def test_without_a_gpu_the_message_names_the_simulated_device(scripted, monkeypatch):
    monkeypatch.setattr(devices, "detect", lambda: devices.Device("none", reason="torch 2.13.0+cpu is a CPU build"))
    with pytest.raises(MeasurementError, match=r"torch 2.13.0\+cpu is a CPU build; use `with simulated_cuda"), record():
        pytest.fail("the region opened")


def test_a_sink_that_fails_spoils_the_measurement_and_not_the_program(scripted, monkeypatch):
    monkeypatch.setattr(recording.attribution, "charge", lambda *a: 1 / 0)
    with record() as seen:
        scripted.sync()
    assert "could not be attributed: ZeroDivisionError" in seen.result().problem


def test_site_counts_add_up_bytes_and_time_and_keep_unknown_unknown(scripted):
    with record() as seen:
        for _ in range(2):
            scripted.sync(direction="D2H", nbytes=4, blocked_ns=1_500_000)
        scripted.sync("device")
    copies, device = sorted(site_counts(seen.result()), key=lambda c: c.kind == "device")
    assert (copies.syncs, copies.nbytes, copies.blocked_ms) == (2, 8, 3.0)
    assert (device.nbytes, device.blocked_ms) == (None, None)


def test_a_region_can_be_read_while_it_is_open(scripted):
    with record() as seen:
        scripted.sync()
        assert seen.syncs == 1
        assert seen.result().complete is False


@pytest.mark.parametrize("warmup", [-1])
def test_a_negative_warm_up_is_refused(scripted, warmup):
    with record() as seen, pytest.raises(ValueError, match="warm_up"):
        seen.warm_up(warmup)


def test_phases_name_the_innermost_open_range(scripted):
    torch = pytest.importorskip("torch")
    with record() as seen:
        with torch.profiler.record_function("outer"):
            with torch.profiler.record_function("inner"):
                scripted.sync()
            scripted.sync()
        scripted.sync()
    assert [sync.phase for sync in seen.result().all_syncs] == ["inner", "outer", None]


def test_torch_is_as_it_was_after_the_region(scripted):
    torch = pytest.importorskip("torch")
    before = (torch.profiler.record_function.__enter__, torch.cuda.nvtx.range_push)
    with record():
        assert torch.cuda.nvtx.range_push is not before[1]
    assert (torch.profiler.record_function.__enter__, torch.cuda.nvtx.range_push) == before


def test_the_environment_says_who_counted(scripted):
    with record() as seen:
        pass
    environment = seen.result().environment
    assert (environment.device, environment.gpu, environment.driver) == ("cuda", "Test GPU", "1.0")
    assert (environment.recorder, environment.coverage) == ("scripted", "driver")


def test_a_recorder_that_makes_room_is_followed_by_the_next_one(scripted, monkeypatch):
    second = type(scripted)()
    second.name = "second"
    monkeypatch.setattr(recording, "candidates", lambda simulated, wanted: ("scripted", "second"))
    monkeypatch.setattr(recording, "create", lambda name: scripted if name == "scripted" else second)
    with record() as seen:
        scripted.sync()
        scripted.hold()
        scripted.on_eviction("a profiler needs its place")
        assert (scripted.running, second.running) == (0, 1)
        second.sync()
    assert seen.syncs == 3
    assert seen.result().environment.recorder == "second"
    assert seen.result().environment.note == "scripted: a profiler needs its place"
    assert second.running == 0


def test_a_recorder_that_makes_room_for_nobody_spoils_the_measurement(scripted):
    with record() as seen:
        scripted.sync()
        scripted.on_eviction("a profiler needs its place")
    assert "a profiler needs its place" in seen.result().problem
    assert not seen.result().complete


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_forked_child_leaves_the_recorder_to_its_parent(scripted):
    def leave_the_block():
        # The child leaves the block as an exception would, and must touch nothing of the parent's recorder.
        recording.current.close(region._log)
        return f"{scripted.running} {scripted.planted} {region.result().problem}"

    with record() as region:
        said = in_forked_child(leave_the_block)
        scripted.sync()
    assert said == "0 0 the process that opened the region was forked; it is measured in the parent"
    assert region.syncs == 1
    assert region.result().problem is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_forked_child_measures_a_region_of_its_own(scripted):
    def count_in_child():
        with record() as own:
            scripted.sync()
            scripted.note()
        return own.syncs, own.result().problem, scripted.running

    with record() as region:
        scripted.sync()
        assert in_forked_child(count_in_child) == "(2, None, 0)"
        scripted.sync()
    assert (region.syncs, scripted.running) == (2, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_forked_child_where_no_recorder_can_run_says_so(scripted):
    def count_in_child():
        scripted.unavailable = "CUDA cannot be used here"
        with record() as own:
            pass
        return own.syncs

    with record():
        assert in_forked_child(count_in_child).startswith("MeasurementError: no recorder can run: ")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_in_a_forked_child_nothing_stays_wrapped(scripted):
    torch = pytest.importorskip("torch")
    function = torch.autograd.profiler.record_function
    before = function.__enter__

    def is_restored():
        return function.__enter__ is before

    with record():
        assert not is_restored()
        assert in_forked_child(is_restored) == "True"
        assert not is_restored()
    assert is_restored()


def test_a_recorder_that_reads_a_clock_gives_times_after_the_region_opened(scripted, monkeypatch):
    monkeypatch.setattr(type(scripted), "reads_clock", True)
    with record() as seen:
        for _ in range(2):
            scripted.sync(began_ns=time.perf_counter_ns(), blocked_ns=1000)
            seen.mark_step()
    measurement = seen.result()
    first, second = (sync.began_ns for sync in measurement.all_syncs)
    ends, closed = measurement.times
    assert 0 < first < ends[0] < second < ends[1] < closed


def test_steps_that_the_optimizer_ends_are_timed_where_it_returned(scripted, monkeypatch):
    optim = pytest.importorskip("torch.optim")
    import torch

    monkeypatch.setattr(type(scripted), "reads_clock", True)
    model = torch.nn.Linear(1, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with record() as seen:
        for _ in range(3):
            model(torch.ones(1)).sum().backward()
            optimizer.step()
    ends, closed = seen.result().times
    assert len(ends) == seen.steps
    assert 0 < ends[0] < ends[1] < ends[2] < closed


def test_without_a_clock_nothing_has_a_time(scripted):
    with record() as seen:
        scripted.sync()
        seen.mark_step()
    measurement = seen.result()
    assert (measurement.times, measurement.all_syncs[0].began_ns) == (None, None)


def test_where_jax_is_loaded_the_note_says_that_its_waits_are_not_seen(scripted, monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxlib", object())
    with record() as region:
        scripted.sync()
    assert "cannot see waits of JAX" in region.result().environment.note


def test_without_jax_nothing_is_said_of_it(scripted):
    with record() as region:
        scripted.sync()
    assert region.result().environment.note is None
