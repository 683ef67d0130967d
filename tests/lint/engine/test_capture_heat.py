"""What runs while CUDA graphs are captured: which lines, and from where they are reached."""

from __future__ import annotations

import pytest
from gpusync_lint.heat.call_graph import propagate
from gpusync_lint.heat.capture import described
from gpusync_lint.model.levels import FREQUENCIES, Confidence, Heat
from gpusync_lint.model.placement import Capture, PathKind
from gpusync_lint.run.graph_rows import graph_row, heats_row, read_graph, read_heats
from gpusync_lint.settings.selection import Level, level_at

HEAD = """
import functools, random, time
import torch
x = torch.randn(4, device="cuda")
graph = torch.cuda.CUDAGraph()
"""
STEP = """
def step(x):
    return x.sum().item()
"""
NET = """
class Net(torch.nn.Module):
    def forward(self, x):
        return x[x > 0]
"""

CAPTURED = {
    "a with statement": "with torch.cuda.graph(graph):\n    x.sum().item()  # here",
    "a with statement that may capture": (
        "import contextlib\nwith torch.cuda.graph(graph) if fast else contextlib.nullcontext():\n"
        "    x.sum().item()  # here"
    ),
    "a context manager of the project": (
        "import contextlib\n@contextlib.contextmanager\ndef capture(graph):\n    with torch.cuda.graph(graph):\n"
        "        yield\nwith capture(graph):\n    x.sum().item()  # here"
    ),
    "a capture that has a name": "context = torch.cuda.graph(graph)\nwith context:\n    x.sum().item()  # here",
    "a capture that begins and ends by calls": (
        "with torch.cuda.stream(torch.cuda.Stream()):\n    graph.capture_begin()\n    x.sum().item()  # here\n"
        "    graph.capture_end()"
    ),
    "a function that is called in a capture": f"{STEP}with torch.cuda.graph(graph):\n    step(x)".replace(
        ".item()", ".item()  # here"
    ),
    "a function that is called in a loop in a capture": (
        "def step(x):\n    if x.sum() > 0:  # here\n        x = x + 1\n    return x\n"
        "with torch.cuda.graph(graph):\n    for _ in range(3):\n        step(x)"
    ),
    "a module that is called in a capture": f"{NET}with torch.cuda.graph(graph):\n    Net().cuda()(x)".replace(
        "[x > 0]", "[x > 0]  # here"
    ),
    "make_graphed_callables of a function": (
        "def step(x):\n    return x.sum().item()  # here\nfast = torch.cuda.make_graphed_callables(step, (x,))"
    ),
    "make_graphed_callables of a module": (
        f"{NET}fast = torch.cuda.make_graphed_callables(Net().cuda(), (x,))".replace("[x > 0]", "[x > 0]  # here")
    ),
    "make_graphed_callables of several": (
        "def one(x):\n    return x + 1\ndef two(x):\n    return x.sum().item()  # here\n"
        "torch.cuda.make_graphed_callables((one, two), ((x,), (x,)))"
    ),
    "a capture in a method": (
        "class Runner:\n    def __init__(self, model):\n        self.graph = torch.cuda.CUDAGraph()\n"
        "    def capture(self, x):\n        with torch.cuda.graph(self.graph):\n            self.out = self._run(x)\n"
        "    def _run(self, x):\n        return x.sum().cpu()  # here\nRunner(None).capture(x)"
    ),
    "a decorator": "@torch.compile(mode='reduce-overhead')\ndef step(x):\n    return x.sum().item()  # here\nstep(x)",
    "a partial decorator": (
        "@functools.partial(torch.compile, mode='max-autotune', fullgraph=True)\n"
        "def step(x):\n    return x.sum().item()  # here\nstep(x)"
    ),
    "torch.compile of a function": (
        "def step(x):\n    return x.sum().item()  # here\nfast = torch.compile(step, mode='reduce-overhead')\nfast(x)"
    ),
    "torch.compile of a module with an option": (
        f"{NET}net = torch.compile(Net().cuda(), options={{'triton.cudagraphs': True}})\nnet(x)".replace(
            "[x > 0]", "[x > 0]  # here"
        )
    ),
    "the method compile of a module": (
        f"{NET}net = Net().cuda()\nnet.compile(mode='reduce-overhead')\nnet(x)".replace("[x > 0]", "[x > 0]  # here")
    ),
    "a counter of an object": (
        "class Runner:\n    steps = 0\n    def run(self, x):\n        self.steps += 1  # here\n"
        "        return x * self.steps\n"
        "runner = Runner()\nwith torch.cuda.graph(graph):\n    runner.run(x)"
    ),
    "a global counter": (
        "count = 0\ndef run(x):\n    global count\n    count += 1  # here\n    return x * count\n"
        "with torch.cuda.graph(graph):\n    run(x)"
    ),
    "what stands in for an argument that one of two calls leaves out": (
        "def run(x, lengths=None):\n    if lengths is None:\n        lengths = x.sum().item()  # here\n    return x\n"
        "with torch.cuda.graph(graph):\n    run(x, 3)\n    run(x)"
    ),
    "what stands in for None that is passed on": (
        "def run(x, lengths=None):\n    if lengths is None:\n        lengths = x.sum().item()  # here\n    return x\n"
        "def step(x, lengths=None):\n    return run(x, lengths)\n"
        "with torch.cuda.graph(graph):\n    step(x)"
    ),
    "what runs for None that the function assigns": (
        "def run(x, n=None):\n    n = n if n else None\n    if n is None:\n        x = x[x > 0]  # here\n    return x\n"
        "with torch.cuda.graph(graph):\n    run(x, 3)"
    ),
    "a clock that a tensor is multiplied by": (
        "def run(x):\n    now = time.time()  # here\n    return x * now\nwith torch.cuda.graph(graph):\n    run(x)"
    ),
    "a random number of Python": "with torch.cuda.graph(graph):\n    y = x * random.random()  # here",
    "a branch on a counter": (
        "class Runner:\n    step = 0\n    def run(self, x):\n        if self.step % 2:  # here\n            x = x + 1\n"
        "        return x\nwith torch.cuda.graph(graph):\n    Runner().run(x)"
    ),
}

