from __future__ import annotations

import sys
import threading

import pytest
import torch

from pytest_gpusync.recorders.base import RecorderUnavailable
from pytest_gpusync.recorders.simulated import SimulatedRecorder
from pytest_gpusync.simulated.base import sync_events


def _calling_lines(sync):
    frame = sync.frame
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back


def test_a_copy_tells_direction_size_and_device(cuda, seen):
    host = torch.zeros(10, dtype=torch.float64)
    with seen() as syncs:
        host.to("cuda").cpu()
    assert [(sync.direction, sync.nbytes, sync.device) for sync in syncs] == [("H2D", 80, 0), ("D2H", 80, 0)]


def test_no_time_is_claimed(cuda, seen):
    with seen() as syncs:
        torch.cuda.synchronize()
    assert syncs[0].blocked_ns is None


def test_the_frame_lies_below_the_line_that_waits(cuda, seen):
    s = torch.ones((), device="cuda")

    def reads():
        return s.item()

    with seen() as syncs:
        reads()
    assert "reads" in list(_calling_lines(syncs[0]))


def test_the_thread_is_the_one_that_waits(cuda, seen):
    s = torch.ones((), device="cuda")
    with seen() as syncs:
        thread = threading.Thread(target=s.item)
        thread.start()
        thread.join()
    assert syncs[0].thread == thread.ident


def test_a_sync_in_a_backward_pass_lies_below_the_line_that_called_it(cuda, seen):
    x = torch.ones(2, device="cuda", requires_grad=True)
    x.register_hook(lambda grad: grad * grad.sum().item())

    def calls_backward():
        x.sum().backward()

    with seen() as syncs:
        calls_backward()
    assert len(syncs) == 1
    assert "calls_backward" in list(_calling_lines(syncs[0]))


def test_nothing_arrives_after_unsubscribing(cuda):
    syncs = []
    sync_events.subscribe(syncs.append)
    sync_events.unsubscribe(syncs.append)
    torch.cuda.synchronize()
    assert not syncs


def test_two_sinks_both_hear(cuda, seen):
    with seen() as outer, seen() as inner:
        torch.cuda.synchronize()
    assert (len(outer), len(inner)) == (1, 1)


def test_debug_mode_warn_warns_where_torch_would(cuda):
    torch.cuda.set_sync_debug_mode("warn")
    with pytest.warns(UserWarning, match="called a synchronizing CUDA operation"):
        torch.ones((), device="cuda").item()


def test_debug_mode_error_raises(cuda):
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        torch.ones((), device="cuda").item()


def test_recorder_hears_between_start_and_stop(cuda):
    syncs = []
    recorder = SimulatedRecorder()
    recorder.start(syncs.append)
    torch.cuda.synchronize()
    recorder.stop()
    torch.cuda.synchronize()
    assert len(syncs) == 1


def test_recorder_plants_exactly_one_sync(cuda):
    syncs = []
    recorder = SimulatedRecorder()
    recorder.start(syncs.append)
    recorder.plant()
    recorder.stop()
    assert len(syncs) == 1


def test_recorder_is_unavailable_while_the_device_is_off():
    if "torch" in sys.modules and torch.cuda.is_available():
        pytest.skip("the device is on for the whole process")
    with pytest.raises(RecorderUnavailable, match="switch_on"):
        SimulatedRecorder().start(lambda sync: None)
