"""GS711: coroutines that wait for the GPU while other tasks share their event loop."""

from __future__ import annotations

import pytest
from gpusync_lint.model.levels import Heat

SETUP = """
import asyncio
import torch
net = torch.nn.Linear(4, 4).cuda()
def read(y):
    return y.cpu()
async def infer(x):
    y = net(x)
    {body}
"""
GATHERED = "async def main(xs):\n    return await asyncio.gather(*(infer(x) for x in xs))\n"


def shared(findings):
    return [finding.span.line for finding in findings if finding.code == "GS711"]


STARTS = {
    "gather": (GATHERED, True),
    "a list of coroutines": (
        "async def main(xs):\n    jobs = [infer(x) for x in xs]\n    await asyncio.gather(*jobs)\n",
        True,
    ),
    "create_task": ("async def main(x):\n    job = asyncio.create_task(infer(x))\n    await job\n", True),
    "a task group": (
        "async def main(x):\n    async with TaskGroup() as g:\n        g.create_task(infer(x))\n",
        True,
    ),
    "a function that is passed": ("async def main(nursery, x):\n    nursery.start_soon(infer, x)\n", True),
    "a coroutine that awaits it": (
        "async def outer(x):\n    return await infer(x)\nasync def main(x):\n    await asyncio.gather(outer(x))\n",
        True,
    ),
    "run": ("asyncio.run(infer(torch.ones(4, device='cuda')))\n", False),
    "nothing": ("", False),
    "a gather of others": ("async def main(xs):\n    await asyncio.gather(*(asyncio.sleep(x) for x in xs))\n", False),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_coroutine_is_shared_when_something_starts_it_beside_others(lint, name):
    code, expected = STARTS[name]
    assert shared(lint(SETUP.format(body="return y.cpu()") + code)) == ([9] if expected else [])


BODIES = {
    "a copy to the host": ("return y.cpu()", [9]),
    "a synchronize": ("torch.cuda.synchronize(); return y", [9]),
    "a branch": ("return 1 if y.sum() > 0 else 2", [9]),
    "a function that waits": ("return read(y)", [9]),
    "a thread": ("return await asyncio.to_thread(read, y)", []),
    "an executor": ("return await asyncio.get_running_loop().run_in_executor(None, read, y)", []),
    "an event that is polled": ("e = torch.cuda.Event(); e.record(); e.query(); await asyncio.sleep(0); return y", []),
    "a wait that is called later": ("return lambda: y.cpu()", []),
    "no wait": ("return y", []),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_blocks_the_event_loop(lint, name):
    body, expected = BODIES[name]
    assert shared(lint(SETUP.format(body=body) + GATHERED)) == expected


def test_only_the_first_wait_of_a_coroutine_is_reported_and_it_is_hot(lint):
    found = lint(SETUP.format(body="a = y.cpu(); return a, y.sum().item()") + GATHERED)
    (finding,) = [one for one in found if one.code == "GS711"]
    assert (finding.span.line, finding.heat) == (9, Heat.STEP)
    assert {one.code for one in found} >= {"GS201", "GS202"}


def test_the_function_that_waits_may_be_in_another_file(lint):
    code = "import asyncio\nimport torch\nfrom tools import read\nasync def infer(y):\n    return read(y)\n" + GATHERED
    tools = "import torch\nnet = torch.nn.Linear(4, 4).cuda()\ndef read(y):\n    return net(y).cpu()\n"
    assert shared(lint(code, tools=tools)) == [5]


@pytest.mark.parametrize(
    ("decorator", "expected"),
    [("@app.post('/predict')\n", True), ("@app.get('/')\n", True), ("@app.middleware('http')\n", False), ("", False)],
)
def test_a_handler_of_a_web_framework_is_shared(lint, decorator, expected):
    code = (
        "import torch\nfrom fastapi import FastAPI\napp = FastAPI()\nnet = torch.nn.Linear(4, 4).cuda()\n"
        f"{decorator}async def predict():\n    return net(torch.zeros(4, device='cuda')).tolist()\n"
    )
    assert bool(shared(lint(code))) == expected
