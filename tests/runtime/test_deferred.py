from __future__ import annotations

import pytest

from pytest_gpusync import deferred, record, simulated_cuda

torch = pytest.importorskip("torch")


def test_values_read_a_step_later_cost_no_sync_and_race_with_nothing():
    read, pending = [], None
    with simulated_cuda(), record() as seen:
        weight = torch.ones(8, device="cuda")
        for step in range(4):
            loss = (weight * step).mean()
            if pending is not None:
                read.append(pending.item())
            pending = deferred(loss)
        read.append(float(pending))
    assert read == [0, 1, 2, 3]
    assert (seen.syncs, seen.races) == (0, ())


def test_a_value_is_that_of_the_time_when_it_was_deferred():
    with simulated_cuda():
        x = torch.ones(3, device="cuda")
        later = deferred(x)
        x.zero_()
        assert later.tolist() == [1, 1, 1]


def test_a_cpu_tensor_is_copied_at_once():
    x = torch.ones(2, 2, requires_grad=True)
    later = deferred(x)
    with torch.no_grad():
        x.zero_()
    assert later.ready
    assert later.tensor().tolist() == [[1, 1], [1, 1]]
    assert not later.tensor().requires_grad


def test_what_was_not_read_says_so():
    with simulated_cuda():
        later = deferred(torch.ones(1, device="cuda"))
        assert repr(later) == "Deferred(not read yet)"
        later.item()
        assert repr(later) == "Deferred(tensor([1.]))"
