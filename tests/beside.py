"""Workloads that use a feature of torch beside the counting: each with the syncs it must be seen to make, and where.

The same table is held against a real GPU and against the simulated device.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 3


class Workload(NamedTuple):
    """What runs, and what it must be seen to do in `ROUNDS` rounds."""

    make: Callable[[], Callable[[], None]]
    """Sets up and returns one round."""
    syncs: dict[str, int]
    """Counted syncs of one round by the name of the function that is charged."""
    background: int = 0
    """Syncs of one round made by other threads."""
    on_simulated: bool = True


def _linear():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).cuda()
    return model, torch.optim.SGD(model.parameters(), lr=0.01), torch.ones(8, 16, device="cuda")


def autocast():
    model, optimizer, data = _linear()

    def autocast_round():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(data).float().mean()
        loss.backward()
        optimizer.step()
        loss.item()

    return autocast_round


def grad_scaler():
    model, optimizer, data = _linear()
    scaler = torch.amp.GradScaler("cuda")

    def grad_scaler_round():
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(data).float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # reads whether gradients overflowed
        scaler.update()

    return grad_scaler_round


def checkpointed():
    weight = torch.ones(16, device="cuda", requires_grad=True)

    def inner(x):
        return (x * x.sum().item()).sin()  # run again in backward, which needs the argument of sin

    def checkpointed_round():
        checkpoint(inner, weight, use_reentrant=False).sum().backward()

    return checkpointed_round


def hooks_in_backward():
    weight = torch.ones(16, device="cuda", requires_grad=True)

    def watch(gradient):
        gradient.norm().item()

    weight.register_hook(watch)

    def hooks_round():
        (weight * 2).sum().backward()

    return hooks_round


def pipeline():
    """Double buffering as it should be: pinned memory, a stream for copies, an event per batch."""
    side = torch.cuda.Stream()
    host = [torch.ones(1024).pin_memory() for _ in range(2)]

    def pipeline_round():
        for buffer in host:
            with torch.cuda.stream(side):
                on_device = buffer.to("cuda", non_blocking=True)
                copied = torch.cuda.Event()
                copied.record()
            torch.cuda.current_stream().wait_event(copied)
            (on_device * 2).sum()
            on_device.record_stream(torch.cuda.current_stream())
        copied.synchronize()

    return pipeline_round


def deterministic():
    data, index = torch.ones(64, device="cuda"), torch.arange(8, device="cuda")

    def deterministic_round():
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            data.index_add(0, index, torch.ones(8, device="cuda")).sum().item()
        finally:
            torch.use_deterministic_algorithms(False)

    return deterministic_round


def sync_debug_mode_warns():
    value = torch.ones(4, device="cuda")

    def debug_round():
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                value.sum().item()
            finally:
                torch.cuda.set_sync_debug_mode("default")

    return debug_round


def sync_debug_mode_raises():
    """A read that the mode forbids does not happen, and is no sync; a wait that it does not know of is one."""
    value = torch.ones(4, device="cuda")

    def forbidden_round():
        torch.cuda.set_sync_debug_mode("error")
        try:
            value.sum().item()
        except RuntimeError:
            torch.cuda.synchronize()
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return forbidden_round


def threads():
    value = torch.ones(4, device="cuda")

    def work():
        for _ in range(5):
            value.sum().item()

    def threads_round():
        workers = [threading.Thread(target=work) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        value.sum().item()

    return threads_round


def graph_replay():
    data = torch.ones(16, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        data.mul(2).sum()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = data.mul(2).sum()

    def replay_round():
        graph.replay()
        assert result.item() == 32.0

    return replay_round


def graph_capture():
    data = torch.ones(16, device="cuda")

    def capture_round():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # waits for the device before it captures
            result = data.mul(2).sum()
        graph.replay()
        assert result.item() == 32.0

    return capture_round


def graph_break():
    def broken(x):
        y = x * 2
        if y.sum().item() > 0:
            y = y + 1
        return y * 3

    compiled = torch.compile(broken)
    data = torch.ones(16, device="cuda")

    def compiled_round():
        compiled(data)

    return compiled_round


WORKLOADS = {
    "autocast": Workload(autocast, {"autocast_round": 1}),
    "grad scaler": Workload(grad_scaler, {"grad_scaler_round": 1}),
    "activation checkpointing": Workload(checkpointed, {"inner": 2}),
    "hooks in backward": Workload(hooks_in_backward, {"watch": 1}),
    "streams and events": Workload(pipeline, {"pipeline_round": 1}),
    "deterministic algorithms": Workload(deterministic, {"deterministic_round": 1}),
    "sync_debug_mode warn": Workload(sync_debug_mode_warns, {"debug_round": 1}),
    "sync_debug_mode error": Workload(sync_debug_mode_raises, {"forbidden_round": 1}),
    "threads": Workload(threads, {"threads_round": 1}, background=15),
    "graph replay": Workload(graph_replay, {"replay_round": 1}),
    "graph capture": Workload(graph_capture, {"capture_round": 2}),
    "graph break": Workload(graph_break, {"broken": 1}, on_simulated=False),
}


def syncs_by_function(measurement):
    """Return the counted syncs of a measurement by the function that is charged, and those of other threads.

    Memory that the allocator frees, a captured graph's for instance, is left out: when it does is its own affair.
    """
    counted: dict[str, int] = {}
    background = 0
    for sync in measurement.all_syncs:
        if sync.background:
            background += 1
        elif sync.kind != "free":
            name = sync.site.function.rsplit(".", 1)[-1]
            counted[name] = counted.get(name, 0) + 1
    return counted, background
