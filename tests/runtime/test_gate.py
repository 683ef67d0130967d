"""The native gate decides without the GIL and logs what it must not hand to Python."""

from __future__ import annotations

import ctypes
import threading
import time
from types import SimpleNamespace

import pytest

from pytest_gpusync.recorders import gate as gates

pytestmark = pytest.mark.skipif(not gates.is_available(), reason="there is no native gate")

ENTER, EXIT = 0, 1
SLEPT_NS = 20_000_000
CAPACITY = 1 << 15
"""Records that the log of gate.c holds."""


class Probe:
    """A gate with what reached Python."""

    def __init__(self) -> None:
        self.called: list[tuple[int, int]] = []
        self.pending = 0
        self.gate = gates.CallGate(self._callback, self._pending)

    def _callback(self, _user_data: int, domain: int, cbid: int, _address: int) -> None:
        self.called.append((domain, cbid))

    def _pending(self) -> None:
        self.pending += 1

    def call(self, domain: int, cbid: int, site: int) -> None:
        data = (ctypes.c_uint64 * 6)(site)
        self.gate.function(self.gate.user_data, domain, cbid, ctypes.addressof(data))


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
def patient(monkeypatch) -> None:
    """To close a gate waits for threads as long as a busy machine makes them take."""
    monkeypatch.setattr(gates, "_PATIENCE_S", 60.0)


@pytest.mark.parametrize(
    ("action", "site", "reaches_python", "records"),
    [
        (gates.IGNORE, ENTER, False, 0),
        (gates.IGNORE, EXIT, False, 0),
        (gates.PYTHON, ENTER, True, 0),
        (gates.PYTHON, EXIT, True, 0),
        (gates.PYTHON_ON_EXIT, ENTER, False, 0),
        (gates.PYTHON_ON_EXIT, EXIT, True, 0),
        (gates.LOG, ENTER, False, 1),
        (gates.LOG, EXIT, False, 1),
    ],
)
def test_each_action_does_what_its_name_says(probe, action, site, reaches_python, records):
    probe.gate.set_action(gates.RUNTIME, 131, action)
    head = probe.gate.logged.value
    probe.call(gates.RUNTIME, 131, site)
    assert (probe.called == [(gates.RUNTIME, 131)]) is reaches_python
    assert probe.gate.logged.value - head == records


def test_domains_have_tables_of_their_own(probe):
    probe.gate.set_action(gates.RUNTIME, 131, gates.PYTHON)
    probe.call(gates.DRIVER, 131, ENTER)
    assert probe.called == []


@pytest.mark.parametrize(("domain", "cbid"), [(0, 5), (3, 5), (2, 1024), (77, 3), (2, 4_000_000)])
def test_calls_outside_the_table_are_ignored(probe, domain, cbid):
    head = probe.gate.logged.value
    probe.call(domain, cbid, ENTER)
    assert probe.called == []
    assert probe.gate.logged.value == head


def slow_call(probe, domain, cbid):
    """Make a call that lasts for at least SLEPT_NS, and return the nanoseconds that it takes from outside."""
    before = time.perf_counter_ns()
    probe.call(domain, cbid, ENTER)
    entered = time.perf_counter_ns()
    while time.perf_counter_ns() - entered <= SLEPT_NS:
        time.sleep(SLEPT_NS / 1e9)
    probe.call(domain, cbid, EXIT)
    return time.perf_counter_ns() - before


def test_a_logged_call_carries_its_thread_and_the_time_it_took(probe):
    probe.gate.set_action(gates.DRIVER, 9, gates.LOG)
    took = slow_call(probe, gates.DRIVER, 9)
    (call,) = probe.gate.drain()
    assert call.thread == threading.get_ident()
    assert SLEPT_NS < call.blocked_ns <= took


def test_a_driver_call_inside_a_runtime_call_counts_once(probe):
    for domain, cbid in ((gates.RUNTIME, 137), (gates.DRIVER, 120)):
        probe.gate.set_action(domain, cbid, gates.LOG)
    for domain, cbid, site in ((2, 137, ENTER), (1, 120, ENTER), (1, 120, EXIT), (2, 137, EXIT)):
        probe.call(domain, cbid, site)
    assert [(c.domain, c.callback_id) for c in probe.gate.drain()] == [(gates.RUNTIME, 137)]


@pytest.mark.parametrize("action", [gates.PYTHON, gates.PYTHON_ON_EXIT])
def test_the_driver_part_of_a_runtime_call_does_not_reach_python(probe, action):
    probe.gate.set_action(gates.RUNTIME, 41, action)
    probe.gate.set_action(gates.DRIVER, 120, gates.PYTHON)
    for domain, cbid, site in ((2, 41, ENTER), (1, 120, ENTER), (1, 120, EXIT), (2, 41, EXIT)):
        probe.call(domain, cbid, site)
    assert set(probe.called) == {(gates.RUNTIME, 41)}
    probe.call(gates.DRIVER, 120, EXIT)
    assert probe.called[-1] == (gates.DRIVER, 120)


