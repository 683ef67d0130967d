"""Every way to look at a value waits for the queue before it; what differs is how long that queue is.

`print`, `.item()`, `.numpy()` and a barrier cost the same where nothing else is queued behind the value. Where the
value is an intermediate result, a barrier waits for all that was queued since, and an event for no more than the value.
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
def test_a_value_that_nobody_reads_waits_for_nothing(reader, planted, weight, gpu_sync, figure):
    value = queue(weight, weight, BEFORE).sum()
    READERS[reader](value)
    with gpu_sync.record() as seen:
        READERS[reader](value)
    figure(f"{reader}: {seen.syncs} syncs")
    assert seen.syncs >= 1
    with gpu_sync.budget(max=0):
        value = queue(weight, weight, BEFORE).sum()
        if planted:
            READERS[reader](value)


@pytest.mark.parametrize(("reader", "many"), [("print", 16), ("item", 300), ("numpy", 300)])
def test_one_reading_costs_what_a_barrier_costs(reader, many, planted, gpu_elapsed, weight, figure):
    def read():
        value = queue(weight, weight, BEFORE).sum()
        # One by one, a row costs as many waits as it is long.
        for part in weight[0, :many] if planted else [value]:
            READERS[reader](part)

    def barrier():
        READERS["synchronize"](queue(weight, weight, BEFORE).sum())

    ratio = gpu_elapsed.ratio(read, barrier, tolerance=0.1)
    figure(ratio)
    assert ratio.high < 1.4


def test_an_intermediate_result_is_had_sooner_by_waiting_for_it_alone(planted, gpu_elapsed, weight, figure):
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
        # What the host does with the value, while the device works on.
        queue_of_the_host()

    def queue_of_the_host():
        sum(range(200_000))

    def whole_device_then_host():
        whole_device()
        queue_of_the_host()

    ratio = gpu_elapsed.ratio(whole_device_then_host, value_alone, calls=1)
    figure(ratio)
    assert ratio.low > 1.05
