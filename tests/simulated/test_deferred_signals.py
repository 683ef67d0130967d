"""Signals that arrive while the books of the device are written."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest
import torch

from pytest_gpusync.machine.deferred_signals import with_signals_deferred
from pytest_gpusync.simulated.tensors import memory


class Interrupted(Exception):
    pass


@pytest.fixture
def raising():
    """A handler of SIGUSR1 and SIGALRM that raises :class:`Interrupted`, as that of Ctrl-C does."""

    def handle(number, frame):
        raise Interrupted(number)

    before = [(number, signal.signal(number, handle)) for number in (signal.SIGUSR1, signal.SIGALRM)]
    yield handle
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before:
        signal.signal(number, handler)


def test_work_is_finished_before_a_signal_is_handled(raising):
    done = []

    def work():
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.01)
        done.append(1)

    with pytest.raises(Interrupted):
        with_signals_deferred(work)
    assert done == [1]
    assert signal.getsignal(signal.SIGUSR1) is raising
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_comes_afterwards():
    done = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            with_signals_deferred(lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(0.01), done.append(1)))
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == [1]


def test_errors_and_results_of_the_work_are_handed_on(raising):
    assert with_signals_deferred(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        with_signals_deferred(lambda: 1 / 0)
    assert signal.getsignal(signal.SIGUSR1) is raising


def test_on_another_thread_there_is_nothing_to_hold_back():
    results = []
    thread = threading.Thread(target=lambda: results.append(with_signals_deferred(lambda: 7)))
    thread.start()
    thread.join()
    assert results == [7]


def test_books_stay_right_whenever_the_program_is_interrupted(cuda, raising):
    kept = [torch.ones(100, device=cuda)]
    random.seed(0)
    interrupted, at_work = 0, []
    bring_up_to_date = memory._apply_events

    def watched():
        at_work.append(1)
        try:
            return bring_up_to_date()
        except Interrupted:
            at_work.append("interrupted")
            raise

    memory._apply_events = watched
    try:
        for _ in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(20e-6, 3e-3))
                while True:
                    kept = [x + 1 for x in kept[-20:]] + [torch.empty(1000, device=cuda) for _ in range(20)]
                    torch.cuda.memory_allocated()
            except Interrupted:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        memory._apply_events = bring_up_to_date
    assert interrupted == 300
    assert len(at_work) > 100
    assert "interrupted" not in at_work
    assert torch.cuda.memory_allocated() == sum(-(-x.untyped_storage().nbytes() // 512) * 512 for x in kept)
    del kept
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == 0
    assert stats["inactive_split_bytes.all.current"] == 0
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
