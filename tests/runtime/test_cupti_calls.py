"""Which syncs the CUPTI recorder makes of calls: CUPTI is made up, the native gate is real."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import threading
import time

import pytest
from forked import in_forked_child

from pytest_gpusync.machine import devices
from pytest_gpusync.recorders import call_syncs, cupti_api
from pytest_gpusync.recorders import gate as gates
from pytest_gpusync.recorders.base import FORKED, RecorderUnavailable
from pytest_gpusync.recorders.cupti import CuptiRecorder
from pytest_gpusync.source import attribution

pytestmark = pytest.mark.skipif(not gates.is_available(), reason="there is no native gate")

IDS = {
    "cudaMemcpyAsync": 41,
    "cudaMemcpy": 31,
    "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165,
    "cudaEventSynchronize": 137,
    "cudaFree": 22,
    "cudaLaunchKernel": 211,
}
LAUNCHES = {"cuLaunchKernel": 307, "cuGraphLaunch": 514}
H2D, D2H, D2D = 1, 2, 3
PINNED, PAGEABLE = 0x1000, 0x2000
SMALL, LARGE = 4, 8 << 20
SLOW_S = 0.02
CONTEXT_OF_DEVICE = {0: 70, 1: 71}


class Cupti:
    """Stands in for libcupti: knows the names, and delivers nothing by itself."""

    path = "libcupti.so"

    def names(self, domain):
        known = IDS if domain == gates.RUNTIME else LAUNCHES
        return [(number, f"{name}_v3020") for name, number in known.items()]

    def device_of(self, context):
        return context - CONTEXT_OF_DEVICE[0]

    def is_pageable(self, pointer):
        return pointer == PAGEABLE

    def __init__(self):
        self.enabled = set()

    def subscribe(self, function, user_data):
        self.enabled.clear()

    def enable(self, domain, callback_id):
        self.enabled.add((domain, callback_id))

    def disable(self, domain, callback_id):
        self.enabled.discard((domain, callback_id))

    def unsubscribe(self): ...


class Calls:
    """A recorder fed with calls, and what it made of them."""

    def __init__(self) -> None:
        self.seen = []
        self.cupti = Cupti()
        self.recorder = CuptiRecorder(self.cupti)
        self.recorder.start(self.seen.append)
        self.gate = self.recorder._gate

    def make(self, *calls, slow=None):
        """Report calls from one instruction, as a blocking copy of torch's makes them; the one named `slow` lasts."""
        for name, arguments in [report for call in calls for report in both_sites(*call)]:
            if name == slow and arguments[0]:
                time.sleep(SLOW_S)
            self.gate.function(self.gate.user_data, gates.RUNTIME, IDS[name], ctypes.addressof(arguments))

    def wait(self, device=0):
        """Report a stream synchronize from an instruction of its own."""
        for name, arguments in both_sites("cudaStreamSynchronize", device=device):
            self.gate.function(self.gate.user_data, gates.RUNTIME, IDS[name], ctypes.addressof(arguments))

    def launch(self, name="cuLaunchKernel"):
        """Report the launch of a kernel, which reaches the gate only where CUPTI has it enabled."""
        if (gates.DRIVER, LAUNCHES[name]) in self.cupti.enabled:
            for _, data in both_sites(name):
                self.gate.function(self.gate.user_data, gates.DRIVER, LAUNCHES[name], ctypes.addressof(data))

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


STREAM = 0x7F00


def of_stream(calls, name):
    """Make a call that has one parameter."""
    kept = (ctypes.c_uint64 * 1)(STREAM)
    for site in (0, 1):
        data = (ctypes.c_uint64 * 6)(site, 0, ctypes.addressof(kept), 0, 0, CONTEXT_OF_DEVICE[0])
        calls.gate.function(calls.gate.user_data, gates.RUNTIME, IDS[name], ctypes.addressof(data))


