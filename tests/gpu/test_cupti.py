"""What the CUPTI recorder counts on a real GPU, and that nothing is left behind."""

from __future__ import annotations

import gc
import os
import re
import threading
import time
import weakref

import pytest

torch = pytest.importorskip("torch")

from pytest_gpusync import allow, record  # noqa: E402
from pytest_gpusync.model.site_counts import syncs_per_step  # noqa: E402

WITHOUT_EXPANDABLE_SEGMENTS = pytest.mark.skipif(
    "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
    reason="expandable segments are unmapped, not freed, and every synchronize is logged without Python",
)


@pytest.fixture
def x():
    return torch.ones(64, 64, device="cuda")


def seen_by(call):
    """Return (kind, direction, bytes) of every sync that `call` made."""
    with record(recorder="cupti") as seen:
        call()
    result = seen.result()
    assert result.problem is None, result.problem
    return [(s.kind, s.direction, s.nbytes) for s in result.all_syncs]


HOST = {
    "pageable": lambda n: torch.ones(n, dtype=torch.uint8),
    "pinned": lambda n: torch.ones(n, dtype=torch.uint8).pin_memory(),
}

WAITS = {
    "item": (lambda x: x[0, 0].item(), [("stream", "D2H", 4)]),
    "cpu": (lambda x: x.cpu(), [("stream", "D2H", 16384)]),
    "bool": (lambda x: bool(x.any()), [("stream", "D2H", 1)]),
    "to-device": (lambda x: torch.ones(8).to("cuda"), [("stream", "H2D", 32)]),
    "device-synchronize": (lambda x: torch.cuda.synchronize(), [("device", None, None)]),
    "stream-synchronize": (lambda x: torch.cuda.current_stream().synchronize(), [("stream", None, None)]),
    "event-synchronize": (lambda x: recorded_event().synchronize(), [("event", None, None)]),
    "pageable-non-blocking-to-host": (
        lambda x: torch.empty(64, 64).copy_(x, non_blocking=True),
        [("pageable", "D2H", 16384)],
    ),
    "pageable-non-blocking-to-device-large": (
        lambda x: HOST["pageable"](8 << 20).to("cuda", non_blocking=True),
        [("pageable", "H2D", 8 << 20)],
    ),
    "svd": (lambda x: torch.linalg.svdvals(torch.eye(256, device="cuda")), None),
}

DOES_NOT_WAIT = {
    "add": lambda x: x + 1,
    "matmul": lambda x: x @ x,
    "pinned-non-blocking": lambda x: torch.empty(64, 64, pin_memory=True).copy_(x, non_blocking=True),
    "pageable-non-blocking-to-device-small": lambda x: torch.ones(64).to("cuda", non_blocking=True),
    "masked-fill": lambda x: x.masked_fill_(x > 0, 0.0),
    "event-record": lambda x: recorded_event(),
    "event-query": lambda x: recorded_event().query(),
    "wait-stream": lambda x: torch.cuda.current_stream().wait_stream(torch.cuda.Stream()),
    "full": lambda x: torch.full((4,), 1.0, device="cuda"),
}


def recorded_event():
    event = torch.cuda.Event()
    event.record()
    return event


@pytest.mark.parametrize("name", WAITS)
def test_what_waits_is_counted(name, x):
    call, expected = WAITS[name]
    call(x)  # first use loads libraries and grows pools
    seen = seen_by(lambda: call(x))
    if expected is None:
        assert len(seen) > 1
        assert {kind for kind, _, _ in seen} <= {"stream", "device"}
    else:
        assert seen == expected


@pytest.mark.parametrize("name", DOES_NOT_WAIT)
def test_what_does_not_wait_is_not_counted(name, x):
    DOES_NOT_WAIT[name](x)
    assert seen_by(lambda: DOES_NOT_WAIT[name](x)) == []


@WITHOUT_EXPANDABLE_SEGMENTS
def test_freed_device_memory_is_counted(x):
    big = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    del big
    assert ("free", None, None) in seen_by(torch.cuda.empty_cache)


def test_a_sync_in_backward_is_charged_to_its_line():
    weight = torch.ones(64, device="cuda", requires_grad=True)

    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value * 1

        @staticmethod
        def backward(ctx, gradient):
            gradient.sum().item()
            return gradient

    with record(recorder="cupti") as seen:
        Reads.apply(weight).sum().backward()
    (site,) = seen.sites
    assert site.site.function.endswith("Reads.backward")
    assert not site.background


