"""Every way to read a value waits for the work queued before it; they differ in how long that queue is.

`print`, `.item()`, `.numpy()` and a barrier cost the same if nothing is queued after the value. For an intermediate
result a barrier waits for everything queued since; an event waits for the value alone.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

BEFORE, AFTER = 8, 40


@pytest.fixture
def weight(simulated):
    size = 64 if simulated else 2048
    return torch.randn(size, size, device="cuda") / size**0.5


def queue(value, weight, products):
    for _ in range(products):
        value = torch.mm(value, weight)
    return value


READERS = {
    "print": lambda value: print(value),
    "item": lambda value: value.item(),
    "numpy": lambda value: value.cpu().numpy(),
    "synchronize": lambda value: torch.cuda.synchronize(),
}


@pytest.mark.parametrize("reader", ["print", "item", "numpy"])
def test_a_value_that_is_not_read_costs_no_wait(reader, planted, weight, gpu_sync, report_result):
    value = queue(weight, weight, BEFORE).sum()
    READERS[reader](value)
    with gpu_sync.record() as seen:
        READERS[reader](value)
    report_result(f"{reader}: {seen.syncs} syncs")
    assert seen.syncs >= 1
    with gpu_sync.budget(max=0):
        value = queue(weight, weight, BEFORE).sum()
        if planted:
            READERS[reader](value)


@pytest.mark.parametrize(("reader", "many"), [("print", 16), ("item", 300), ("numpy", 300)])
def test_one_read_costs_as_much_as_a_barrier(reader, many, planted, gpu_elapsed, weight, report_result):
    def read():
        value = queue(weight, weight, BEFORE).sum()
        # Read one by one, the elements of a row each cost a wait.
        for part in weight[0, :many] if planted else [value]:
            READERS[reader](part)

    def barrier():
        READERS["synchronize"](queue(weight, weight, BEFORE).sum())

    ratio = gpu_elapsed.ratio(read, barrier, tolerance=0.1)
    report_result(ratio)
    assert ratio.high < 1.4


def test_waiting_for_an_intermediate_result_alone_is_faster_than_a_barrier(planted, gpu_elapsed, weight, report_result):
    host = torch.empty((), pin_memory=True)
    ready = torch.cuda.Event()
    reader = torch.cuda.Stream()

    def ahead(wait):
        middle = queue(weight, weight, BEFORE).sum()
        ready.record()
        queue(weight, weight, AFTER)
        with torch.cuda.stream(reader):
            reader.wait_event(ready)
            host.copy_(middle, non_blocking=True)
        wait()
        return float(host)

    def whole_device():
        ahead(torch.cuda.synchronize)

    def value_alone():
        ahead(torch.cuda.synchronize if planted else reader.synchronize)
        # The host's work on the value, while the device continues.
        queue_of_the_host()

    def queue_of_the_host():
        sum(range(200_000))

    def whole_device_then_host():
        whole_device()
        queue_of_the_host()

    ratio = gpu_elapsed.ratio(whole_device_then_host, value_alone, calls=1)
    report_result(ratio)
    assert ratio.low > 1.05
