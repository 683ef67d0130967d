"""The ring that holds the host back, on a device that is done when the test says so."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from pytest_gpusync import limit_in_flight
from pytest_gpusync.elapsed.in_flight import InFlightLimiter
from pytest_gpusync.measure.region import record


class Event:
    def __init__(self):
        self.number = -1

    def record(self):
        self.number = next(NUMBERS)

    def query(self):
        return self.number < DONE[0]

    def synchronize(self):
        LOG.append(f"wait {self.number}")


LOG: list[str] = []
DONE = [0]
NUMBERS = iter(())


@pytest.fixture
def device(monkeypatch):
    """Put a device in torch's place whose steps from the `done`-th on are still in flight."""
    global NUMBERS
    LOG.clear()
    DONE[0] = 0
    NUMBERS = iter(range(100))
    cuda = SimpleNamespace(is_initialized=lambda: True)
    torch = SimpleNamespace(cuda=cuda, device=str, Event=lambda device: Event())
    monkeypatch.setitem(sys.modules, "torch", torch)
    return cuda


def run(limit, steps):
    for batch in limit_in_flight(range(steps), max=limit):
        LOG.append(f"step {batch}")
    return LOG


def test_batch_t_is_done_before_batch_t_plus_two_begins(device):
    assert run(2, 4) == ["step 0", "step 1", "wait 0", "step 2", "wait 1", "step 3"]


def test_with_one_in_flight_every_step_is_waited_for(device):
    assert run(1, 3) == ["step 0", "wait 0", "step 1", "wait 1", "step 2"]


def test_a_step_that_is_done_is_not_waited_for(device):
    DONE[0] = 100
    assert run(2, 4) == ["step 0", "step 1", "step 2", "step 3"]


def test_before_cuda_is_initialised_nothing_is_marked(device):
    device.is_initialized = lambda: False
    assert run(2, 4) == ["step 0", "step 1", "step 2", "step 3"]


def test_without_torch_the_batches_are_passed_on(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert list(limit_in_flight([1, 2, 3])) == [1, 2, 3]
    assert "torch" not in sys.modules


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "2"])
def test_what_is_no_number_of_steps_is_refused_at_once(limit):
    with pytest.raises(ValueError, match="an integer of at least 1"):
        limit_in_flight([], max=limit)


def test_its_waits_are_reported_as_allowed(device, scripted, monkeypatch):
    monkeypatch.setattr(Event, "synchronize", lambda event: scripted.sync("event"))
    with record() as region:
        run(1, 3)
    assert [sync.allowed for sync in region.result().all_syncs] == ["keeps at most 1 steps in flight"] * 2


def test_a_ring_forgets_the_steps_it_waited_for(device):
    limiter = InFlightLimiter(2)
    for _ in range(50):
        if (event := limiter.event_to_wait_for()) is not None:
            event.synchronize()
        limiter.mark_step()
    assert len(limiter._events) == 2