def test_a_sync_of_autograds_own_thread_is_charged_to_the_backward_line():
    # The gradient of indexing with a mask expands the mask again, in C++, on autograd's thread.
    matrix = (torch.eye(64) * 2).to("cuda").requires_grad_()
    torch.linalg.eigvalsh(matrix).sum().backward()
    loss = torch.linalg.svd(matrix)[1].sum()
    values = torch.sparse.mm(torch.eye(8).to_sparse().to("cuda").requires_grad_(), torch.ones(8, 8, device="cuda"))
    with record(recorder="cupti") as seen:
        (loss + values.sum()).backward()
    for site in seen.sites:
        assert site.site.path.endswith("test_cupti.py")
        assert site.site.via is not None
        assert not site.background


@WITHOUT_EXPANDABLE_SEGMENTS
def test_a_sync_of_autograds_own_thread_names_the_operator(x):
    weight = x.clone().requires_grad_()
    mask = x > 0
    with record(recorder="cupti") as seen:
        for _ in range(3):
            loss = weight.reshape(-1)[mask.reshape(-1)].sum()
            loss.backward()
    in_backward = [site for site in seen.sites if "_engine_run_backward" in (site.site.via or "")]
    [site] = in_backward
    function = test_a_sync_of_autograds_own_thread_names_the_operator
    line = function.__code__.co_firstlineno + 6
    # Indexing by a mask waits in forward, too: that tells its line.
    told = rf", in IndexBackward0, created at \S+test_cupti.py:{line} {function.__name__} or just before$"
    assert re.search(told, site.site.via), site.site.via
    assert site.syncs == 3
    assert in_backward[0].site.function.endswith("test_a_sync_of_autograds_own_thread_names_the_operator")


def test_blocked_time_is_the_time_the_queue_took(x):
    torch.cuda._sleep(1000)
    with record(recorder="cupti") as seen:
        torch.cuda._sleep(20_000_000)  # about 10 ms on an H200
        x[0, 0].item()
    (site,) = seen.sites
    assert site.blocked_ms is not None
    assert 3 < site.blocked_ms < 200


def test_a_sync_begins_where_the_host_began_to_wait(x):
    with record(recorder="cupti") as seen:
        for _ in range(3):
            time.sleep(0.05)  # longer than the clocks are left uncompared
            before = time.perf_counter_ns()
            x[0, 0].item()
            after = time.perf_counter_ns()
            seen.mark_step()
    measurement = seen.result()
    last = measurement.all_syncs[-1]
    opened = after - measurement.times.step_ends[-1]  # a moment too late, by the time of the mark
    assert before - opened - 1_000_000 < last.began_ns
    assert last.began_ns + last.blocked_ns < after - opened + 1_000_000


def test_a_sync_names_the_stream_that_it_waited_for(x):
    stream = torch.cuda.Stream()
    with record(recorder="cupti") as seen:
        for _ in range(2):
            stream.synchronize()
            x[0, 0].item()
            torch.cuda.synchronize()
    streams = [sync.stream for sync in seen.result().all_syncs]
    assert streams == [stream.cuda_stream, 0, None] * 2


def test_a_copy_of_pageable_memory_blocks_though_its_synchronize_has_nothing_left_to_wait_for(x):
    with record(recorder="cupti") as seen:
        torch.cuda._sleep(20_000_000)
        before = time.perf_counter_ns()
        x.cpu()
        took = time.perf_counter_ns() - before
    [sync] = seen.result().all_syncs
    assert 3_000_000 < 0.8 * took < sync.blocked_ns <= took


def test_threads_are_told_apart(x):
    def work() -> None:
        for _ in range(50):
            x.sum().item()

    threads = [threading.Thread(target=work, name=f"worker-{i}") for i in range(4)]
    with record(recorder="cupti") as seen:
        for thread in threads:
            thread.start()
        for _ in range(7):
            x.sum().item()
        for thread in threads:
            thread.join()
    assert seen.syncs == 7
    background = [c for c in seen.sites if c.background]
    assert sum(c.syncs for c in background) == 4 * 50
    assert {f"worker-{i}" for i in range(4)} <= {c.thread for c in background}


def test_allowed_syncs_are_not_counted(x):
    with record(recorder="cupti") as seen:
        with allow("the event is the point"):
            recorded_event().synchronize()
            x.sum().item()
        x.sum().item()
    assert seen.syncs == 1


