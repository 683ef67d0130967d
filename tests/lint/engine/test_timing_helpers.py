"""GS701: what measures time, and what in it waits."""

from __future__ import annotations

import textwrap

import pytest
from gpusync_lint.files.ipython_magics import mask
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.model.levels import Heat
from gpusync_lint.run import engine

SETUP = """
import time
import numpy as np
import torch
a = torch.randn(500, 500, device="cuda")
h = np.ones((500, 500))
"""

CLASS = """
import time
class Stage:
    def __enter__(self):
        self.begin = time.perf_counter()
        return self
    def __exit__(self, *error):
        self.seconds = time.perf_counter() - self.begin
"""
WAITING_CLASS = """
import time
import torch
class Stage:
    def __enter__(self):
        self.begin = time.perf_counter()
    def __exit__(self, *error):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self.begin
"""
CLASS_OF_ANOTHER = """
import time
class Watch:
    def __init__(self):
        self.begin = time.time()
    def stop(self):
        return time.time() - self.begin
class Stage:
    def __enter__(self):
        self.watch = Watch()
    def __exit__(self, *error):
        print(f"{self.watch.stop():.3f} s")
"""
UNKNOWN_CLASS = """
import time
class Stage:
    def __enter__(self):
        self.begin = time.perf_counter()
    def __exit__(self, *error):
        self.finish()
        self.seconds = time.perf_counter() - self.begin
"""
NO_TIMER = """
class Stage:
    def __enter__(self):
        return self
    def __exit__(self, *error):
        print("done")
"""
GENERATOR = """
import time
from contextlib import contextmanager
@contextmanager
def Stage():
    begin = time.monotonic()
    try:
        yield
    finally:
        print(time.monotonic() - begin)
"""
WAITING_GENERATOR = """
import time, contextlib, torch
def now():
    torch.cuda.synchronize()
    return time.monotonic()
@contextlib.contextmanager
def Stage():
    begin = now()
    yield
    print(now() - begin)
"""

BLOCK_TIMERS = {
    "a class": (CLASS, True),
    "a class that waits": (WAITING_CLASS, False),
    "a class that has another": (CLASS_OF_ANOTHER, True),
    "a class that calls something unknown": (UNKNOWN_CLASS, False),
    "a class that reads no clock": (NO_TIMER, False),
    "a generator": (GENERATOR, True),
    "a generator that waits": (WAITING_GENERATOR, False),
}


def timing(findings):
    return [finding for finding in findings if finding.code == "GS701"]


def lines(findings):
    return [finding.span.line for finding in timing(findings)]


@pytest.mark.parametrize("name", BLOCK_TIMERS)
def test_a_block_under_a_timer_of_another_file(lint, name):
    source, expected = BLOCK_TIMERS[name]
    code = f"{SETUP}from tools import Stage\nwith Stage():\n    b = a @ a\n"
    assert lines(lint(code, tools=source)) == ([8] if expected else [])


