"""A deep network over 150 batches of 1024 x 512: a barrier in each batch, none at all, and one batch of overlap.

Without a barrier the host queues all batches long before the device has run them. Tensors on the device are reused in
stream order, so they do not accumulate. Batches in pinned host memory do: none can be reused before its copy has run.
One batch of overlap keeps the device busy with two batches in memory: batch t is done before batch t + 2 begins.

    for batch in limit_in_flight(loader, max=2):
        train(batch)
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

LAYERS = 8
BATCHES = {"steps": 150, "warmup": 20}


@pytest.fixture
def one_host_thread():
    """Fill batches from one thread: if one of several threads waits for a core, a batch takes 8 ms."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def infer(simulated, one_host_thread):
    """Return a step that makes a batch in pinned memory, copies it and runs a deep network over it."""
    rows, columns, width = (8, 16, 16) if simulated else (1024, 512, 2048)
    hidden = [torch.nn.Linear(width, width) for _ in range(LAYERS)]
    model = torch.nn.Sequential(torch.nn.Linear(columns, width), *hidden).cuda()

    def step():
        batch = torch.empty(rows, columns, pin_memory=True).fill_(1.0)
        with torch.no_grad():
            return model(batch.to("cuda", non_blocking=True))

    return step


def test_no_barrier_is_no_sync_and_one_in_each_batch_is_one(infer, planted, gpu_train, report_result):
    def read():
        infer().sum().item()

    with_barrier = gpu_train(read, **BATCHES)
    without = gpu_train(read if planted else infer, **BATCHES)
    report_result(
        f"syncs per batch: {max(with_barrier.syncs_per_step)} with a barrier, {max(without.syncs_per_step)} without"
    )
    with_barrier.assert_syncs(exact=1)
    without.assert_syncs(exact=0)


@pytest.mark.gpu_only
def test_one_batch_of_overlap_keeps_the_host_from_running_away(infer, planted, gpu_train, report_result):
    for limit in (None, 2):
        run = gpu_train(infer, **BATCHES, in_flight=None if planted else limit)
        report_result(
            f"{limit or 'any number of'} batches in flight allowed, {run.max_in_flight} reached; "
            f"queued in {run.dispatch_ratio.value:.2f} of the run's time"
        )
    run.assert_max_in_flight(max=2)
    run.assert_memory_growth(max="64 KiB")


def test_overlap_costs_less_than_a_barrier(infer, planted, gpu_elapsed, report_result):
    from pytest_gpusync import limit_in_flight

    def barrier_in_each():
        for _ in range(10):
            infer().sum().item()

    def one_of_overlap():
        for _ in limit_in_flight(range(10)):
            infer().sum().item() if planted else infer()

    def none():
        for _ in range(10):
            infer()

    ratio = gpu_elapsed.ratio(one_of_overlap, none, rounds=14, calls=1)
    report_result(f"one batch of overlap, compared with no limit: {ratio}")
    ratio = gpu_elapsed.ratio(barrier_in_each, one_of_overlap, rounds=24, calls=1)
    report_result(f"a barrier in each batch, compared with one batch of overlap: {ratio}")
    assert ratio.low > 1.0


class LazyDevice:
    """A device that runs nothing until the host waits for it: the longest that a queue can get."""

    def __init__(self) -> None:
        self.queued = 0
        self.done = 0

    def event(self, *_: object, **__: object):
        return LazyEvent(self)


class LazyEvent:
    """An event of that device: it is reached when everything queued before it has run."""

    def __init__(self, device: LazyDevice) -> None:
        self.device = device
        self.place = 0

    def record(self):
        self.place = self.device.queued

    def query(self):
        return self.device.done >= self.place

    def synchronize(self):
        self.device.done = max(self.device.done, self.place)


def test_batch_t_is_done_before_batch_t_plus_2_begins(planted, monkeypatch, report_result):
    from pytest_gpusync import limit_in_flight

    torch.zeros(1, device="cuda")
    device = LazyDevice()
    monkeypatch.setattr(torch, "Event", device.event)
    in_flight = []
    for _ in range(10) if planted else limit_in_flight(range(10), max=2):
        in_flight.append(device.queued - device.done)
        device.queued += 1
    report_result(f"batches in flight when the next one begins: {in_flight}")
    # One batch of overlap, and not less: the device always has the next batch to go on with.
    assert in_flight == [0] + [1] * 9


@pytest.mark.gpu_only
def test_on_a_gpu_batch_t_is_done_before_batch_t_plus_2_begins(infer, planted, report_result):
    from pytest_gpusync import limit_in_flight

    infer()
    torch.cuda.synchronize()
    ends = []
    late = 0
    for number in range(40) if planted else limit_in_flight(range(40), max=2):
        late += number >= 2 and not ends[number - 2].query()
        infer()
        ends.append(torch.cuda.Event())
        ends[-1].record()
    torch.cuda.synchronize()
    report_result(f"batches that began before the last but one was done: {late} of 40")
    assert late == 0
