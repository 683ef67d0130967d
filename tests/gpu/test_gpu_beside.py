"""Features of torch beside the counting, on a GPU: right count, right place, nothing broken."""

from __future__ import annotations

import multiprocessing
import os

import pytest

torch = pytest.importorskip("torch")

from beside import ROUNDS, WORKLOADS, syncs_by_function  # noqa: E402

from pytest_gpusync import record  # noqa: E402
from pytest_gpusync.model.measurement import MeasurementError  # noqa: E402

WITH_EXPANDABLE_SEGMENTS = "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
CPU, CUDA = torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA


def of_rounds(workload):
    """Return what a workload must be seen to do in all rounds."""
    return (
        {function: ROUNDS * syncs for function, syncs in workload.syncs.items()},
        ROUNDS * workload.background,
    )


@pytest.fixture
def x():
    return torch.ones(64, 64, device="cuda")


def gpu_events(profiler):
    return [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_else_is_on_changes_no_count(name):
    if name == "graph capture" and WITH_EXPANDABLE_SEGMENTS:
        pytest.skip("the allocator waits before it unmaps the segments of the last graph")
    workload = WORKLOADS[name]
    work = workload.make()
    work()
    with record(recorder="cupti") as region:
        for _ in range(ROUNDS):
            work()
    measurement = region.result()
    assert measurement.problem is None
    assert syncs_by_function(measurement) == of_rounds(workload)


def test_a_sync_in_a_graph_break_says_so():
    workload = WORKLOADS["graph break"]
    work = workload.make()
    work()
    with record(recorder="cupti") as region:
        work()
    assert "graph break of torch.compile" in region.sites[0].site.via


@pytest.mark.parametrize("name", ["autocast", "activation checkpointing", "graph replay"])
def test_a_workload_counts_the_same_after_a_profiler_was_used(name):
    workload = WORKLOADS[name]
    work = workload.make()
    with torch.profiler.profile(activities=[CPU, CUDA]) as profiler:
        work()
    assert gpu_events(profiler)
    with record(recorder="cupti") as region:
        for _ in range(ROUNDS):
            work()
    assert syncs_by_function(region.result()) == of_rounds(workload)


def test_profiles_and_regions_in_turn_are_each_complete(x):
    for _ in range(4):
        with record(recorder="cupti") as region:
            (x @ x).sum().item()
        assert region.syncs == 1
        with torch.profiler.profile(activities=[CUDA]) as profiler:
            (x @ x).sum().item()
        assert gpu_events(profiler)


def test_a_scheduled_profiler_around_regions_is_left_intact(x):
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2)
    counted = []
    with torch.profiler.profile(activities=[CPU, CUDA], schedule=schedule) as profiler:
        for _ in range(4):
            with record() as region:
                (x @ x).sum().item()
            counted.append(region.syncs)
            profiler.step()
    assert counted == [1, 1, 1, 1]
    assert gpu_events(profiler)


def _child_counts(queue):
    value = torch.ones(4, device="cuda")
    value.sum().item()
    with record(recorder="cupti") as region:
        value.sum().item()
        value.sum().item()
    queue.put((region.syncs, region.result().problem))


def test_a_spawned_child_counts_its_own_and_the_parent_its_own(x):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with record(recorder="cupti") as region:
        child = context.Process(target=_child_counts, args=(queue,))
        child.start()
        x.sum().item()
        in_child = queue.get(timeout=120)
        child.join(timeout=60)
    assert in_child == (2, None)
    assert region.syncs == 1


def test_a_forked_child_without_cuda_disturbs_nothing(x):
    with record(recorder="cupti") as region:
        x.sum().item()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                total = torch.ones(8).sum().item()  # on the CPU, as a worker of a DataLoader
                status = 0 if total == 8 else 2
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        x.sum().item()
    assert status == 0
    assert region.syncs == 2
    assert region.result().problem is None


def test_a_forked_child_that_wants_to_count_is_told_why_it_cannot(x):
    reader, writer = os.pipe()
    with record(recorder="cupti") as region:
        x.sum().item()
        child = os.fork()
        if child == 0:
            said = "nothing"
            try:
                with record():
                    said = "opened"
            except MeasurementError as refusal:
                said = str(refusal)
            finally:
                os.write(writer, said.encode())
                os._exit(0)
        os.waitpid(child, 0)
        x.sum().item()
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert "start the process by spawn" in pipe.read()
    assert region.syncs == 2


def test_a_data_loader_that_pins_is_told_from_the_step(x):
    data = torch.utils.data.TensorDataset(torch.ones(64, 16))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True)
    for (batch,) in loader:
        batch.to("cuda", non_blocking=True)
    with record(recorder="cupti") as region:
        for (batch,) in loader:
            moved = batch.to("cuda", non_blocking=True)
        moved.sum().item()
    measurement = region.result()
    assert region.syncs == 1
    assert {sync.thread for sync in measurement.all_syncs if not sync.background} == {"MainThread"}


def test_blocked_time_is_small_where_nothing_is_under_way(x):
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with record(recorder="cupti") as region:
        torch.cuda._sleep(20_000_000)
        stream.synchronize()  # an idle stream: a sync that waits for nothing
        torch.cuda.current_stream().synchronize()
    idle, busy = region.result().all_syncs
    assert idle.blocked_ns < 1_000_000 < busy.blocked_ns


@pytest.mark.skipif(WITH_EXPANDABLE_SEGMENTS, reason="calls that are logged natively do not tell their device")
def test_a_regions_device_is_named(x):
    with record(recorder="cupti") as region:
        x.sum().item()
    assert [sync.device for sync in region.result().all_syncs] == [torch.cuda.current_device()]