def without_parameters(calls, name):
    for site in (0, 1):
        data = (ctypes.c_uint64 * 6)(site, 0, 0, 0, 0, CONTEXT_OF_DEVICE[0])
        calls.gate.function(calls.gate.user_data, gates.RUNTIME, IDS[name], ctypes.addressof(data))


@pytest.mark.parametrize("reads_frames", [True, False])
def test_a_sync_names_the_stream_that_was_waited_for(monkeypatch, reads_frames):
    if not reads_frames:
        monkeypatch.setattr(gates, "find_layout", lambda: None)
    calls = Calls()
    try:
        for _ in range(2):
            of_stream(calls, "cudaStreamSynchronize")
            without_parameters(calls, "cudaStreamSynchronize")
            without_parameters(calls, "cudaDeviceSynchronize")
        calls.recorder.flush()
    finally:
        calls.recorder.stop()
    assert [raw.stream for raw in calls.seen] == [STREAM, 0, None] * 2


def test_a_copy_that_waits_by_itself_is_charged_to_its_own_line_though_it_is_reported_later(calls):
    calls.make(("cudaMemcpyAsync", D2H, PAGEABLE))
    calls.recorder.flush()
    assert calls.seen[0].attribution.site.function.endswith("make")  # the innermost line of this file


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


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("slow", ["cudaMemcpyAsync", "cudaStreamSynchronize"])
def test_a_blocking_copy_waited_in_whichever_half_did(monkeypatch, expandable, slow):
    if expandable:
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    calls = Calls()
    try:
        began = time.perf_counter_ns()
        calls.make(("cudaMemcpyAsync", D2H, PAGEABLE), ("cudaStreamSynchronize",), slow=slow)
        ended = time.perf_counter_ns()
        assert calls.kinds() == [("stream", "D2H", SMALL)]
    finally:
        calls.recorder.stop()
    (raw,) = calls.seen
    assert SLOW_S * 1e9 < raw.blocked_ns < ended - began + 50_000
    assert began - 50_000 < raw.began_ns < ended - SLOW_S * 1e9


def handed(calls):
    """Return how many calls Python was entered for."""
    return calls.gate.returned.value


def test_calls_from_a_place_that_is_known_do_not_enter_python(calls):
    for _ in range(10):
        calls.make(("cudaMemcpyAsync", D2H, PAGEABLE), ("cudaStreamSynchronize",))
    # The copy's line is learned, then the place; the synchronize comes from the same one.
    assert handed(calls) <= 3
    assert calls.kinds() == [("stream", "D2H", SMALL)] * 10
    assert {raw.attribution.site.function.split(".")[-1] for raw in calls.seen} == {"make"}


def test_two_lines_are_told_apart_though_python_is_not_entered(calls):
    for _ in range(5):
        calls.wait()
        calls.make(("cudaStreamSynchronize",))
    assert handed(calls) <= 4
    calls.recorder.flush()
    assert [raw.attribution.site.function.split(".")[-1] for raw in calls.seen] == ["wait", "make"] * 5


def test_lines_of_one_library_function_are_told_apart_by_who_called_it(calls, tmp_path):
    folder = tmp_path / "site-packages" / "lib"
    folder.mkdir(parents=True)
    library = {}
    code = "def waits(gate, entry, exit):\n    gate(*entry)\n    gate(*exit)\n"
    exec(compile(code, str(folder / "waits.py"), "exec"), library)
    arguments = straight_into(calls)
    for _ in range(4):
        library["waits"](*arguments)
        library["waits"](*arguments)
    assert handed(calls) <= 4
    calls.recorder.flush()
    lines = [raw.attribution.site.line for raw in calls.seen]
    assert lines == [lines[0], lines[0] + 1] * 4
    assert "lib/waits.py:3 waits" in calls.seen[-1].attribution.site.via


def test_more_calls_than_the_gate_can_note_are_all_reported(calls):
    for _ in range(10_000):
        calls.wait()
    assert calls.kinds() == [("stream", None, None)] * 10_000
    assert handed(calls) < 20


