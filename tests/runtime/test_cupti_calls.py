"""Which syncs the CUPTI recorder makes of calls: CUPTI is made up, the native gate is real."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest

from pytest_gpusync import attribution
from pytest_gpusync.recorders import gate as gates
from pytest_gpusync.recorders.cupti import CuptiRecorder

pytestmark = pytest.mark.skipif(not gates.supported(), reason="the gate is machine code for Linux on x86-64")

IDS = {
    "cudaMemcpyAsync": 41,
    "cudaMemcpy": 31,
    "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165,
    "cudaEventSynchronize": 137,
    "cudaFree": 22,
    "cudaLaunchKernel": 211,
}
H2D, D2H, D2D = 1, 2, 3
PINNED, PAGEABLE = 0x1000, 0x2000
SMALL, LARGE = 4, 8 << 20
CONTEXT_OF_DEVICE = {0: 70, 1: 71}


class Cupti:
    """Stands in for libcupti: knows the names, and delivers nothing by itself."""

    path = "libcupti.so"

    def names(self, domain):
        return [(number, f"{name}_v3020") for name, number in IDS.items()] if domain == gates.RUNTIME else []

    def device_of(self, context):
        return context - CONTEXT_OF_DEVICE[0]

    def subscribe(self, function, user_data): ...

    def enable(self, domain, callback_id): ...

    def unsubscribe(self): ...


class Calls:
    """A recorder fed with calls, and what it made of them."""

    def __init__(self) -> None:
        self.seen = []
        self.recorder = recorder = CuptiRecorder()
        recorder._cupti = Cupti()
        recorder._gate = self.gate = gates.CallGate(recorder._callback, recorder._deliver_logged)
        recorder._fill_table(recorder._cupti, recorder._gate)
        recorder._pointer_attribute = lambda _kind, _attribute, pointer: int(pointer.value == PAGEABLE)
        recorder.start(self.seen.append)

    def make(self, *calls):
        """Report calls from one instruction, as a blocking copy of torch's makes them."""
        for name, arguments in [report for call in calls for report in both_sites(*call)]:
            self.gate.function(self.gate.user_data, gates.RUNTIME, IDS[name], ctypes.addressof(arguments))

    def wait(self, device=0):
        """Report a stream synchronize from an instruction of its own."""
        for name, arguments in both_sites("cudaStreamSynchronize", device=device):
            self.gate.function(self.gate.user_data, gates.RUNTIME, IDS[name], ctypes.addressof(arguments))

    def kinds(self):
        self.recorder.flush()
        return [(raw.kind, raw.direction, raw.nbytes) for raw in self.seen]


def both_sites(name, direction=D2D, host=PINNED, nbytes=SMALL, device=0):
    """Yield one call's data at its entry and at its exit."""
    source, destination = (host, 1) if direction == H2D else (1, host)
    parameters = (ctypes.c_uint64 * 4)(destination, source, nbytes, direction)
    for site in (0, 1):
        data = (ctypes.c_uint64 * 6)(site, 0, ctypes.addressof(parameters), 0, 0, CONTEXT_OF_DEVICE[device])
        data.kept = parameters
        yield name, data


@pytest.fixture
def calls():
    attribution.clear_caches()
    made = Calls()
    yield made
    made.recorder.stop()


TABLE = {
    "stream synchronize": ([("cudaStreamSynchronize",)], [("stream", None, None)]),
    "device synchronize": ([("cudaDeviceSynchronize",)], [("device", None, None)]),
    "event synchronize": ([("cudaEventSynchronize",)], [("event", None, None)]),
    "free": ([("cudaFree",)], [("free", None, None)]),
    "launch": ([("cudaLaunchKernel",)], []),
    "blocking copy to the host": (
        [("cudaMemcpyAsync", D2H, PAGEABLE), ("cudaStreamSynchronize",)],
        [("stream", "D2H", SMALL)],
    ),
    "blocking copy from the host": (
        [("cudaMemcpyAsync", H2D, PAGEABLE, LARGE), ("cudaStreamSynchronize",)],
        [("stream", "H2D", LARGE)],
    ),
    "pinned copy that does not wait": ([("cudaMemcpyAsync", D2H, PINNED, LARGE)], []),
    "small pageable copy to the device": ([("cudaMemcpyAsync", H2D, PAGEABLE, SMALL)], []),
    "large pageable copy to the device": ([("cudaMemcpyAsync", H2D, PAGEABLE, LARGE)], [("pageable", "H2D", LARGE)]),
    "pageable copy to the host": ([("cudaMemcpyAsync", D2H, PAGEABLE, SMALL)], [("pageable", "D2H", SMALL)]),
    "two pageable copies to the host": (
        [("cudaMemcpyAsync", D2H, PAGEABLE, SMALL), ("cudaMemcpyAsync", D2H, PAGEABLE, 8)],
        [("pageable", "D2H", SMALL), ("pageable", "D2H", 8)],
    ),
    "copy between device buffers": ([("cudaMemcpyAsync", D2D, PAGEABLE, LARGE)], []),
    "copy call that blocks by itself": ([("cudaMemcpy", D2H, PINNED, 16)], [("copy", "D2H", 16)]),
    "blocking copy between device buffers": ([("cudaMemcpy", D2D, PINNED, 16)], []),
}


