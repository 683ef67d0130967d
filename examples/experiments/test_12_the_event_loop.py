"""Inference in coroutines, four at a time: a blocking copy in one of them stalls the event loop for all tasks.

`await` does not help if the line that waits is an ordinary call: `y.cpu()` blocks the thread of the loop. The wait
belongs on a thread (`asyncio.to_thread`), or is for an event that is asked for and not waited for. On the thread, wait
for an event too: a pageable copy (`y.cpu()`) there kept the loop from running for more than half of the time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

TASKS, PRODUCTS = 4, 4


@pytest.fixture
def weight(simulated):
    size = 16 if simulated else 4096
    return torch.randn(size, size, device="cuda") / size**0.5


def forward(weight):
    value = weight
    for _ in range(PRODUCTS):
        value = value @ weight
    return value.sum()


async def blocking(weight):
    return float(forward(weight).cpu())


def copied(weight):
    """Return pinned memory that the result is copied to, and an event after the copy."""
    value, done = forward(weight), torch.cuda.Event()
    host = torch.empty((), pin_memory=True).copy_(value, non_blocking=True)
    done.record()
    return host, done


async def on_a_thread(weight):
    host, done = copied(weight)
    await asyncio.to_thread(done.synchronize)
    return float(host)


async def until_an_event(weight):
    host, done = copied(weight)
    while not done.query():
        await asyncio.sleep(0.0005)
    return float(host)


REMEDIES = [on_a_thread, until_an_event]


async def gathered(infer, weight):
    return await asyncio.gather(*(infer(weight) for _ in range(TASKS)))


@pytest.mark.parametrize("remedy", REMEDIES)
def test_the_thread_of_the_loop_makes_no_sync(weight, planted, gpu_sync, remedy, report_result):
    loop_thread = threading.current_thread().name
    forward(weight).item()
    counts = []
    for infer in (blocking, blocking if planted else remedy):
        with gpu_sync.record() as seen:
            asyncio.run(gathered(infer, weight))
        counts.append(sum(sync.thread == loop_thread for sync in seen.result().all_syncs))
    report_result(f"syncs on the loop's thread: {counts[0]} with a blocking copy, {counts[1]} with the remedy")
    assert counts == [TASKS, 0]


WAIT_S = 0.05


async def blocked_for_a_wait(_):
    time.sleep(WAIT_S)


async def a_wait_on_a_thread(_):
    await asyncio.to_thread(time.sleep, WAIT_S)


async def a_wait_until_an_event(_):
    end = time.perf_counter() + WAIT_S
    while time.perf_counter() < end:
        await asyncio.sleep(0.0005)


@pytest.mark.parametrize("remedy", [a_wait_on_a_thread, a_wait_until_an_event])
def test_other_tasks_get_turns_while_the_remedy_waits(planted, remedy, report_result):
    """Without a GPU: the wait for the device is a sleep of 50 ms."""

    async def turns_of_others(infer):
        turns, running = [time.perf_counter()], True

        async def other():
            while running:
                await asyncio.sleep(0)
                turns.append(time.perf_counter())

        task = asyncio.create_task(other())
        await gathered(infer, None)
        running = False
        await task
        return len(turns), max(after - before for before, after in pairwise(turns))

    blocked, stall = asyncio.run(turns_of_others(blocked_for_a_wait))
    free, pause = asyncio.run(turns_of_others(blocked_for_a_wait if planted else remedy))
    report_result(
        f"turns of another task during four waits of {WAIT_S * 1e3:.0f} ms: {blocked} if they block, the loop stalls "
        f"for {stall * 1e3:.0f} ms; {free} with the remedy, at most {pause * 1e3:.0f} ms apart"
    )
    # All four waits lie between two turns. With the remedy, the number of turns depends on the machine only.
    assert blocked < 10
    assert stall >= TASKS * WAIT_S
    assert free > 20


async def longest_stall(infer, weight):
    """Return the longest time in seconds for which no other task ran, and the time of the inference."""
    longest, running = 0.0, True

    async def heartbeat():
        nonlocal longest
        before = time.perf_counter()
        while running:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, before = max(longest, now - before), now

    other = asyncio.create_task(heartbeat())
    await asyncio.sleep(0)
    start = time.perf_counter()
    await gathered(infer, weight)
    took = time.perf_counter() - start
    running = False
    await other
    return longest, took


@pytest.mark.gpu_only
@pytest.mark.parametrize("remedy", REMEDIES)
def test_a_blocking_copy_stalls_the_loop_and_the_remedy_does_not(weight, planted, remedy, report_result):
    def best_of_three(infer):
        asyncio.run(gathered(infer, weight))
        return min(asyncio.run(longest_stall(infer, weight)) for _ in range(3))

    stalled, took = best_of_three(blocking)
    with_remedy, took_with_remedy = best_of_three(blocking if planted else remedy)
    report_result(
        f"longest stall of the loop {stalled * 1e3:.1f} ms of {took * 1e3:.1f} ms with a blocking copy, "
        f"{with_remedy * 1e3:.1f} ms of {took_with_remedy * 1e3:.1f} ms with the remedy"
    )
    assert stalled > 0.5 * took
    assert with_remedy < 0.25 * took_with_remedy
