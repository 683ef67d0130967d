"""The native gate decides without the GIL and logs what it must not hand to Python."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pytest_gpusync.recorders import gate as gates

pytestmark = pytest.mark.skipif(not gates.supported(), reason="the gate is machine code for Linux on x86-64")

ENTER, EXIT = 0, 1


class Probe:
    """A gate with what reached Python."""

    def __init__(self) -> None:
        self.called: list[tuple[int, int]] = []
        self.pending = 0
        self.gate = gates.CallGate(self._callback, self._pending)

    def _callback(self, _user_data: int, domain: int, cbid: int, _address: int) -> None:
        self.called.append((domain, cbid))
        self.gate.returned += 1

    def _pending(self) -> None:
        self.pending += 1

    def call(self, domain: int, cbid: int, site: int) -> None:
        data = (ctypes.c_uint64 * 6)(site)
        self.gate.function(self.gate.user_data, domain, cbid, ctypes.addressof(data))


@pytest.fixture
def probe() -> Probe:
    return Probe()


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
    head = probe.gate._context.head
    probe.call(gates.RUNTIME, 131, site)
    assert (probe.called == [(gates.RUNTIME, 131)]) is reaches_python
    assert probe.gate._context.head - head == records


def test_domains_have_tables_of_their_own(probe):
    probe.gate.set_action(gates.RUNTIME, 131, gates.PYTHON)
    probe.call(gates.DRIVER, 131, ENTER)
    assert probe.called == []


@pytest.mark.parametrize(("domain", "cbid"), [(0, 5), (3, 5), (2, 1024), (77, 3), (2, 4_000_000)])
def test_calls_outside_the_table_are_ignored(probe, domain, cbid):
    head = probe.gate._context.head
    probe.call(domain, cbid, ENTER)
    assert probe.called == []
    assert probe.gate._context.head == head


def test_a_logged_call_carries_its_thread_and_the_time_it_took(probe):
    probe.gate.set_action(gates.DRIVER, 9, gates.LOG)
    probe.call(gates.DRIVER, 9, ENTER)
    time.sleep(0.05)
    probe.call(gates.DRIVER, 9, EXIT)
    (call,) = probe.gate.drain()
    assert call.thread == threading.get_ident()
    assert 45e6 < call.blocked_ns < 500e6


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
    probe.call(gates.RUNTIME, 131, ENTER)
    time.sleep(0.05)
    probe.call(gates.RUNTIME, 131, EXIT)
    assert 45e6 < probe.gate.span(*probe.gate.ticks(gates.slot_of(threading.get_ident())))[0] < 500e6


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


def test_a_flood_of_calls_leaves_the_main_thread_time(probe):
    probe.gate.set_action(gates.DRIVER, 9, gates.LOG)
    probe.gate._on_pending = lambda: (probe.gate.drain(), time.sleep(0.02))
    for _ in range(gates._FLOOD + 2):
        probe.gate._context.asked = 1  # not yet
        probe.call(gates.DRIVER, 9, ENTER)
        probe.call(gates.DRIVER, 9, EXIT)
    probe.gate._run_pending(None)
    probe.call(gates.DRIVER, 9, ENTER)
    probe.call(gates.DRIVER, 9, EXIT)
    probe.gate._run_pending(None)
    assert len(probe.gate.drain()) == 1  # it rests: nothing was drained


def test_the_interpreter_is_asked_once_until_it_comes(probe):
    probe.gate.set_action(gates.DRIVER, 9, gates.LOG)
    probe.call(gates.DRIVER, 9, ENTER)
    probe.gate._context.asked = 1
    before = probe.pending
    probe.call(gates.DRIVER, 9, EXIT)
    for _ in range(1000):
        pass
    assert probe.pending == before


def test_a_closed_gate_ignores_every_call(probe):
    for cbid, action in ((131, gates.PYTHON), (9, gates.LOG)):
        probe.gate.set_action(gates.RUNTIME, cbid, action)
    probe.gate.close()
    head = probe.gate._context.head
    for cbid in (131, 9):
        probe.call(gates.RUNTIME, cbid, ENTER)
    assert (probe.called, probe.gate._context.head) == ([], head)


def test_a_gate_that_is_opened_again_does_what_it_did(probe):
    probe.gate.set_action(gates.RUNTIME, 131, gates.PYTHON)
    probe.gate.close()
    probe.gate.set_action(gates.RUNTIME, 132, gates.PYTHON)
    probe.gate.open()
    probe.call(gates.RUNTIME, 131, ENTER)
    probe.call(gates.RUNTIME, 132, ENTER)
    assert probe.called == [(gates.RUNTIME, 131), (gates.RUNTIME, 132)]


def test_to_close_waits_for_the_calls_that_python_was_handed():
    released, inside, left = threading.Event(), threading.Event(), []

    def callback(*_arguments) -> None:
        inside.set()
        released.wait(20)
        left.append("callback")
        gate.returned += 1

    gate = gates.CallGate(callback, lambda: None)
    gate.set_action(gates.RUNTIME, 131, gates.PYTHON)
    data = ctypes.c_int(ENTER)
    thread = threading.Thread(target=gate.function, args=(gate.user_data, gates.RUNTIME, 131, ctypes.addressof(data)))
    thread.start()
    assert inside.wait(20)
    threading.Timer(0.05, released.set).start()
    gate.close()
    left.append("closed")
    thread.join()
    assert left == ["callback", "closed"]


def test_to_close_does_not_wait_for_ever(probe, monkeypatch):
    monkeypatch.setattr(gates, "_PATIENCE_S", 0.02)
    probe.gate._context.handed += 1
    probe.gate.close()
    assert not probe.gate._is_open


def test_a_thread_is_known_to_be_in_a_call(probe):
    probe.gate.set_action(gates.RUNTIME, 131, gates.PYTHON_ON_EXIT)
    slot = gates.slot_of(threading.get_ident())
    probe.call(gates.RUNTIME, 131, ENTER)
    assert probe.gate.is_in_call(slot)
    probe.call(gates.RUNTIME, 131, EXIT)
    assert not probe.gate.is_in_call(slot)


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
    for _ in range(gates._CAPACITY + 10):
        probe.call(gates.DRIVER, 9, ENTER)
    probe.gate.drain()
    assert probe.gate.lost >= 10


@pytest.mark.parametrize("later", [0, 0.03])
def test_a_call_is_told_the_time_at_which_it_began(probe, later):
    slot = gates.slot_of(threading.get_ident())
    probe.gate.set_action(gates.DRIVER, 9, gates.LOG)
    time.sleep(later)
    probe.gate.keep_time()
    before = time.perf_counter_ns()
    probe.call(gates.DRIVER, 9, ENTER)
    after = time.perf_counter_ns()
    probe.call(gates.DRIVER, 9, EXIT)
    (call,) = probe.gate.drain()
    for began in (call.began_ns, probe.gate.span(*probe.gate.ticks(slot))[1]):
        assert before - 50_000 < began < after + 50_000


def test_the_machine_code_is_what_the_source_compiles_to():
    root = Path(__file__).parents[2]
    written = (root / "pytest_gpusync" / "recorders" / "gate_code.py").read_text()
    try:
        found = subprocess.run(["gcc", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no gcc")
    if f"gcc {found}." not in written:
        pytest.skip(f"another gcc than the {found} here wrote it")
    done = subprocess.run([sys.executable, str(root / "docs" / "write_gate_code.py"), "--check"], check=False)
    assert done.returncode == 0