def test_no_tensor_outlives_its_statement_because_of_the_recorder(x):
    with record(recorder="cupti"):
        host = torch.empty(64, 64)
        host.copy_(x, non_blocking=True)
        reference = weakref.ref(host)
        del host
        gc.collect()
        assert reference() is None


def test_optimizer_steps_are_seen():
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    with record(recorder="cupti") as seen:
        for _ in range(5):
            loss = model(torch.ones(4, 8, device="cuda")).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
    # The read after step() belongs to the next step, and that of the last step to none.
    assert syncs_per_step(seen.result()) == [1, 1, 1, 1]


def test_counting_works_after_a_profiler_was_used(x):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        (x @ x).sum().item()
    assert any(
        "gemm" in e.key.lower() or "cutlass" in e.key.lower() or "Memcpy" in e.key for e in profiler.key_averages()
    )
    assert seen_by(lambda: x.sum().item()) == [("stream", "D2H", 4)]


def test_a_running_profiler_is_left_intact_and_torchs_hooks_count(x):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        with record() as seen:
            (x @ x).sum().item()
        torch.cuda.synchronize()
    environment = seen.result().environment
    assert (environment.recorder, environment.coverage) == ("torch-hooks", "torch")
    assert "profiler" in environment.note
    assert seen.syncs == 1
    assert len(profiler.events()) > 0


def test_a_profiler_sees_its_gpu_events_after_counting(x):
    assert seen_by(lambda: x.sum().item()) == [("stream", "D2H", 4)]
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    ) as profiler:
        (x @ x).sum().item()
    assert any(event.device_time_total > 0 for event in profiler.key_averages())


def test_a_profiler_started_inside_a_region_gets_cupti_and_torchs_hooks_go_on_counting(x):
    with record() as seen:
        x.sum().item()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            (x @ x).sum().item()
        x.sum().item()
    assert seen.syncs >= 3  # the profiler waits for the device when it stops
    environment = seen.result().environment
    assert (environment.recorder, environment.coverage) == ("torch-hooks", "torch")
    assert "torch.profiler was started in the region" in environment.note
    assert any("Memcpy" in event.key for event in profiler.key_averages())
    assert seen_by(lambda: x.sum().item()) == [("stream", "D2H", 4)]


@pytest.mark.parametrize("previous", [0, 1])
def test_torch_hooks_restore_the_sync_debug_mode(x, previous):
    torch.cuda.set_sync_debug_mode(previous)
    try:
        with pytest.warns(UserWarning) if previous else record(recorder="torch-hooks"):
            if previous:
                with record(recorder="torch-hooks"):
                    x.sum().item()
            else:
                x.sum().item()
        assert torch.cuda.get_sync_debug_mode() == previous
    finally:
        torch.cuda.set_sync_debug_mode(0)


def test_torch_hooks_see_explicit_waits(x):
    with record(recorder="torch-hooks") as seen:
        torch.cuda.synchronize()
        recorded_event().synchronize()
        torch.cuda.current_stream().synchronize()
        x.sum().item()
    syncs = seen.result().all_syncs
    assert [s.kind for s in syncs] == ["device", "event", "stream", "stream"]
    # torch's warnings do not say which device is waited for.
    assert [s.device for s in syncs] == [0, 0, None, None]


def test_regions_open_and_close_without_growth(x):
    import resource

    for _ in range(200):
        with record(recorder="cupti"):
            pass
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2000):
        with record(recorder="cupti"):
            pass
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB


def test_allocating_to_exhaustion_in_threads_does_not_hang():
    """The allocator waits and frees under its lock; a callback that wants the GIL there would hang."""
    torch.cuda.set_per_process_memory_fraction(0.02)
    failures = []

    def work(seed: int) -> None:
        try:
            for i in range(60):
                try:
                    kept = [torch.empty((64 + seed + i) << 20, dtype=torch.uint8, device="cuda") for _ in range(12)]
                    kept[0].sum().item()
                    del kept
                except torch.cuda.OutOfMemoryError:
                    torch.cuda.empty_cache()
        except BaseException as error:
            failures.append(error)

    try:
        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(6)]
        with record(recorder="cupti") as seen:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(timeout=120)
            assert not any(thread.is_alive() for thread in threads)
        assert failures == []
        assert seen.result().problem is None
        assert {"free", "stream"} & {c.kind for c in seen.sites}
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
