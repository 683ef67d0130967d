"""However a program with the simulated device and an open region ends, torch and the process are as before."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time

import pytest
import torch
from torch_state import at_exit, changes, torch_state

from pytest_gpusync import allow, record, simulated_cuda

ENDINGS = {}


def ending(function):
    ENDINGS[function.__name__] = function
    return function


def train(steps=2):
    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4).cuda()).sum()
        loss.backward()
        optimizer.step()
        with allow("the loss is logged"):
            loss.item()


def measured(body):
    """Train in a region, then call `body`, which may raise."""
    with simulated_cuda(), record(children=True):
        train()
        body()


def raises(error):
    def body():
        raise error

    return body


@ending
def returns():
    measured(lambda: None)


@ending
def an_exception():
    with pytest.raises(ValueError, match="mine"):
        measured(raises(ValueError("mine")))


@ending
def system_exit():
    with pytest.raises(SystemExit):
        measured(raises(SystemExit(3)))


@ending
def ctrl_c():
    def body():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            measured(body)
    finally:
        signal.signal(signal.SIGINT, before)


@ending
def a_time_limit_by_a_signal():
    class TooLong(BaseException):
        pass

    def expire(number, frame):
        raise TooLong

    def body():
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        while True:
            train()

    before = signal.signal(signal.SIGALRM, expire)
    try:
        with pytest.raises(TooLong):
            measured(body)
    finally:
        signal.signal(signal.SIGALRM, before)


@ending
def endless_recursion():
    def deeper():
        return deeper() + torch.zeros(1, device="cuda")

    with pytest.raises(RecursionError):
        measured(deeper)


@ending
def no_memory():
    with pytest.raises(MemoryError):
        measured(raises(MemoryError()))


@ending
def no_memory_on_the_device():
    with pytest.raises(torch.OutOfMemoryError):
        measured(lambda: torch.empty(1 << 50, device="cuda"))


@ending
def a_child_that_exits_at_once():
    def body():
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        train()

    measured(body)


@ending
def a_child_that_leaves_the_blocks():
    child = os.fork()
    if not child:
        code = 1
        try:
            measured(lambda: None)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0

    def body():
        nonlocal child
        child = os.fork()

    measured(body)  # both processes leave
    if not child:
        os._exit(3 if torch.cuda.is_available() else 0)
    assert os.waitpid(child, 0)[1] == 0


@ending
def a_thread_that_goes_on():
    ended = threading.Event()

    def work():
        while not ended.is_set():
            try:
                train(1)
            except (AssertionError, RuntimeError):  # torch's own error for cuda without a GPU
                ended.set()

    thread = threading.Thread(target=work)
    measured(thread.start)
    assert ended.wait(10)
    thread.join()


@ending
def a_generator_that_is_closed():
    def steps():
        with simulated_cuda(), record():
            train()
            yield
            train()

    generator = steps()
    next(generator)
    generator.close()


@ending
def a_generator_that_is_dropped():
    def steps():
        with simulated_cuda(), record(), allow("all of it"):
            train()
            yield
            train()

    generator = steps()
    next(generator)
    del generator
    gc.collect()


@ending
def a_cancelled_task():
    async def body():
        with simulated_cuda(), record(), allow("all of it"):
            train()
            await asyncio.sleep(60)

    async def main():
        task = asyncio.create_task(body())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


@ending
def blocks_that_are_left_in_the_wrong_order():
    device, region = simulated_cuda(), record()
    device.__enter__()
    region.__enter__()
    train()
    device.__exit__(None, None, None)
    region.__exit__(None, None, None)


@ending
def a_training_in_a_thread_pool():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        measured(lambda: pool.submit(train).result())


@pytest.fixture(scope="module")
def first_use():
    """What the first use loads and keeps for the life of the process."""
    measured(lambda: None)
    asyncio.run(asyncio.sleep(0))


@pytest.mark.parametrize("name", ENDINGS)
def test_everything_is_as_before(first_use, name):
    before, exits = torch_state(), at_exit()
    ENDINGS[name]()
    assert changes(before, torch_state()) == {}
    assert at_exit() == exits
    with simulated_cuda(), record() as seen:
        torch.zeros(1, device="cuda").item()
    assert seen.syncs == 1


AT_EXIT = """
import atexit, sys, threading
import torch, torch.optim
from pytest_gpusync import record, simulated_cuda
def end():
    x = torch.zeros(1, device="cuda").item()
    region.__exit__(None, None, None)
    device.__exit__(None, None, None)
    print(region_seen.syncs, torch.cuda.is_available())
if sys.argv[-1] == "atexit":
    atexit.register(end)
device, region = simulated_cuda(), record(children=True)
device.__enter__()
region_seen = region.__enter__()
if sys.argv[-1] == "thread":
    threading.Thread(target=end).start()
"""


@pytest.mark.parametrize("how", ["atexit", "thread"])
def test_blocks_that_are_left_as_the_interpreter_ends(run_python, how):
    done = run_python(f"import sys; sys.argv.append({how!r})\n{AT_EXIT}")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{1 if how == 'atexit' else 0} False\n", "")


@pytest.mark.parametrize("leave", ["sys.exit(4)", "os._exit(4)", "os.abort()", "signal.raise_signal(signal.SIGTERM)"])
def test_a_process_that_ends_within_the_blocks_leaves_nothing_behind(run_python, tmp_path, monkeypatch, leave):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = run_python(
        "import os, signal, sys, torch\nfrom pytest_gpusync import record, simulated_cuda\n"
        f"with simulated_cuda(), record():\n    torch.zeros(1, device='cuda').item()\n    {leave}"
    )
    assert done.returncode in (4, -signal.SIGABRT, -signal.SIGTERM), done.stderr
    assert list(tmp_path.iterdir()) == []