def straight_into(calls, name="cudaStreamSynchronize"):
    """Return what a function takes to make a call by ``gate(*entry)`` and ``gate(*exit)``."""
    data = [both for _, both in both_sites(name)]
    straight_into.kept = data
    return calls.gate.function, *((calls.gate.user_data, gates.RUNTIME, IDS[name], ctypes.addressof(d)) for d in data)


def test_code_that_comes_and_goes_is_not_taken_for_other_code(calls):
    arguments = straight_into(calls)
    for number in range(300):
        made = {}  # the code of the round before is gone, and its memory taken again
        text = f"def f{number}(gate, entry, exit):\n    gate(*entry)\n    gate(*exit)\n"
        exec(compile(text, __file__, "exec"), made)
        for _ in range(3):
            made[f"f{number}"](*arguments)
    calls.recorder.flush()
    names = [(raw.attribution or attribution.charge(raw.frame, raw.thread)).site.function for raw in calls.seen]
    assert names == [f"f{number}" for number in range(300) for _ in range(3)]


def test_more_functions_than_the_gate_can_know_are_all_told_apart(calls):
    room = (1 << 12) // 2 - 2  # the table of gate.c is kept half full
    assert all(calls.gate.knows(0, code) for code in range(8, 8 * room, 8))
    arguments = straight_into(calls)
    made = {}
    for number in range(9):
        exec(compile(f"def f{number}(gate, entry, exit): gate(*entry), gate(*exit)", __file__, "exec"), made)
    for _ in range(3):
        for number in range(9):
            made[f"f{number}"](*arguments)
    calls.recorder.flush()
    names = [(raw.attribution or attribution.charge(raw.frame, raw.thread)).site.function for raw in calls.seen]
    assert names == [f"f{number}" for number in range(9)] * 3


def test_the_end_of_a_step_does_not_read_the_notes(calls):
    for _ in range(3):
        calls.wait()
    reported = len(calls.seen)
    assert calls.recorder.mark() == calls.gate.noted.value
    assert len(calls.seen) == reported < 3
    assert calls.kinds() == [("stream", None, None)] * 3


def test_every_note_has_its_number(calls):
    before = calls.recorder.calls.value
    for _ in range(5):
        calls.wait()
    calls.recorder.flush()
    assert [raw.sequence - before for raw in calls.seen] == [0, 1, 2, 3, 4]


def test_where_frames_cannot_be_read_every_call_enters_python(monkeypatch):
    monkeypatch.setattr(gates, "find_layout", lambda: None)
    made = Calls()
    try:
        for _ in range(5):
            made.make(("cudaMemcpyAsync", D2H, PAGEABLE), ("cudaStreamSynchronize",))
        assert handed(made) == 10
        assert made.kinds() == [("stream", "D2H", SMALL)] * 5
    finally:
        made.recorder.stop()


def test_another_threads_calls_enter_python(calls):
    thread = threading.Thread(target=lambda: [calls.wait() for _ in range(5)])
    thread.start()
    thread.join()
    assert handed(calls) == 5
    assert len(calls.seen) == 5


def test_what_is_known_of_lines_is_forgotten_with_attributions_caches(calls):
    for _ in range(3):
        calls.wait()
    calls.recorder.flush()
    calls.recorder.stop()
    attribution.clear_caches()
    calls.recorder.start(calls.seen.append)
    before = handed(calls)
    calls.wait()
    assert handed(calls) == before + 1


def test_a_logged_call_names_its_device(calls):
    calls.make(("cudaEventSynchronize", D2D, PINNED, SMALL, 1))
    calls.recorder.flush()
    assert [raw.device for raw in calls.seen] == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_child_forked_while_calls_are_counted_leaves_cupti_to_its_parent(calls):
    def count():
        calls.recorder.forget_in_forked_child()
        calls.wait()
        calls.recorder.flush()
        with pytest.raises(RecorderUnavailable) as refusal:
            calls.recorder.start(calls.seen.append)
        return f"{len(calls.seen)} {refusal.value}"

    assert in_forked_child(count) == f"0 {FORKED}"
    calls.wait()
    assert calls.kinds() == [("stream", None, None)]


