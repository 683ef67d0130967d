"""Steps that end where a function of a name returns: functions, coroutines, generators, on any thread."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from pytest_gpusync.measure.step_at import StepAt, StepAtFollower


class Engine:
    """Its methods are those that a server calls."""

    def step(self):
        return 1

    async def answer(self):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return 2

    def tokens(self):
        yield 1
        yield 2

    async def stream(self):
        for token in range(3):
            await asyncio.sleep(0)
            yield token

    def refuse(self):
        raise ValueError

    @staticmethod
    def warm_up():
        return 1


def step():
    return 3


def serve(engine: Engine, held) -> None:
    held()
    engine.step()
    step()
    thread = threading.Thread(target=engine.step)
    thread.start()
    thread.join()
    list(engine.tokens())

    async def main() -> None:
        await asyncio.gather(engine.answer(), engine.answer())
        async for _ in engine.stream():
            pass

    asyncio.run(main())
    with pytest.raises(ValueError):
        engine.refuse()
    engine.warm_up()


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        pytest.param("Engine.step", 3, id="each return, by a bound method and on another thread"),
        pytest.param("test_step_at.Engine.step", 3, id="with the module"),
        pytest.param("step", 1, id="a function, not the methods of that name"),
        pytest.param("Engine.answer", 2, id="each return of a coroutine, not each wait"),
        pytest.param("Engine.tokens", 2, id="each value of a generator, not its end"),
        pytest.param("Engine.stream", 3, id="each value of an asynchronous generator, not each wait"),
        pytest.param("Engine.refuse", 0, id="not an exception"),
        pytest.param("Engine.warm_up", 1, id="a static method"),
    ],
)
def test_a_step_ends_at(name, steps):
    engine = Engine()
    held = engine.step
    serve(engine, held)
    profiler, ended = sys.getprofile(), []
    follower = StepAtFollower(StepAt(name))
    follower.start(lambda: ended.append(name))
    try:
        serve(engine, held)
    finally:
        follower.stop()
    serve(engine, held)
    assert len(ended) == steps
    assert sys.getprofile() is profiler


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Engine.stop", "Engine.stop() was not called"),
        ("Engin.refuse", "Engin.refuse() was not called; test_step_at.Engine.refuse was called: give that name"),
        ("Engine.refuse", "Engine.refuse() was called and did not return"),
    ],
)
def test_a_function_that_ended_no_step_is_named_with_the_reason(name, reason):
    engine = Engine()
    follower = StepAtFollower(StepAt(name))
    follower.start(lambda: None)
    try:
        serve(engine, engine.step)
    finally:
        follower.stop()
    assert follower.why_no_step.replace("tests.runtime.", "") == reason


@pytest.mark.parametrize("name", ["", "Engine step", "Engine.step()", "1", None])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(ValueError, match="step_at takes the name of a function"):
        StepAt(name)
