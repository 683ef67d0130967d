"""Work that can overlap other work: copies and kernels, graphs, reductions during backward, concurrent tasks."""

from __future__ import annotations

import asyncio

import pytest

torch = pytest.importorskip("torch")


class Pipeline:
    """Batches copied on a separate stream, into one buffer or alternately into two."""

    def __init__(self, simulated: bool, buffers: int) -> None:
        rows, columns = (8, 8) if simulated else (4096, 2048)
        self.weight = torch.randn(columns, columns, device="cuda") / columns**0.5
        self.host = [torch.ones(rows, columns, pin_memory=True) for _ in range(2)]
        self.device = [torch.empty(rows, columns, device="cuda") for _ in range(buffers)]
        self.copies = torch.cuda.Stream()
        self.filled = [torch.cuda.Event() for _ in range(buffers)]
        self.used = [torch.cuda.Event() for _ in range(buffers)]
        self.number = 0

    def copy(self):
        buffer = self.number % len(self.device)
        with torch.cuda.stream(self.copies):
            self.copies.wait_event(self.used[buffer])
            self.device[buffer].copy_(self.host[self.number % 2], non_blocking=True)
            self.filled[buffer].record()

    def compute(self):
        buffer = self.number % len(self.device)
        torch.cuda.current_stream().wait_event(self.filled[buffer])
        value = self.device[buffer]
        for _ in range(4):
            value = value @ self.weight
        self.used[buffer].record()
        self.number += 1

    def both(self):
        self.copy()
        self.compute()

    def only_copy(self):
        self.copy()
        torch.cuda.current_stream().wait_stream(self.copies)
        self.used[self.number % len(self.device)].record()
        self.number += 1


@pytest.mark.parametrize("buffers", [1, 2])
def test_a_pipeline_never_makes_the_host_wait(simulated, planted, gpu_train, report_result, buffers):
    pipeline = Pipeline(simulated, buffers)

    def step():
        pipeline.both()
        if planted:
            pipeline.copies.synchronize()

    run = gpu_train(step, steps=12, warmup=4)
    report_result(f"{buffers} buffers: {max(run.syncs_per_step)} syncs per batch")
    run.assert_syncs(max=0)


def test_two_buffers_let_copies_hide_behind_kernels(simulated, planted, gpu_elapsed, report_result):
    for buffers in (1, 1 if planted else 2):
        pipeline = Pipeline(simulated, buffers)
        found = gpu_elapsed.overlap(pipeline.only_copy, pipeline.compute, pipeline.both, rounds=12, calls=5)
        report_result(f"{buffers} buffers: {found}")
    assert found.low > 0.5


@pytest.fixture
def small_layers():
    """Return many small layers and their input: they take longer to launch than to run."""
    layers = [
        layer for _ in range(32) for layer in (torch.nn.Linear(128, 128), torch.nn.LayerNorm(128), torch.nn.GELU())
    ]
    return torch.nn.Sequential(*layers).to("cuda", torch.bfloat16), torch.ones(32, 128, device="cuda").bfloat16()


@pytest.mark.gpu_only
def test_a_replayed_graph_costs_one_launch(small_layers, planted, gpu_elapsed, report_result):
    layers, batch = small_layers
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        for _ in range(3):
            layers(batch)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            layers(batch)

        def eager():
            with torch.no_grad():
                layers(batch)

        ratio = gpu_elapsed.ratio(eager, eager if planted else graph.replay, rounds=12, tolerance=0.1)
    report_result(f"eager, compared with replay: {ratio}")
    assert ratio.low > 1.25


def test_inference_on_several_streams_blocks_none_of_them(gpu_sync, simulated, planted, report_result):
    size = 16 if simulated else 1024
    weight = torch.randn(size, size, device="cuda") / size**0.5

    async def answer(stream):
        stream.wait_stream(torch.cuda.current_stream())  # which made the weight
        with torch.cuda.stream(stream):
            done, value = torch.cuda.Event(), weight
            for _ in range(10):
                value = value @ weight
            host = torch.empty((), pin_memory=True).copy_(value.sum(), non_blocking=not planted)
            done.record()
        while not done.query():
            await asyncio.sleep(0)
        return float(host)

    async def answers():
        return await asyncio.gather(*(answer(torch.cuda.Stream()) for _ in range(4)))

    with gpu_sync.budget(max=0) as seen:
        found = asyncio.run(answers())
    report_result(f"four streams, each waiting for its own event: {seen.syncs} syncs")
    assert found == [found[0]] * 4


RAY_TASKS = 4


def test_ray_tasks_gathered_once_run_side_by_side(planted, report_result):
    ray = pytest.importorskip("ray")
    import time

    ray.init(num_cpus=RAY_TASKS, include_dashboard=False, log_to_driver=False)
    try:

        @ray.remote(num_cpus=1)
        def nap(seconds):
            time.sleep(seconds)

        ray.get([nap.remote(0.0) for _ in range(RAY_TASKS)])
        start = time.perf_counter()
        for _ in range(RAY_TASKS):
            ray.get(nap.remote(0.5))
        in_the_loop = time.perf_counter() - start
        start = time.perf_counter()
        if planted:
            [ray.get(nap.remote(0.5)) for _ in range(RAY_TASKS)]
        else:
            ray.get([nap.remote(0.5) for _ in range(RAY_TASKS)])
        gathered = time.perf_counter() - start
    finally:
        ray.shutdown()
    report_result(f"{RAY_TASKS} tasks: {in_the_loop:.2f} s with ray.get in the loop, {gathered:.2f} s gathered once")
    assert gathered < 0.6 * in_the_loop