@pytest.mark.parametrize("name", TABLE)
def test_calls_become_syncs(calls, name):
    made, expected = TABLE[name]
    calls.make(*made)
    assert calls.kinds() == expected


def test_a_synchronize_after_a_pinned_copy_is_none_of_the_copys(calls):
    calls.make(("cudaMemcpyAsync", D2H, PINNED))
    calls.wait()
    assert calls.kinds() == [("stream", None, None)]


def test_a_synchronize_after_a_pageable_copy_is_another_wait(calls):
    calls.make(("cudaMemcpyAsync", D2H, PAGEABLE))
    calls.wait()
    assert calls.kinds() == [("pageable", "D2H", SMALL), ("stream", None, None)]


def test_a_sync_names_the_device_that_was_waited_for(calls):
    calls.wait(device=1)
    calls.wait(device=0)
    assert [raw.device for raw in calls.seen] == [1, 0]


def test_a_copy_that_waits_by_itself_is_charged_to_its_own_line_though_it_is_reported_later(calls):
    calls.make(("cudaMemcpyAsync", D2H, PAGEABLE))
    calls.recorder.flush()
    assert calls.seen[0].charged.site.function.endswith("make")  # the innermost line of this file


def test_copies_and_synchronizes_of_two_threads_are_not_taken_for_one(calls):
    thread = threading.Thread(target=calls.make, args=(("cudaMemcpyAsync", D2H, PAGEABLE),))
    thread.start()
    thread.join()
    calls.wait()
    assert sorted(raw[0] for raw in calls.kinds()) == ["pageable", "stream"]


def test_a_copy_whose_thread_waits_for_it_is_not_settled_by_another(calls):
    """Between the copy and the end of its synchronize a thread may wait for long, and others end their steps."""
    copy = list(both_sites("cudaMemcpyAsync", D2H, PAGEABLE))
    wait = list(both_sites("cudaStreamSynchronize"))
    waiting, released = threading.Event(), threading.Event()

    def work() -> None:
        for number, (name, data) in enumerate([*copy, *wait]):
            if number == 3:
                waiting.set()
                released.wait(20)
            calls.gate.function(calls.gate.user_data, gates.RUNTIME, IDS[name], ctypes.addressof(data))

    thread = threading.Thread(target=work)
    thread.start()
    assert waiting.wait(20)
    calls.recorder.flush()
    released.set()
    thread.join()
    assert calls.kinds() == [("stream", "D2H", SMALL)]


def test_nothing_is_delivered_once_stopped(calls):
    calls.recorder.stop()
    calls.wait()
    assert calls.seen == []


@pytest.mark.parametrize("name", ["cudaStreamSynchronize", "cudaMemcpy", "cudaEventSynchronize", "cudaFree"])
def test_every_sync_is_told_when_it_began(calls, name):
    before = time.perf_counter_ns()
    calls.make((name, H2D))
    calls.kinds()
    (raw,) = calls.seen
    assert before - 50_000 < raw.began_ns < time.perf_counter_ns()


def test_a_pageable_copy_that_waited_began_when_it_was_issued(calls):
    calls.make(("cudaMemcpyAsync", D2H, PAGEABLE))
    issued = time.perf_counter_ns()
    time.sleep(0.002)
    calls.kinds()
    (raw,) = calls.seen
    assert raw.began_ns < issued + 50_000