def test_another_threads_runtime_call_does_not_hide_a_driver_call(probe):
    probe.gate.set_action(gates.RUNTIME, 41, gates.PYTHON_ON_EXIT)
    probe.gate.set_action(gates.DRIVER, 120, gates.PYTHON_ON_EXIT)
    thread = threading.Thread(target=probe.call, args=(gates.RUNTIME, 41, ENTER))
    thread.start()
    thread.join()
    probe.call(gates.DRIVER, 120, EXIT)
    assert probe.called == [(gates.DRIVER, 120)]


def test_a_call_that_reaches_python_knows_how_long_it_took(probe):
    probe.gate.set_action(gates.RUNTIME, 131, gates.PYTHON_ON_EXIT)
    took = slow_call(probe, gates.RUNTIME, 131)
    entered, left = probe.gate.times(threading.get_ident())
    assert SLEPT_NS < left - entered <= took


def test_the_interpreter_is_asked_to_drain_after_a_logged_exit(probe):
    probe.gate.set_action(gates.DRIVER, 9, gates.LOG)
    probe.call(gates.DRIVER, 9, ENTER)
    probe.call(gates.DRIVER, 9, EXIT)
    for _ in range(1000):  # pending calls run between bytecodes of the main thread
        if probe.pending:
            break
    assert probe.pending >= 1


def test_a_call_just_after_another_is_drained_as_soon(probe):
    probe.gate.set_action(gates.DRIVER, 9, gates.LOG)
    drained = []
    probe.gate._on_pending = lambda: drained.append(len(probe.gate.drain()))
    for expected in range(1, 20):
        probe.call(gates.DRIVER, 9, ENTER)
        probe.call(gates.DRIVER, 9, EXIT)
        for _ in range(3):
            pass
        assert sum(drained) == expected


def test_a_flood_of_calls_leaves_the_main_thread_time(probe, monkeypatch):
    now, took = 1000, 20
    monkeypatch.setattr(gates, "time", SimpleNamespace(perf_counter_ns=lambda: now))

    def drain():
        nonlocal now
        now += took
        drained.append(len(probe.gate.drain()))

    def log_one():
        probe.call(gates.DRIVER, 9, ENTER)
        probe.call(gates.DRIVER, 9, EXIT)

    probe.gate.set_action(gates.DRIVER, 9, gates.LOG)
    drained = []
    probe.gate._on_pending = drain
    probe.gate._rests_until = now + 1
    for _ in range(gates._FLOOD + 2):
        log_one()
    probe.gate._rests_until = 0
    probe.gate._run_pending(None)
    assert sum(drained) == gates._FLOOD + 2
    log_one()
    for waited in (0, took - 1, took):
        now += waited
        probe.gate._run_pending(None)
        now -= waited
        assert sum(drained) == gates._FLOOD + 2 + (waited == took), waited  # it rests for as long as it has worked


def test_a_closed_gate_ignores_every_call(probe):
    for cbid, action in ((131, gates.PYTHON), (9, gates.LOG)):
        probe.gate.set_action(gates.RUNTIME, cbid, action)
    probe.gate.close()
    head = probe.gate.logged.value
    for cbid in (131, 9):
        probe.call(gates.RUNTIME, cbid, ENTER)
    assert (probe.called, probe.gate.logged.value) == ([], head)


def test_a_gate_that_is_opened_again_does_what_it_did(probe):
    probe.gate.set_action(gates.RUNTIME, 131, gates.PYTHON)
    probe.gate.close()
    probe.gate.set_action(gates.RUNTIME, 132, gates.PYTHON)
    probe.gate.open()
    probe.call(gates.RUNTIME, 131, ENTER)
    probe.call(gates.RUNTIME, 132, ENTER)
    assert probe.called == [(gates.RUNTIME, 131), (gates.RUNTIME, 132)]


class InsidePython:
    """A thread that a gate has handed to Python, where it stays until it is released."""

    def __init__(self) -> None:
        self.released, self.inside, self.left = threading.Event(), threading.Event(), []
        self.gate = gates.CallGate(self._callback, lambda: None)
        self.gate.set_action(gates.RUNTIME, 131, gates.PYTHON)
        self._data = (ctypes.c_uint64 * 6)(ENTER)
        arguments = (self.gate.user_data, gates.RUNTIME, 131, ctypes.addressof(self._data))
        self.thread = threading.Thread(target=self.gate.function, args=arguments)
        self.thread.start()
        assert self.inside.wait(20)

    def _callback(self, *_arguments: int) -> None:
        self.inside.set()
        self.released.wait(20)
        self.left.append("callback")


