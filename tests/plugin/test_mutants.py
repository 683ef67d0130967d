"""Correct tests with one thing broken in each: every broken one fails, or its wait is named in the terminal."""

from __future__ import annotations

from textwrap import dedent, indent
from typing import NamedTuple

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("no_gpu")

FAILS = "fails"
"""The broken test fails; otherwise the line that names the wait, while the test passes."""
NAMED = "  test_a.py:5 *1 sync   {}*"

HEAD = """\
import asyncio, concurrent.futures, multiprocessing, pytest, subprocess, sys, threading, torch, unittest, worker

def read(device="cuda"):
    # The wait is in the next line.
    torch.ones(1, device=device).item()

def work(device="cuda"):
    torch.ones(1, device=device) + 1

def make(kind=torch.optim.SGD, device="cuda"):
    model = torch.nn.Linear(2, 2).to(device)
    return model, kind(model.parameters(), lr=0.1)

def step(model, optimizer, device="cuda"):
    model(torch.ones(3, 2, device=device)).sum().backward()
    optimizer.step()

def train(steps=4, device="cuda", each=lambda number: None, after=lambda: None, kind=torch.optim.SGD):
    parts = make(kind, device)
    for number in range(steps):
        each(number)
        step(*parts, device)
    after()

def gan(critic_reads=1):
    generator, critic = make(torch.optim.Adam), make()
    for _ in range(3):
        for _ in range(5):
            step(*critic)
            for _ in range(critic_reads): read()
        step(*generator)

def in_a_thread(function, name="worker"):
    thread = threading.Thread(target=function, name=name)
    thread.start()
    thread.join()

def in_a_pool(function, **options):
    with concurrent.futures.ThreadPoolExecutor(1, **options) as pool:
        return pool.submit(function).result()

def together(*functions):
    async def both():
        await asyncio.gather(*(function() for function in functions))
    asyncio.run(both())

def in_a_process(method, function):
    process = multiprocessing.get_context(method).Process(target=function)
    process.start()
    process.join()

"""

WORKER = """
    import torch

    def work(): torch.ones(1, device="cuda") + 1
    def read(): torch.ones(1, device="cuda").item()

    if __name__ == "__main__":
        import sys
        {"read": read, "work": work}[sys.argv[1]]()
    """

MARK = "@pytest.mark.gpu_sync_budget(max=0)\n"
MARKED = f"{MARK}def test_it(): BODY"


class Mutant(NamedTuple):
    correct: str
    broken: str
    outcome: str = FAILS
    test: str = MARKED
    """The test, with BODY for what is broken in it."""