def test_a_copy_of_the_main_thread_is_not_settled_by_another_before_its_synchronize(calls, monkeypatch):
    monkeypatch.setattr(call_syncs, "_MAX_BETWEEN_HALVES_NS", 10**10)  # a busy machine starts threads late
    copy, wait = list(both_sites("cudaMemcpyAsync", D2H, PAGEABLE)), list(both_sites("cudaStreamSynchronize"))

    def flushed_between():
        thread = threading.Thread(target=calls.recorder.flush)
        thread.start()
        thread.join()

    for number, (name, data) in enumerate([*copy, *wait]):
        if number == 2:
            flushed_between()
        calls.gate.function(calls.gate.user_data, gates.RUNTIME, IDS[name], ctypes.addressof(data))
    assert calls.kinds() == [("stream", "D2H", SMALL)]


def test_notes_that_another_thread_reads_have_their_lines(calls):
    for _ in range(4):
        calls.wait()
    thread = threading.Thread(target=calls.recorder.flush)
    thread.start()
    thread.join()
    assert [raw.attribution.site.function.split(".")[-1] for raw in calls.seen] == ["wait"] * 4


def gradient_of(calls, waits_after=0):
    """Return what a wait in an operator's backward is charged to; its forward waits, or something after it."""
    torch = pytest.importorskip("torch")
    calls.wait()  # from here on operators are counted

    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if not waits_after:
                calls.make(("cudaStreamSynchronize",))
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    y = Waits.apply(torch.ones(3, requires_grad=True))
    operator = y.grad_fn
    for number in range(waits_after):
        if number:
            y = y * 2
        if number == waits_after - 1:
            calls.wait()
    found = []
    site = attribution.Site("a.py", 1, "f")
    operator.register_prehook(lambda gradients: found.append(attribution._with_operator(site)))
    y.sum().backward()
    return found[0].via


def test_an_operator_that_waits_in_forward_and_in_backward_has_its_line_of_forward(calls):
    for _ in range(3):  # later its place is known, and noted without Python
        assert re.fullmatch(
            r"in WaitsBackward, created at \S+calls.py:\d+ Calls.make or just before", gradient_of(calls)
        )


def test_an_operator_made_just_before_a_wait_has_the_line_of_that(calls):
    made = gradient_of(calls, waits_after=1)
    assert re.fullmatch(r"in WaitsBackward, created at \S+calls.py:\d+ Calls.wait or just before", made)


def test_an_operator_that_no_wait_followed_before_the_next_one_has_no_line(calls):
    assert gradient_of(calls, waits_after=3) == "in WaitsBackward"


def test_once_stopped_no_line_of_forward_is_told(calls):
    calls.recorder.stop()
    assert gradient_of(calls) == "in WaitsBackward"
    assert attribution.forward_line_of is None


NAMES = """
import sys
from pytest_gpusync.recorders import cupti_api, gate
from pytest_gpusync.recorders.driver_calls import *
library = cupti_api.Cupti(sys.argv[1])
names = {base_name(name) for domain in (gate.DRIVER, gate.RUNTIME) for _, name in library.names(domain)}
listened_to = {*LAUNCHES, *SYNCHRONIZE, *LOCKED, *BLOCKING_COPIES, *ASYNC_COPIES}
print(sorted(listened_to - names))
"""