def test_to_close_waits_for_the_calls_that_python_was_handed(patient):
    held = InsidePython()
    threading.Timer(0.05, held.released.set).start()
    held.gate.close()
    held.left.append("closed")
    held.thread.join()
    assert held.left == ["callback", "closed"]


def test_to_close_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(gates, "_PATIENCE_S", 0.02)
    held = InsidePython()
    held.gate.close()
    held.left.append("closed")
    held.released.set()
    held.thread.join()
    assert held.left == ["closed", "callback"]


def test_nobody_is_in_a_gate_that_is_closed_while_threads_call_it(probe, patient):
    probe.gate.set_action(gates.DRIVER, 9, gates.LOG)
    probe.gate.set_action(gates.DRIVER, 10, gates.PYTHON)
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            probe.call(gates.DRIVER, 9, ENTER)
            probe.call(gates.DRIVER, 10, EXIT)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        opened = 0
        while opened < 100 or not (probe.called and probe.gate.logged.value):
            opened += 1
            assert opened < 100_000, "no thread has called"
            probe.gate.close()
            seen = probe.gate.logged.value, len(probe.called)
            time.sleep(0.0005)
            assert (probe.gate.logged.value, len(probe.called)) == seen
            probe.gate.open()
            time.sleep(0.0005)
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_a_runtime_call_that_began_before_the_gate_was_opened_hides_no_driver_call(probe):
    probe.gate.set_action(gates.RUNTIME, 41, gates.PYTHON_ON_EXIT)
    probe.gate.set_action(gates.DRIVER, 120, gates.PYTHON_ON_EXIT)
    probe.call(gates.RUNTIME, 41, ENTER)
    probe.gate.close()
    probe.call(gates.RUNTIME, 41, EXIT)
    probe.gate.open()
    probe.call(gates.DRIVER, 120, EXIT)
    assert probe.called == [(gates.DRIVER, 120)]


def test_a_thread_is_known_to_be_in_a_call(probe):
    probe.gate.set_action(gates.RUNTIME, 131, gates.PYTHON_ON_EXIT)
    own = threading.get_ident()
    probe.call(gates.RUNTIME, 131, ENTER)
    assert probe.gate.is_in_call(own)
    probe.call(gates.RUNTIME, 131, EXIT)
    assert not probe.gate.is_in_call(own)


def test_threads_log_without_losing_a_call(probe):
    probe.gate.set_action(gates.DRIVER, 9, gates.LOG)
    calls_per_thread, drained = 2000, []

    def work() -> None:
        for _ in range(calls_per_thread):
            probe.call(gates.DRIVER, 9, ENTER)
            probe.call(gates.DRIVER, 9, EXIT)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        drained += probe.gate.drain()
    drained += probe.gate.drain()
    assert (len(drained), probe.gate.lost) == (4 * calls_per_thread, 0)
    assert {call.thread for call in drained} == {thread.ident for thread in threads}


def test_overwritten_records_are_counted_as_lost(probe):
    probe.gate.set_action(gates.DRIVER, 9, gates.LOG)
    probe.gate._rests_until = time.perf_counter_ns() + 60 * 10**9
    for _ in range(CAPACITY + 10):
        probe.call(gates.DRIVER, 9, ENTER)
    probe.call(gates.DRIVER, 9, EXIT)
    assert len(probe.gate.drain()) == 1
    assert probe.gate.lost == 11
    assert probe.gate.drained == probe.gate.logged.value


def test_a_call_is_told_the_time_at_which_it_began(probe):
    probe.gate.set_action(gates.DRIVER, 9, gates.LOG)
    before = time.perf_counter_ns()
    probe.call(gates.DRIVER, 9, ENTER)
    after = time.perf_counter_ns()
    probe.call(gates.DRIVER, 9, EXIT)
    (call,) = probe.gate.drain()
    for began in (call.began_ns, probe.gate.times(threading.get_ident())[0]):
        assert before <= began <= after


def test_notes_are_read_once_and_in_their_order(probe):
    probe.gate.set_action(gates.RUNTIME, 131, gates.PYTHON_ON_EXIT)
    assert probe.gate.note_calls_of(threading.get_ident()) is probe.gate.reads_frames
    for _ in range(gates._AT_ONCE + 10):
        probe.call(gates.RUNTIME, 131, ENTER)
        probe.call(gates.RUNTIME, 131, EXIT)
    notes = probe.gate.take()
    first = next(notes)
    # A signal handler may read the rest before this reader goes on.
    rest = list(probe.gate.take())
    assert [first[13], *(note[13] for note in rest)] == list(range(gates._AT_ONCE + 10))
    assert list(notes) == list(probe.gate.take()) == []
