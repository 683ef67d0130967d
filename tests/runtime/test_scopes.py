"""What ``allow()`` and a region cover: threads, thread pools, tasks of event loops, generators."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from pytest_gpusync.measure import recording, scopes
from pytest_gpusync.measure.recording import allow
from pytest_gpusync.measure.region import record
from pytest_gpusync.model.measurement import MeasurementError


def together(*functions):
    async def both():
        await asyncio.gather(*(function() for function in functions))

    asyncio.run(both())


def counted(region):
    return sum(1 for sync in region.result().all_syncs if sync.allowed is None and not sync.background)


def allowed(region):
    return [sync.allowed for sync in region.result().all_syncs if sync.allowed is not None]


@pytest.fixture(autouse=True)
def nothing_is_left_open():
    yield
    assert scopes._open == ()
    assert recording._allowed == ()


def test_a_block_of_a_task_does_not_allow_what_another_task_does(scripted):
    async def allowing():
        with allow("meant"):
            await asyncio.sleep(0.01)
            scripted.sync()

    async def other():
        await asyncio.sleep(0)
        scripted.sync()

    with record() as seen:
        together(allowing, other)
    assert (counted(seen), allowed(seen)) == (1, ["meant"])


def test_a_block_of_a_task_allows_the_tasks_and_the_threads_that_it_hands_work_to(scripted):
    async def child():
        await asyncio.sleep(0)
        scripted.sync()

    async def allowing():
        with allow("meant"):
            await asyncio.gather(child(), child())
            await asyncio.to_thread(scripted.sync)

    with record() as seen:
        together(allowing)
    assert (counted(seen), allowed(seen)) == (0, ["meant"] * 3)


def test_a_block_outside_of_tasks_allows_all_that_runs_in_it(scripted):
    async def work():
        await asyncio.sleep(0)
        scripted.sync()

    with record() as seen, allow("meant"):
        together(work, work)
    assert allowed(seen) == ["meant"] * 2


def test_regions_of_two_tasks_do_not_count_each_others_syncs(scripted):
    regions = {}

    async def region(name, syncs):
        with record(name) as regions[name]:
            for _ in range(syncs):
                scripted.sync()
                await asyncio.sleep(0)

    with record() as both:
        together(lambda: region("one", 1), lambda: region("three", 3))
    assert {name: len(seen.result().all_syncs) for name, seen in regions.items()} == {"one": 1, "three": 3}
    assert counted(both) == 4


def test_a_region_of_a_task_names_the_syncs_of_a_task_without_one(scripted):
    regions = []

    async def region():
        with record() as seen:
            regions.append(seen)
            await asyncio.sleep(0.01)

    async def other():
        await asyncio.sleep(0)
        scripted.sync()

    together(region, other)
    (sync,) = regions[0].result().all_syncs
    assert (sync.background, sync.thread) == (True, "MainThread, another task")


def test_a_region_of_a_task_counts_the_tasks_that_it_starts(scripted):
    async def child():
        await asyncio.sleep(0)
        scripted.sync()

    async def region():
        with record() as seen:
            await asyncio.gather(child(), asyncio.to_thread(scripted.sync))
        assert counted(seen) == 2

    together(region)


def test_buffered_calls_are_delivered_at_once_while_a_task_has_a_block_open(scripted):
    switched = []
    scripted.buffer_calls = switched.append

    async def allowing():
        with allow("meant"):
            await asyncio.sleep(0)

    with record():
        together(allowing)
    assert switched == [True, False, True]


def test_the_loop_over_a_generator_is_not_allowed_by_a_block_of_the_generator(scripted):
    def loader():
        with allow("the loader may wait"):
            for _ in range(2):
                scripted.sync()
                yield

    with record() as seen:
        for _ in loader():
            scripted.sync()
    assert (counted(seen), allowed(seen)) == (2, ["the loader may wait"] * 2)


def test_an_asynchronous_generator_does_not_allow_its_consumer_either(scripted):
    async def loader():
        with allow("the loader may wait"):
            scripted.sync()
            yield
            await asyncio.sleep(0)
            scripted.sync()

    async def consume():
        async for _ in loader():
            scripted.sync()

    with record() as seen:
        together(consume)
    assert (counted(seen), allowed(seen)) == (1, ["the loader may wait"] * 2)


def test_a_context_manager_made_of_a_generator_allows_its_body(scripted):
    @contextmanager
    def meant():
        with allow("meant"):
            yield

    @contextmanager
    def meant_by_stack():
        with ExitStack() as stack, meant():
            stack.enter_context(allow("stacked"))
            yield

    with record() as seen:
        with meant():
            scripted.sync()
        with meant_by_stack():
            scripted.sync()
    assert (counted(seen), allowed(seen)) == (0, ["meant", "stacked"])


def test_a_generator_that_uses_such_a_context_manager_does_not_allow_its_consumer(scripted):
    @contextmanager
    def meant():
        with allow("meant"):
            yield

    def loader():
        with meant():
            scripted.sync()
            yield

    with record() as seen:
        for _ in loader():
            scripted.sync()
    assert (counted(seen), allowed(seen)) == (1, ["meant"])


def test_a_function_can_be_decorated_with_allow(scripted):
    @allow("meant")
    def work(depth):
        scripted.sync()
        if depth:
            work(depth - 1)
        scripted.sync()

    with record() as seen:
        work(2)
    assert allowed(seen) == ["meant"] * 6


def test_work_that_is_handed_to_a_thread_pool_belongs_to_the_blocks_that_hand_it(scripted):
    with record() as seen, ThreadPoolExecutor(1) as pool:
        pool.submit(scripted.sync).result()
        with allow("meant"):
            pool.submit(scripted.sync).result()
        assert pool.submit(lambda a, *, b: (a, b), 1, b=2).result() == (1, 2)
    assert (counted(seen), allowed(seen)) == (1, ["meant"])


def test_a_thread_pool_is_left_as_it_was(scripted):
    submit = ThreadPoolExecutor.submit
    with record(), ThreadPoolExecutor(1) as pool:
        assert ThreadPoolExecutor.submit is not submit
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 / 0).result()
    assert ThreadPoolExecutor.submit is submit


def test_a_thread_counts_from_its_first_step_of_an_optimizer_on_and_before(scripted):
    def train():
        for _ in range(3):
            scripted.sync()
            recording.current._optimizer_stepped(optimizer, (), {})

    optimizer = type("Optimizer", (), {})()
    with record() as seen:
        thread = threading.Thread(target=train, name="trainer")
        thread.start()
        thread.join()
        other = threading.Thread(target=scripted.sync, name="logger")
        other.start()
        other.join()
    result = seen.result()
    assert [(sync.thread, sync.background) for sync in result.all_syncs] == [("trainer", False)] * 3 + [
        ("logger", True)
    ]
    assert (result.steps, result.device_used) == (3, True)


class TestUnderTorchCompile:
    """``backend="eager"`` traces as any backend does, and compiles nothing."""

    @pytest.fixture(autouse=True)
    def torch(self):
        torch = pytest.importorskip("torch")
        torch.compiler.reset()
        yield torch
        torch.compiler.reset()

    def test_allow_is_traced_without_a_graph_break(self, torch):
        @torch.compile(fullgraph=True, backend="eager")
        def double(x):
            with allow("meant"):
                return x * 2

        assert double(torch.ones(2)).tolist() == [2, 2]

    def test_record_is_traced_without_a_graph_break_and_measures_nothing(self, torch):
        @torch.compile(fullgraph=True, backend="eager")
        def double(x):
            with record() as seen:
                y = x * 2
            return y, seen

        doubled, seen = double(torch.ones(2))
        assert doubled.tolist() == [2, 2]
        with pytest.raises(MeasurementError, match=r"torch\.compile traced the region"):
            _ = seen.syncs

    def test_allow_around_a_graph_break_allows_the_sync_that_breaks_the_graph(self, torch, scripted):
        def read(x):
            with allow("meant"):
                value = x.sum().item()
                scripted.sync()
            return x * value

        with record() as seen:
            torch.compile(read, backend="eager")(torch.ones(2))
        assert allowed(seen) == ["meant"]