MUTANTS = {
    # The device is not used.
    "the device is forgotten": Mutant("train()", "train(device='cpu')"),
    "the device is forgotten in a region": Mutant(
        "work()", "work('cpu')", test="def test_it(gpu_sync):\n    with gpu_sync.budget(max=0): BODY"
    ),
    "the region is around the wrong lines": Mutant(
        "x = 1; work()",
        "x = 1",
        test="def test_it(gpu_sync):\n    work()\n    with gpu_sync.budget(max=0): BODY\n    work()",
    ),
    "the step does nothing": Mutant(
        "work", "lambda: None", test="def test_it(gpu_train): gpu_train(BODY, steps=6).assert_syncs(max=0)"
    ),
    "the batches end in warm-up": Mutant(
        "9",
        "2",
        test="def test_it(gpu_train): gpu_train(lambda b: work(), iter([0] * BODY), steps=9).assert_syncs(max=0)",
    ),
    "the training trains nothing": Mutant(
        "train", "work", test="def test_it(gpu_train): gpu_train.whole(BODY, warmup=1).assert_syncs(max=0)"
    ),
    "the loop does not run": Mutant("train(4)", "train(0)"),
    "an error before the work is swallowed": Mutant(
        "None", "1 / 0", test=MARKED.replace("BODY", "\n    try: BODY; work()\n    except Exception: pass")
    ),
    "memory is made on the host": Mutant(
        "'cuda'", "'cpu'", test="@pytest.mark.gpu_memory_growth('1 MiB')\ndef test_it(): train(12, BODY)"
    ),
    "the training is moved into a fixture": Mutant(
        "train()",
        "pass",
        test="@pytest.fixture\ndef trained(): train()\n@pytest.mark.gpu_sync_budget(max=0)\ndef test_it(trained): BODY",
    ),
    "the training is moved into setUpClass": Mutant(
        "work()",
        "pass",
        test="class Test(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls): train()\n"
        "    @pytest.mark.gpu_sync_budget(max=0)\n    def test_it(self): BODY",
    ),
    # Threads and tasks.
    "a wait in a thread": Mutant("work()", "work(); in_a_thread(read)", NAMED.format("on thread worker")),
    "the work in a thread": Mutant("work()", "in_a_thread(work)"),
    "a wait in a thread pool": Mutant("in_a_pool(work)", "in_a_pool(read)"),
    "a wait as a thread of a pool begins": Mutant(
        "in_a_pool(work, initializer=work)", "in_a_pool(work, initializer=read)", NAMED.format("on thread ThreadPool*")
    ),
    "a wait in asyncio.to_thread": Mutant(
        "asyncio.run(asyncio.to_thread(work))", "asyncio.run(asyncio.to_thread(read))"
    ),
    "a wait in a training in a thread": Mutant(
        "in_a_thread(train)", "in_a_thread(lambda: train(each=lambda number: read()))"
    ),
    "a wait in a task": Mutant(
        "work()",
        "read()",
        test=MARKED.replace(
            "BODY", "\n    async def one(): BODY\n    async def other(): work()\n    together(one, other)"
        ),
    ),
    "a wait in the other of two regions": Mutant(
        "work()",
        "read()",
        test="def test_it(gpu_sync):\n    async def region(function):\n        with gpu_sync.budget(max=0):\n"
        "            await asyncio.sleep(0); function()\n    async def one(): await region(lambda: work())\n"
        "    async def other(): await region(lambda: BODY)\n    together(one, other)",
    ),
    # Processes.
    "a wait in a spawned process": Mutant("in_a_process('spawn', worker.work)", "in_a_process('spawn', worker.read)"),
    "a wait in a subprocess": Mutant(
        "'work'",
        "'read'",
        test=MARKED.replace("BODY", "subprocess.run([sys.executable, 'worker.py', BODY], check=True)"),
    ),
    # Set-up and tear-down.
    "a wait in a fixture": Mutant(
        "work()",
        "read()",
        NAMED.format("in set-up or tear-down"),
        "@pytest.fixture\ndef ready(): BODY\n@pytest.mark.gpu_sync_budget(max=0)\ndef test_it(ready): work()",
    ),
    "a wait in setup_method": Mutant(
        "work()",
        "read()",
        NAMED.format("in set-up or tear-down"),
        f"class Test:\n    def setup_method(self): BODY\n    {MARK}    def test_it(self): work()",
    ),
    "a wait in setUp": Mutant(
        "work()",
        "read()",
        NAMED.format("in set-up or tear-down"),
        "class Test(unittest.TestCase):\n    def setUp(self): BODY\n    @pytest.mark.gpu_sync_budget(max=0)\n"
        "    def test_it(self): work()",
    ),
    "a wait at the end of a fixture": Mutant(
        "work()",
        "read()",
        NAMED.format("in set-up or tear-down"),
        f"@pytest.fixture\ndef ready():\n    yield\n    BODY\n{MARK}def test_it(ready): work()",
    ),
    # Steps and warm-up.
    "a wait in each step": Mutant("train()", "train(each=lambda number: read())"),
    "a wait in one step": Mutant("train(9)", "train(9, each=lambda number: number == 7 and read())"),
    "a wait after the last step": Mutant("train()", "train(after=read)", "  syncs: * 1 outside of steps*"),
    "a wait in warm-up": Mutant(
        "train()", "train(each=lambda number: number == 0 and read())", "  syncs: 3 in warm-up steps*"
    ),
    "a wait in the second of two trainings": Mutant("train(); train()", "train(); train(each=lambda number: read())"),
    "a wait in the set-up of the second of two trainings": Mutant(
        "train(); train()", "train(); read(); train()", "  syncs: 2 in warm-up steps, 3 outside of steps*"
    ),
    "more warm-up than steps": Mutant(
        "4", "3", test="@pytest.mark.gpu_sync_budget(max=9, warmup=3)\ndef test_it(): train(BODY)"
    ),
    "the step of the wrong optimizer": Mutant(
        "'Adam'", "'SGD'", test="@pytest.mark.gpu_sync_budget(exact=5, step_on=BODY)\ndef test_it(): gan()"
    ),
    "the step of an optimizer that is not called": Mutant(
        "'Adam'", "'Adagrad'", test="@pytest.mark.gpu_sync_budget(max=5, step_on=BODY)\ndef test_it(): gan()"
    ),
    "one wait more in the steps of the critic": Mutant(
        "1", "2", test="@pytest.mark.gpu_sync_budget(max=5, step_on='Adam')\ndef test_it(): gan(BODY)"
    ),
    # allow()
    "allow() around a wait": Mutant(
        "work()",
        "read()",
        "  syncs: 1 allowed*",
        f"{MARK}def test_it(gpu_sync):\n    work()\n    with gpu_sync.allow('meant'): BODY",
    ),
    "a wait of a generator's consumer": Mutant(
        "work()",
        "read()",
        test="@pytest.mark.gpu_sync_budget(max=0)\ndef test_it(gpu_sync):\n    def batches():\n"
        "        with gpu_sync.allow('the loader may'): yield 1\n    for _ in batches(): BODY",
    ),
    "a wait of another task while one allows its own": Mutant(
        "work()",
        "read()",
        test="@pytest.mark.gpu_sync_budget(max=0)\ndef test_it(gpu_sync):\n    async def one():\n"
        "        with gpu_sync.allow('meant'): await asyncio.sleep(0.05)\n"
        "    async def other():\n        await asyncio.sleep(0.01); BODY\n    together(one, other)",
    ),
    # Elsewhere in the program.
    "a wait in a hook of backward": Mutant(
        "work()",
        "read()",
        test=f"{MARK}def test_it():\n    x = torch.ones(2, device='cuda', requires_grad=True)\n"
        "    x.register_hook(lambda gradient: BODY)\n    x.sum().backward()",
    ),
    "a test that is expected to fail does not": Mutant(
        "read()",
        "work()",
        test="class Test(unittest.TestCase):\n    @unittest.expectedFailure\n    @pytest.mark.gpu_sync_budget(max=0)\n"
        "    def test_it(self): BODY",
    ),
}


def source(mutant: Mutant, body: str) -> str:
    return indent(HEAD + dedent(mutant.test).replace("BODY", body), "    ")


@pytest.fixture
def run_beside_worker(run, pytester, monkeypatch):
    """Run a test beside the module ``worker``; processes that it starts find it too."""
    pytester.makepyfile(worker=WORKER)
    monkeypatch.syspath_prepend(str(pytester.path))
    return lambda text: run("-p", "no:randomly", test_a=text)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_correct_test_passes(run_beside_worker, name):
    mutant = MUTANTS[name]
    result = run_beside_worker(source(mutant, mutant.correct))
    result.assert_outcomes(**({"xfailed": 1} if "expectedFailure" in mutant.test else {"passed": 1}))


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_fails_or_is_named(run_beside_worker, name):
    mutant = MUTANTS[name]
    result = run_beside_worker(source(mutant, mutant.broken))
    if mutant.outcome == FAILS:
        result.assert_outcomes(failed=1)
    else:
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["not counted:", mutant.outcome])
