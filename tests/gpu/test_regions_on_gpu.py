"""Which work belongs to a region, on a GPU: launches, threads, tasks, processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from pytest_gpusync import allow, record  # noqa: E402

READ = "import torch\nfor _ in range(3): torch.ones(2, device='cuda').sum().item()"


@pytest.fixture
def x():
    return torch.ones(64, 64, device="cuda")


@pytest.fixture
def graph(x):
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.mul_(2)
    return graph


def read(times):
    x = torch.ones(2, device="cuda")
    for _ in range(times):
        x.sum().item()


@pytest.mark.parametrize("recorder", ["cupti", "torch-hooks"])
def test_a_region_on_the_cpu_did_not_use_the_gpu_although_the_process_did(x, recorder):
    with record(recorder=recorder) as seen:
        torch.ones(3).sum().item()
    assert not seen.result().device_used


WORK = {
    "new tensor": lambda x: x + 1,
    "in place": lambda x: x.add_(1),
    "fill": lambda x: x.zero_(),
    "copy from the host": lambda x: x.copy_(torch.ones(64, 64)),
    "copy to the host": lambda x: x.cpu(),
    "wait": lambda x: torch.cuda.synchronize(),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK.keys())
def test_work_of_any_kind_is_a_use_of_the_gpu(x, work):
    torch.cuda.synchronize()
    for _ in range(2):  # the second time from a place that is known
        with record(recorder="cupti") as seen:
            work(x)
        assert seen.result().device_used


@pytest.mark.parametrize("recorder", ["cupti", "torch-hooks"])
def test_the_replay_of_a_graph_is_a_use_of_the_gpu(graph, recorder):
    with record(recorder=recorder) as seen:
        graph.replay()
    assert seen.result().device_used


def test_work_in_an_inner_region_is_seen_by_both(x):
    with record(recorder="cupti") as outer:
        x.add_(1)
        with record() as idle:
            pass
        with record() as busy:
            x.add_(1)
    assert [seen.result().device_used for seen in (outer, idle, busy)] == [True, False, True]


def test_work_of_another_thread_only_is_not_the_regions(x):
    with record(recorder="cupti") as seen:
        thread = threading.Thread(target=lambda: (x.add_(1), x.sum().item()), name="loader")
        thread.start()
        thread.join()
    result = seen.result()
    assert (result.device_used, seen.syncs, [sync.background for sync in result.all_syncs]) == (False, 0, [True])
    assert "loader" in result.unused


def test_launches_are_not_counted_and_cost_no_sync(x):
    with record(recorder="cupti") as seen:
        for _ in range(100):
            x.add_(1)
    assert seen.syncs == 0


def test_work_handed_to_a_thread_pool_counts(x):
    with record(recorder="cupti") as seen, ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: x.sum().item()).result()
        asyncio.run(asyncio.to_thread(lambda: x.sum().item()))
    assert (seen.syncs, seen.result().device_used) == (2, True)


def test_a_thread_that_trains_counts_by_its_steps():
    def train():
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            loss = model(torch.ones(2, 4, device="cuda")).sum()
            loss.backward()
            optimizer.step()
            loss.item()

    with record(recorder="cupti") as seen:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    result = seen.result()
    per_step = [sum(sync.step == step and not sync.background for sync in result.all_syncs) for step in (1, 2, 3)]
    assert (result.steps, per_step) == (4, [1, 1, 1])


def test_a_block_of_one_task_does_not_allow_the_syncs_of_another(x):
    async def allowing():
        with allow("meant"):
            await asyncio.sleep(0.05)
            x.sum().item()

    async def other():
        await asyncio.sleep(0.01)
        x.sum().item()

    async def both():
        await asyncio.gather(allowing(), other())

    with record(recorder="cupti") as seen:
        asyncio.run(both())
    assert [sync.allowed for sync in seen.result().all_syncs] == [None, "meant"]


def test_the_loop_over_a_generator_is_not_allowed_by_it(x):
    def batches():
        with allow("the loader may wait"):
            for _ in range(3):
                yield x

    with record(recorder="cupti") as seen:
        for batch in batches():
            batch.sum().item()
    assert seen.syncs == 3


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_syncs_of_a_process_are_reported_to_the_region(method):
    with record(recorder="cupti", children=True) as seen:
        process = multiprocessing.get_context(method).Process(target=read, args=(3,))
        process.start()
        process.join()
    (child,) = seen.children()
    assert (child.problem, len(child.all_syncs)) == (None, 3)


def test_the_syncs_of_a_subprocess_are_reported_to_the_region():
    with record(recorder="cupti", children=True) as seen:
        subprocess.run([sys.executable, "-c", READ], check=True)
    (child,) = seen.children()
    assert (child.problem, len(child.all_syncs)) == (None, 3)


def test_a_process_without_our_environment_that_still_runs_is_unseen():
    code = READ + "\nprint('ready', flush=True)\ninput()"
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        with record(recorder="cupti", children=True) as seen:
            assert process.stdout.readline() == "ready\n"
        (child,) = seen.children()
        assert "used the device unseen" in child.problem
    finally:
        process.communicate("\n", timeout=60)