def test_the_cupti_that_is_installed_has_every_call_that_is_listened_to():
    path = cupti_api.find_library()
    if path is None:
        pytest.skip("no libcupti is installed")
    # In a process of its own: a library that was loaded stays.
    done = subprocess.run([sys.executable, "-c", NAMES, path], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode < 0 and devices.detect().kind == "none":
        pytest.skip("without a driver this CUPTI (13.2 does so) ends the process that asks it anything")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_wait_for_an_event_is_of_the_events_device_whichever_is_the_current_one(calls, monkeypatch):
    streams = pytest.importorskip("torch.cuda.streams")
    made = calls

    class Event:
        device = type("Device", (), {"index": 1})

        def synchronize(self):
            made.make(("cudaEventSynchronize",))

    made.recorder.stop()
    monkeypatch.setattr(streams, "Event", Event)
    made.recorder.start(made.seen.append)
    Event().synchronize()
    made.make(("cudaEventSynchronize",))
    made.recorder.flush()
    assert [(raw.kind, raw.device) for raw in made.seen] == [("event", 1), ("event", 0)]


class Watcher:
    """Told of work of the device; has seen enough once it is told on a thread of `threads`."""

    def __init__(self, *threads):
        self.threads = threads or (threading.get_ident(),)
        self.told = []

    def __call__(self, thread):
        self.told.append(thread)
        return thread in self.threads


@pytest.mark.parametrize("name", LAUNCHES)
def test_the_first_launch_is_told_and_those_after_it_are_not(calls, name):
    watcher = Watcher()
    calls.recorder.watch_device_work(watcher)
    calls.launch(name)
    calls.launch(name)
    assert watcher.told == [threading.get_ident()]
    assert calls.kinds() == []


def test_launches_are_enabled_only_while_they_are_watched(calls):
    enabled = calls.cupti.enabled
    launches = {(gates.DRIVER, number) for number in LAUNCHES.values()}
    assert not enabled & launches
    calls.recorder.watch_device_work(Watcher())
    calls.recorder.mark()
    assert launches <= enabled
    calls.launch()
    calls.recorder.mark()
    assert not enabled & launches


def test_launches_can_be_watched_again(calls):
    for _ in range(2):
        watcher = Watcher()
        calls.recorder.watch_device_work(watcher)
        calls.launch()
        calls.recorder.mark()
        assert len(watcher.told) == 1


def test_launches_are_told_until_the_watcher_has_seen_enough(calls):
    watcher = Watcher()
    calls.recorder.watch_device_work(watcher)
    other = threading.Thread(target=lambda: (calls.launch(), calls.launch()))
    other.start()
    other.join()
    calls.launch()
    calls.launch()
    assert watcher.told == [other.ident] * 4 + [threading.get_ident()]  # at both ends of the call


@pytest.mark.parametrize("call", ["cudaStreamSynchronize", "cudaMemcpyAsync"])
def test_a_copy_or_a_wait_is_work_too(calls, call):
    watcher = Watcher()
    calls.recorder.watch_device_work(watcher)
    calls.make((call, D2H, PINNED) if call == "cudaMemcpyAsync" else (call,))
    assert watcher.told == [threading.get_ident()]


def test_tensors_made_on_the_gpu_are_work_that_is_looked_for(calls, monkeypatch):
    made = [5]
    monkeypatch.setattr("pytest_gpusync.recorders.allocation_watch._allocations", lambda: made[0])
    watcher = Watcher()
    calls.recorder.watch_device_work(watcher)
    calls.recorder.look_for_device_work()
    assert watcher.told == []
    made[0] = 6
    calls.recorder.look_for_device_work()
    assert watcher.told == [threading.get_ident()]


def test_calls_are_delivered_at_once_where_they_may_not_be_buffered(calls):
    for _ in range(3):
        calls.wait()
    seen = len(calls.seen)
    calls.recorder.buffer_calls(False)
    assert len(calls.seen) == 3 >= seen
    calls.wait()
    assert len(calls.seen) == 4
    calls.recorder.buffer_calls(True)
    for _ in range(3):
        calls.wait()
    assert len(calls.kinds()) == 7