BODIES = {
    "a wait": ("b = a @ a\n    torch.cuda.synchronize()", 0),
    "a wait for this GPU": ("b = a @ a\n    torch.cuda.synchronize(a.device)", 0),
    "a value that is read": ("b = (a @ a).sum().item()", 0),
    "a stream that is waited for": ("b = a @ a\n    torch.cuda.current_stream().synchronize()", 0),
    "NumPy": ("b = h @ h", 0),
    "a view alone": ("b = a.view(-1)", 0),
    "something unknown": ("b = render(a)", 0),
    "an object of a custom class": ("o = torch.classes.mine.Table(a)\n    o.flush()", 0),
    "a custom operator": ("b = torch.ops.mine.render(a)", 0),
    "a model of unknown making": ("b = given_model(a)", 1),
    "a factory of models": ("b = build_model(a)", 0),
    "a loop": ("for _ in range(10):\n        b = torch.mm(a, a)", 1),
    "a function": ("b = product(a)", 1),
    "a function that reads": ("b = largest(a)", 0),
    "a function that calls something unknown": ("b = shown(a)", 0),
    "a lambda's worth": ("b = torch.relu(a)\n    print('done')", 1),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_timed(lint, name):
    body, expected = BODIES[name]
    functions = (
        "def product(t):\n    return t @ t\ndef largest(t):\n    return float(t.max())\n"
        "def shown(t):\n    plot()\n    return t @ t\n"
    )
    code = f"{SETUP}{functions}from tools import Stage\nwith Stage():\n    {body}\n"
    assert len(timing(lint(code, tools=CLASS))) == expected


def test_a_timed_block_is_as_hot_as_its_work(lint):
    code = f"{SETUP}from tools import Stage\nwith Stage():\n    for _ in range(10):\n        b = a @ a\n"
    (finding,) = timing(lint(code, tools=CLASS))
    assert finding.heat is Heat.EPOCH


DECORATOR = """
import functools, time
def timed(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        begin = time.perf_counter()
        result = fn(*args, **kwargs)
        {wait}
        print(time.perf_counter() - begin)
        return result
    return wrapper
"""
NAMED_DECORATOR = """
import time
def timed(label):
    def decorate(fn):
        def wrapper(*args):
            begin = time.perf_counter()
            result = fn(*args)
            print(label, time.perf_counter() - begin)
            return result
        return wrapper
    return decorate
"""


@pytest.mark.parametrize(
    ("tools", "decorator", "body", "expected"),
    [
        (DECORATOR.format(wait="pass"), "timed", "return t @ t", [8]),
        (NAMED_DECORATOR, "timed('mm')", "return t @ t", [8]),
        (DECORATOR.format(wait="torch.cuda.synchronize()"), "timed", "return t @ t", []),
        (DECORATOR.format(wait="pass"), "timed", "return (t @ t).sum().item()", []),
        (DECORATOR.format(wait="pass"), "timed", "return len(t)", []),
    ],
    ids=["it only computes", "a decorator with an argument", "the decorator waits", "it reads", "it does not compute"],
)
def test_a_function_under_a_decorator_that_times_it(lint, tools, decorator, body, expected):
    code = f"{SETUP}from tools import timed\n@{decorator}\ndef work(t):\n    {body}\nwork(a)\n"
    assert lines(lint(code, tools=tools)) == expected


WATCH = """
import time
class Watch:
    def tic(self):
        self.begin = time.perf_counter()
    def toc(self):
        return time.perf_counter() - self.begin
class Laps:
    def __init__(self):
        self.last = time.perf_counter()
    def lap(self):
        now = time.perf_counter()
        spent = now - self.last
        self.last = now
        return spent
"""
WATCHES = {
    "a start and a stop": ("w = Watch()\nw.tic()\nb = a @ a\nprint(w.toc())", [11]),
    "a stop without a start": ("w = Watch()\nb = a @ a\nprint(w.toc())", []),
    "a wait between": ("w = Watch()\nw.tic()\nb = a @ a\ntorch.cuda.synchronize()\nprint(w.toc())", []),
    "the start comes after the work": ("w = Watch()\nb = a @ a\nw.tic()\nprint(w.toc())", []),
    "an attribute": ("def f(self):\n    self.w = Watch()\n    self.w.tic()\n    b = a @ a\n    self.w.toc()", [12]),
    "laps": ("w = Laps()\nb = a @ a\none = w.lap()\nc = a @ b\ntwo = w.lap()", [10, 12]),
    "another object": ("w = Watch()\nv = Watch()\nv.tic()\nb = a @ a\nprint(w.toc())", []),
}


@pytest.mark.parametrize("name", WATCHES)
def test_a_timer_with_methods(lint, name):
    code, expected = WATCHES[name]
    assert lines(lint(f"{SETUP}from tools import Watch, Laps\n{code}\n", tools=WATCH)) == expected


def test_a_timer_that_an_object_keeps(lint):
    code = (
        "from tools import Watch\nclass Bench:\n    def __init__(self):\n        self.watch = Watch()\n"
        "    def run(self):\n        self.watch.tic()\n        a @ a\n        return self.watch.toc()\nBench().run()\n"
    )
    assert lines(lint(SETUP + code, tools=WATCH)) == [14]


KEPT = {
    "attributes": ("o.begin = time.time()\nb = a @ a\no.spent = time.time() - o.begin", [3]),
    "an attribute that begins later": ("o.begin = time.time()\nb = a @ a\no.begin = 0\nx = time.time() - o.begin", []),
    "keys": ("t = {}\nt['mm'] = time.time()\nb = a @ a\nt['mm'] = time.time() - t['mm']", [4]),
    "a list": ("t = []\nt.append(time.time())\nb = a @ a\nt.append(time.time())", [4]),
    "a list with a wait": ("t = [time.time()]\nb = a @ a\ntorch.cuda.synchronize()\nt.append(time.time())", []),
    "two lists": ("p, q = [], []\np.append(time.time())\nb = a @ a\nq.append(time.time())", [4]),
    "a difference in a block": ("s = time.time()\nb = a @ a\ne = time.time()\nif h.any():\n    print(e - s)", [5]),
    "another clock": ("import timeit\ns = timeit.default_timer()\nb = a @ a\nprint(timeit.default_timer() - s)", [4]),
    "dates": ("from datetime import datetime\ns = datetime.now()\nb = a @ a\nprint(datetime.now() - s)", [4]),
    "a clock of one's own": ("def now():\n    return time.time()\ns = now()\nb = a @ a\nprint(now() - s)", [5]),
    "CPU time": ("s = time.process_time()\nb = a @ a\nprint(time.process_time() - s)", []),
}


@pytest.mark.parametrize("name", KEPT)
def test_where_clock_reads_are_kept(lint, name):
    code, expected = KEPT[name]
    before = f"{SETUP}o = type('o', (), {{}})()\n"
    found = lines(lint(f"{before}{code}\n"))
    assert [line - before.count("\n") for line in found] == expected


CALLS = {
    "timeit": ("import timeit\ntimeit.timeit(lambda: torch.mm(a, a), number=9)", 1),
    "timeit of NumPy": ("import timeit\ntimeit.timeit(lambda: np.dot(h, h), number=9)", 0),
    "timeit of text": ("import timeit\ntimeit.timeit('torch.mm(a, a)', globals=globals())", 0),
    "timeit by keyword": ("from timeit import repeat\nrepeat(stmt=lambda: a @ a, number=9)", 1),
    "torch's own": ("from torch.utils.benchmark import Timer\nTimer(stmt='a @ a', globals=globals()).timeit(9)", 0),
    "Triton's": ("import triton\ntriton.testing.do_bench(lambda: a @ a)", 0),
    "the fixture": ("def test_mm(benchmark):\n    benchmark(torch.mm, a, a)", 1),
    "the fixture with a lambda": ("def test_mm(benchmark):\n    benchmark(lambda: a @ a)", 1),
    "the fixture and a read": ("def test_mm(benchmark):\n    benchmark(lambda: (a @ a).sum().item())", 0),
    "the fixture of NumPy": ("def test_mm(benchmark):\n    benchmark(np.dot, h, h)", 0),
    "another benchmark": ("def run(bench):\n    bench(torch.mm, a, a)", 0),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_that_something_times(lint, name):
    code, expected = CALLS[name]
    assert len(timing(lint(f"{SETUP}{code}\n"))) == expected


MEASURE = """
def measure(n, fn):
    begin = time.time()
    for _ in range(n):
        fn()
    {wait}
    return time.time() - begin
"""


@pytest.mark.parametrize(
    ("wait", "argument", "expected"),
    [
        ("pass", "lambda: a @ a", 1),
        ("pass", "work", 1),
        ("pass", "fn=work", 1),
        ("pass", "lambda: h @ h", 0),
        ("torch.cuda.synchronize()", "lambda: a @ a", 0),
    ],
)
def test_a_function_of_the_project_that_times_its_argument(lint, wait, argument, expected):
    code = f"{SETUP}def work():\n    return a @ a\n{MEASURE.format(wait=wait)}measure(9, {argument})\n"
    found = timing(lint(code))
    assert [finding.span.line for finding in found] == [16] * expected


OTHER_GPU = """
import time, torch
devices = [torch.device("cuda:0"), torch.device("cuda:1")]
x0 = torch.rand(500, 500, device=devices[0])
x1 = torch.rand(500, 500).to("cuda:1")
def run(x):
    return [x.mm(x) for _ in range(9)]
start = time.time()
"""
GPUS = {
    "its own GPU": ("run(x0)\ntorch.cuda.synchronize(devices[0])", None),
    "its own GPU by number": ("run(x1)\ntorch.cuda.synchronize(1)", None),
    "the other one": ("run(x0)\ntorch.cuda.synchronize(devices[1])", True),
    "the other one by name": ("run(x1)\ntorch.cuda.synchronize('cuda:0')", True),
    "the other one by keyword": ("run(x1)\ntorch.cuda.synchronize(device=0)", True),
    "the current GPU": ("run(x1)\ntorch.cuda.synchronize()", True),
    "the current GPU, which is chosen": ("torch.cuda.set_device(1)\nrun(x1)\ntorch.cuda.synchronize()", None),
    "both": ("run(x0)\ntorch.cuda.synchronize(1)\ntorch.cuda.synchronize(0)", None),
    "work on both": ("run(x0)\nrun(x1)\ntorch.cuda.synchronize(1)", True),
    "work on both, waited for": ("run(x0)\nrun(x1)\ntorch.cuda.synchronize(1)\ntorch.cuda.synchronize(0)", None),
    "work that may be elsewhere": ("run(x0)\nrun(pick())\ntorch.cuda.synchronize(0)", None),
    "a device that is not known": ("run(x0)\ntorch.cuda.synchronize(pick())", None),
}


@pytest.mark.parametrize("name", GPUS)
def test_a_wait_for_another_gpu_is_no_wait(lint, name):
    code, told = GPUS[name]
    found = timing(lint(f"{OTHER_GPU}{code}\nprint(time.time() - start)\n"))
    assert ["waits for one GPU" in finding.message for finding in found] == ([True] if told else [])


FRAMEWORKS = {
    "jax": (
        "import jax, jax.numpy as jnp\nf = jax.jit(lambda a: a @ a)\nx = jnp.ones(9)",
        "f(x)",
        "f(x).block_until_ready()",
    ),
    "cupy": ("import cupy as cp\nx = cp.ones((9, 9))", "x @ x", "float((x @ x).sum())"),
    "mxnet": ("from mxnet import np, npx\nx = np.ones((9, 9))", "np.dot(x, x)", "np.dot(x, x); npx.waitall()"),
    "tensorflow": ("import tensorflow as tf\nx = tf.ones((9, 9))", "tf.matmul(x, x)", "tf.matmul(x, x).numpy()"),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_timing_in_other_frameworks(lint, framework):
    setup, work, waiting = FRAMEWORKS[framework]
    code = f"import time\n{setup}\nstart = time.time()\n{{}}\nprint(time.time() - start)\n"
    (finding,) = timing(lint(code.format(work)))
    assert finding.framework == framework
    assert timing(lint(code.format(waiting))) == []


def test_numpy_in_place_of_another_framework_is_silent(lint):
    code = (
        "import time, jax\nimport numpy as np\nx = np.ones(9)\nstart = time.time()\nx @ x\nprint(time.time() - start)\n"
    )
    assert timing(lint(code)) == []


CELLS = {
    "a timed cell": ("%%time\nb = a @ a\nprint('done')", [1]),
    "a timed cell that waits": ("%%time\nb = a @ a\ntorch.cuda.synchronize()", []),
    "a timed cell of NumPy": ("%%timeit -n 9\nnp.dot(h, h)", []),
    "a timed statement": ("b = 1\n%timeit -n 9 a @ a", [2]),
    "a timed statement that reads": ("%time print((a @ a).sum())", []),
    "a cell that is not timed": ("%%capture\nb = a @ a", []),
    "a profiled statement": ("%prun a @ a", []),
}


@pytest.mark.parametrize("name", CELLS)
def test_timing_by_magics_of_notebooks(name):
    cell, expected = CELLS[name]
    text = f"{mask(cell)}\nc = a @ a\n"
    found = engine.analyze([Source("a.ipynb", SETUP + text)], EngineSettings()).findings
    assert [line - SETUP.count("\n") for line in lines(found)] == expected


PAIR = "start = time.time()\nb = a @ a\n{wait}print(time.time() - start)"
WAIT = "torch.cuda.synchronize()\n"
D2L = "from d2l import torch as d2l\nwith d2l.Benchmark('torch'):\n    for _ in range(9):\n        b = a @ a"
FIXED = {
    "a pair": (PAIR.format(wait=""), WAIT + PAIR.format(wait=WAIT)),
    "a pair after a wait": (WAIT + PAIR.format(wait=""), WAIT + PAIR.format(wait=WAIT)),
    "a pair on shared lines": ("n = 1; " + PAIR.format(wait=""), "n = 1; " + PAIR.format(wait=WAIT)),
    "a block": (D2L, f"{D2L}\n    {WAIT.strip()}"),
    "a lambda": (
        "import timeit\ntimeit.timeit(lambda: a @ a, number=9)",
        "import timeit\ntimeit.timeit(lambda: (a @ a, torch.cuda.synchronize()), number=9)",
    ),
}


@pytest.mark.parametrize("name", FIXED)
def test_the_fix_waits_and_the_finding_is_gone(lint, with_fix, name):
    before, after = FIXED[name]
    (finding,) = timing(lint(f"{SETUP}{before}\n"))
    assert not finding.fix.safe
    assert with_fix(f"{SETUP}{before}\n", finding.fix) == f"{SETUP}{after}\n"
    assert timing(lint(f"{SETUP}{after}\n")) == []


def test_no_fix_where_torch_has_another_name(lint):
    code = textwrap.dedent("""
        import time
        import torch as th
        a = th.ones(9, device="cuda")
        start = time.time()
        b = a + a
        print(time.time() - start)
    """)
    (finding,) = timing(lint(code))
    assert finding.fix is None
