"""Waiting for everything, or for one result: MXNet's `waitall()` and `wait_to_read()`, in torch a synchronize of the
device and one of an event.

Both return when the result can be read. The first waits for all work queued since, too; after the second, the device
still has work. `asnumpy()` is torch's `.cpu()`: it waits for the queue of its own stream up to the copy.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

BEFORE, AFTER = 2, 20


@pytest.fixture
def weight(simulated):
    size = 64 if simulated else 4096
    return torch.randn(size, size, device="cuda") / size**0.5


def queue(value, weight, products):
    for _ in range(products):
        value = torch.mm(value, weight)
    return value


def wait_to_read(ready):
    ready.synchronize()


def waitall(ready):
    torch.cuda.synchronize()


def queue_and_wait(weight, wait):
    """Return the events of the awaited result and of the work queued after it."""
    ready, last = torch.cuda.Event(), torch.cuda.Event()
    queue(weight, weight, BEFORE).sum()
    ready.record()
    queue(weight, weight, AFTER)
    last.record()
    wait(ready)
    return ready, last


def test_an_event_is_waited_for_and_not_the_device(weight, planted, gpu_sync, report_result):
    queue(weight, weight, 1)
    kinds = {}
    for wait in (waitall, waitall if planted else wait_to_read):
        with gpu_sync.record() as seen:
            queue_and_wait(weight, wait)
        kinds[wait] = [(site.kind, site.syncs) for site in seen.sites]
        report_result(f"{wait.__name__}: {kinds[wait]}")
    assert kinds[waitall] == [("device", 1)]
    assert kinds[wait] == [("event", 1)]


@pytest.mark.gpu_only
def test_after_the_wait_for_one_result_the_device_still_has_work(weight, planted, report_result):
    queue_and_wait(weight, waitall)
    ready, last = queue_and_wait(weight, waitall)
    assert ready.query()
    assert last.query()
    ready, last = queue_and_wait(weight, waitall if planted else wait_to_read)
    still_busy = ready.query() and not last.query()
    report_result(f"the device still has work: {still_busy}")
    assert still_busy