NOT_CAPTURED = {
    "warm-up before the capture": (
        "side = torch.cuda.Stream()\nwith torch.cuda.stream(side):\n    for _ in range(3):\n        x.sum().item()\n"
        "with torch.cuda.graph(graph):\n    y = x + 1"
    ),
    "what follows the capture": "with torch.cuda.graph(graph):\n    y = x + 1\ngraph.replay()\ny.sum().item()",
    "what is excluded from captures": (
        "def run(x):\n    if not torch.cuda.is_current_stream_capturing():\n        x.sum().item()\n    return x + 1\n"
        "with torch.cuda.graph(graph):\n    run(x)"
    ),
    "the other branch of a test for captures": (
        "def run(x):\n    if torch.cuda.is_current_stream_capturing():\n        return x + 1\n    else:\n"
        "        return x.sum().item()\nwith torch.cuda.graph(graph):\n    run(x)"
    ),
    "what warm-up has built": (
        "class Net(torch.nn.Module):\n    mask = None\n    def forward(self, x):\n        if self.mask is None:\n"
        "            self.mask = torch.tensor([1.0, 2.0], device='cuda')\n        return x + self.mask\n"
        "net = Net()\nnet(x)\nwith torch.cuda.graph(graph):\n    net(x)"
    ),
    "a kept result": (
        "@functools.lru_cache\ndef table(n):\n    return torch.tensor(n).cuda()\n"
        "with torch.cuda.graph(graph):\n    y = x + table(3)"
    ),
    "an error": (
        "def run(x, n):\n    if n < 0:\n        raise ValueError(x.sum().item())\n    return x + n\n"
        "with torch.cuda.graph(graph):\n    run(x, 3)"
    ),
    "the plain mode of torch.compile": "@torch.compile\ndef step(x):\n    return x.sum().item()\nstep(x)",
    "a function that is only named": f"{STEP}with torch.cuda.graph(graph):\n    y = x + 1\n    later = step",
    "a counter of torch.compile, which guards it": (
        "count = 0\n@torch.compile(mode='reduce-overhead')\ndef run(x):\n    global count\n"
        "    count += 1\n    return x * count\n"
        "run(x)"
    ),
    "a copy to the device in a compiled function": (
        "@torch.compile(mode='reduce-overhead')\ndef run(x):\n    return x + torch.tensor([1.0], device='cuda')\nrun(x)"
    ),
    "what stands in for an argument that is passed": (
        "def run(x, lengths=None):\n    if lengths is None and x.dim() > 1:\n        lengths = x.sum().item()\n"
        "    return x * lengths\nwith torch.cuda.graph(graph):\n    run(x, lengths=3)"
    ),
    "a call that stands in for an argument that is passed on": (
        "def count(x):\n    return x.sum().item()\n"
        "def run(x, *, lengths=None):\n    if not (lengths is not None):\n        lengths = count(x)\n    return x\n"
        "def step(x, given=None):\n    return run(x, lengths=given)\n"
        "with torch.cuda.graph(graph):\n    step(x, 3)"
    ),
    "a clock that times the capture": (
        "def run(x):\n    start = time.time()\n    y = x + 1\n    return y, time.time() - start\n"
        "with torch.cuda.graph(graph):\n    y, took = run(x)\n    begun = time.time()\nprint(begun)"
    ),
    "a file that is no capture": "class graph:\n    pass\nwith open('graph') as file:\n    x.sum().item()",
}


