"""GS7xx, and advice that depends on what stands around a finding."""

from __future__ import annotations

import pytest
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.run import engine

SETUP = """
import time
import torch
from torch.utils.data import DataLoader
device = torch.device("cuda")
model = torch.nn.Linear(4, 4).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.zeros(4, device=device)
"""
TIMED = "start = time.time()\nfor _ in range(9):\n    model(x)\nprint(time.time() - start)\n"


def test_timing_at_the_top_of_a_file_has_the_heat_of_the_work_in_its_loop(lint):
    (finding,) = lint(SETUP + TIMED)
    assert (finding.code, finding.heat) == ("GS701", Heat.STEP)


def test_timing_of_a_single_call_is_as_cold_as_the_call(lint):
    (finding,) = lint(SETUP + "start = time.time()\nmodel(x)\nprint(time.time() - start)\n")
    assert (finding.code, finding.heat) == ("GS701", Heat.ONCE)


@pytest.mark.parametrize(
    "body",
    ["return t.sum().item()", "return helper(t)", "torch.cuda.synchronize()\n    return t"],
    ids=["it reads", "it calls the unknown", "it waits"],
)
def test_timing_of_a_function_that_waits_is_silent(lint, body):
    code = f"def work(t):\n    {body}\nstart = time.time()\nwork(model(x))\nprint(time.time() - start)\n"
    assert "GS701" not in {finding.code for finding in lint(SETUP + code)}


def test_timing_with_a_wait_of_an_unknown_object_is_silent(lint):
    code = (
        "def run(job):\n    start = time.time()\n    model(x)\n    job.wait_for_it()\n    return time.time() - start\n"
    )
    assert lint(SETUP + code) == []


def test_timing_of_a_function_that_only_computes_is_reported(lint):
    code = "def work(t):\n    return t @ t\nstart = time.time()\nwork(x)\nprint(time.time() - start)\n"
    assert [finding.code for finding in lint(SETUP + code)] == ["GS701"]


def test_timing_with_a_guarded_synchronize_is_silent(lint):
    code = "start = time.time()\nmodel(x)\nif x.is_cuda:\n    torch.cuda.synchronize()\nspent = time.time() - start\n"
    assert "GS701" not in {finding.code for finding in lint(SETUP + code)}


def test_the_fix_of_a_kept_graph_detaches(lint_step, with_step_fix):
    code = "loss = model(x).sum()\nloss.backward()\nkept += loss"
    (finding,) = lint_step(code)
    assert (finding.code, finding.fix.safe) == ("GS702", False)
    assert with_step_fix(code, finding) == f"{code}.detach()"


def test_a_loss_kept_without_an_optimizer_step_is_silent(lint):
    code = (
        "total = 0\nfor _ in range(4):\n    loss = model(x).sum()\n    loss.backward()\n    total += loss\nopt.step()\n"
    )
    assert lint(SETUP + code) == []


def test_the_first_of_several_reads_says_that_one_would_do(lint_step):
    first, second = lint_step("a = s.item()\nb = s2.item()")
    assert "read the 2 values in this block" in first.remedy
    assert "with one wait" not in second.remedy


def test_reads_of_which_one_needs_the_other_are_not_merged(lint_step):
    found = lint_step("a = s.item()\ny = s2 * a\nb = y.item()")
    assert ["with one wait" in finding.remedy for finding in found] == [False, False]


def test_reads_in_different_blocks_are_not_merged(lint_step):
    found = lint_step("a = s.item()\nif step:\n    b = s2.item()")
    assert ["with one wait" in finding.remedy for finding in found] == [False, False]


def test_a_copy_from_a_loader_that_pins_is_told_the_shorter_remedy(lint):
    (finding,) = lint(SETUP + "for b in DataLoader([], pin_memory=True):\n    b.to(device)\n")
    assert finding.remedy == "Pass `non_blocking=True`. The memory is pinned already"


@pytest.mark.parametrize(
    "refill",
    ["p.fill_(step)", "p[0] = step", "p.view(-1)[1:].zero_()", "torch.add(p, 1, out=p)", "p.numpy()[:] = 1"],
)
def test_a_copy_of_a_pinned_buffer_that_is_refilled_is_not_made_asynchronous(lint, refill):
    buffer = SETUP + "p = torch.ones(4).pin_memory()\nfor step in range(9):\n"
    (finding,) = (one for one in lint(buffer + f"    {refill}\n    p.to('cuda')\n") if one.code == "GS501")
    (kept,) = (one for one in lint(buffer + "    p.to('cuda')\n") if one.code == "GS501")
    assert finding.fix is None
    assert "before the buffer is refilled" in finding.remedy
    assert kept.fix is not None


PAGEABLE = {
    "a loader that does not pin": ("for b in DataLoader([]):\n    b.to(device, non_blocking=True)\n", 1),
    "a loader told not to": ("for b in DataLoader([], pin_memory=False):\n    b.cuda(non_blocking=True)\n", 1),
    "a loader that pins": ("for b in DataLoader([], pin_memory=True):\n    b.to(device, non_blocking=True)\n", 0),
    "a loader told by an option": ("for b in DataLoader([], pin_memory=x.pin):\n    b.cuda(non_blocking=True)\n", 0),
    "a loader of unknown making": ("for b in train_loader:\n    b.to(device, non_blocking=True)\n", 0),
    "a tensor made before the copy": ("for i in range(9):\n    torch.ones(9).to(device, non_blocking=True)\n", 1),
    "a change of type": ("for b in DataLoader([]):\n    b.to(torch.float16, non_blocking=True)\n", 0),
}


@pytest.mark.parametrize("name", PAGEABLE)
def test_a_copy_of_pageable_memory_is_a_guess(name):
    code, expected = PAGEABLE[name]
    found = engine.analyze([Source("train.py", SETUP + code)], EngineSettings()).findings
    assert [(f.code, f.confidence) for f in found if f.code == "GS705"] == [("GS705", Confidence.LOW)] * expected


LOOP = "for i in range(9):\n    y = torch.randn(4, 4, device=device)\n    model(y).sum().backward()\n    opt.step()\n"


def test_a_loop_that_nothing_holds_back_is_a_note(lint):
    (finding,) = lint(SETUP + LOOP)
    assert (finding.code, finding.heat, finding.span.line) == ("GS704", Heat.EPOCH, 9)


HELD = {
    "a read now and then": "    if i % 100 == 0:\n        print(y.sum().item())\n",
    "an unknown function": "    report(i)\n",
    "a method of an unknown object": "    bar.update(1)\n",
    "a function that reads": "    look(y)\n",
    "a copy to the device": "    torch.ones(4).to(device)\n",
}


@pytest.mark.parametrize("name", HELD)
def test_a_loop_that_something_may_hold_back_is_silent(lint, name):
    before = "def look(t):\n    return float(t.sum())\n"
    assert "GS704" not in {finding.code for finding in lint(SETUP + before + LOOP + HELD[name])}


WORK = """
def work(t):
    with torch.cuda.stream(torch.cuda.Stream()):
        return model(t)
for b in loader:
    work(b)
"""
STREAMS = {
    "in a loop": ("for b in loader:\n    s = torch.cuda.Stream()\n    model(b)\n", Heat.STEP),
    "before the loop": ("s = torch.cuda.Stream()\nfor b in loader:\n    model(b)\n", Heat.ONCE),
    "in a function of the step": (WORK, Heat.STEP),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_as_hot_as_the_line_that_creates_it(lint, name):
    code, heat = STREAMS[name]
    (finding,) = [one for one in lint(SETUP + code) if one.code == "GS710"]
    assert finding.heat is heat


STREAM_OF_OBJECT = """
class A:
    def __init__(self):
        self.s = torch.cuda.Stream()
for b in loader:
    A()
"""
STREAM_OF_OBJECT_THAT_HAS_NONE = """
class A:
    def work(self):
        if self.s is None and self.overlaps:
            self.s = torch.cuda.Stream()
for b in loader:
    A().work()
"""
STREAM_OF_MODULE_THAT_HAS_NONE = """
side = None
for b in loader:
    if side is None:
        side = torch.cuda.Stream()
"""


@pytest.mark.parametrize("code", [STREAM_OF_OBJECT, STREAM_OF_OBJECT_THAT_HAS_NONE, STREAM_OF_MODULE_THAT_HAS_NONE])
def test_a_stream_that_is_kept_is_silent(lint, code):
    assert [one for one in lint(SETUP + code) if one.code == "GS710"] == []


SIDE = "side = torch.cuda.Stream()\nwith torch.cuda.stream(side):\n    y = model(x)\n"


def test_a_side_stream_that_the_host_waits_for_at_once_is_told_so_and_fixed(lint, with_fix):
    (finding,) = [one for one in lint(f"{SETUP}{SIDE}side.synchronize()\n") if one.code == "GS102"]
    assert "overlaps with nothing" in finding.message
    fixed = f"{SETUP}{SIDE}torch.cuda.current_stream().wait_stream(side)\n"
    assert (with_fix(f"{SETUP}{SIDE}side.synchronize()\n", finding.fix), finding.fix.safe) == (fixed, False)
    assert [one for one in lint(fixed) if one.code == "GS102"] == []


@pytest.mark.parametrize(
    "after", ["z = model(x)\nside.synchronize()\n", "other = torch.cuda.Stream()\nother.synchronize()\n"]
)
def test_a_stream_that_is_waited_for_later_is_an_ordinary_wait(lint, after):
    (finding,) = [one for one in lint(f"{SETUP}{SIDE}{after}") if one.code == "GS102"]
    assert "overlaps with nothing" not in finding.message


@pytest.mark.parametrize(
    "line",
    [
        "import cupy as cp; cp.cuda.set_allocator(cp.cuda.malloc_managed)",
        "import cupy; pool = cupy.cuda.MemoryPool(allocator=cupy.cuda.malloc_managed)",
        "from numba import cuda; a = cuda.managed_array(4)",
        "import rmm; rmm.reinitialize(pool_allocator=True, managed_memory=True)",
    ],
)
def test_unified_memory_is_a_note_wherever_it_is_set_up(lint, line):
    (finding,) = lint(f"{SETUP}{line}\n")
    assert (finding.code, finding.heat) == ("GS713", Heat.EPOCH)


@pytest.mark.parametrize(
    "line", ["import rmm; rmm.reinitialize(managed_memory=False)", "import cupy; cupy.cuda.MemoryPool()"]
)
def test_device_memory_of_the_same_libraries_is_silent(lint, line):
    assert lint(f"{SETUP}{line}\n") == []


def test_gradients_on_the_host_may_be_reduced_one_by_one(lint):
    code = (
        "import torch\nimport torch.distributed as dist\nnet = torch.nn.Linear(4, 4)\n"
        "for p in net.parameters():\n    dist.all_reduce(p.grad)\n"
    )
    assert lint(code) == []


def test_a_reduction_of_each_gradient_names_what_overlaps(lint):
    code = "import torch.distributed as dist\nfor p in model.parameters():\n    dist.all_reduce(p.grad)\n"
    (finding,) = [one for one in lint(SETUP + code) if one.code == "GS807"]
    assert all(word in finding.remedy for word in ("DistributedDataParallel", "Horovod", "DeepSpeed"))