@pytest.mark.parametrize("name", CAPTURED)
def test_what_runs_during_a_capture_is_found_at_its_line(lint, name):
    source = HEAD + CAPTURED[name]
    found = [one for one in lint(source) if one.heat is Heat.CAPTURE and one.confidence is not Confidence.LOW]
    assert [one.span.line for one in found] == [
        number for number, text in enumerate(source.splitlines(), 1) if text.endswith("# here")
    ]


@pytest.mark.parametrize("name", NOT_CAPTURED)
def test_what_does_not_run_during_a_capture_has_another_heat(lint, name):
    found = lint(HEAD + NOT_CAPTURED[name])
    assert [one for one in found if one.heat is Heat.CAPTURE and one.confidence is not Confidence.LOW] == []


def test_a_finding_says_from_where_it_is_captured(lint):
    source = HEAD + (
        "def inner(x):\n    return x.sum().item()\ndef outer(x):\n    return inner(x)\n"
        "with torch.cuda.graph(graph):\n    y = outer(x)\n"
    )
    (found,) = [one for one in lint(source) if one.heat is Heat.CAPTURE]
    assert found.capture == Capture(PathKind.CAPTURE, "train.py", 10, ("outer", "inner"))
    assert found.message.endswith(
        ": an error during the capture of a CUDA graph (captured at train.py:10, outer() > inner())"
    )


def test_all_offenders_of_a_capture_are_found_in_all_files(lint):
    found = lint(
        helper="import torch\ndef read(x):\n    return x.cpu()\ndef keep(x):\n    return x[x > 0]\n",
        train=HEAD
        + "from helper import keep, read\nwith torch.cuda.graph(graph):\n    read(x)\n    keep(x).sum().item()\n",
    )
    places = [(one.path, one.span.line, one.code) for one in found if one.heat is Heat.CAPTURE]
    assert places == [("helper.py", 3, "GS202"), ("helper.py", 5, "GS402"), ("train.py", 9, "GS201")]


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("mode='reduce-overhead'", "`torch.compile` breaks the graph here or skips its CUDA graph"),
        ("mode='reduce-overhead', fullgraph=True", "an error under `torch.compile(fullgraph=True)`"),
    ],
)
def test_a_compiled_function_says_what_torch_compile_does(lint, mode, says):
    source = f"{HEAD}@torch.compile({mode})\ndef step(x):\n    return x.sum().item()\nstep(x)"
    (found,) = [one for one in lint(source) if one.heat is Heat.CAPTURE]
    assert says in found.message


def test_a_capture_matters_more_than_torch_compile(lint):
    source = f"{HEAD}@torch.compile(mode='reduce-overhead')\ndef step(x):\n    return x.sum().item()\n"
    source += "with torch.cuda.graph(graph):\n    step(x)"
    (found,) = [one for one in lint(source) if one.code == "GS201"]
    assert found.capture is not None
    assert found.capture.kind is PathKind.CAPTURE


def test_a_finding_in_a_capture_is_a_warning_at_every_threshold():
    assert {level_at(Heat.CAPTURE, Confidence.HIGH, heat, Confidence.HIGH) for heat in FREQUENCIES} == {Level.WARNING}


def test_a_long_path_is_shortened_in_the_middle():
    calls = ("first", *(f"f{number}" for number in range(20)), "last")
    assert described(Capture(PathKind.CAPTURE, "a.py", 3, calls)) == (
        "a.py:3, first() > ... > f17() > f18() > f19() > last()"
    )


def test_captures_survive_the_cache(lint, monkeypatch):
    """Call graphs and heats are the same after they were written and read."""
    from gpusync_lint.heat import frequency

    graphs = []
    monkeypatch.setattr(frequency, "propagate", lambda graph: graphs.append(graph) or propagate(graph))
    lint(HEAD + CAPTURED["make_graphed_callables of several"] + "\nwith torch.cuda.graph(graph):\n    two(x)")
    (graph,) = graphs
    heats = propagate(graph)
    assert any(heat.capture for heat in heats.values())
    assert read_graph(graph_row(graph)) == graph
    assert read_heats(heats_row(graph, heats), graph) == heats
