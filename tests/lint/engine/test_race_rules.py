"""Races that the linter finds: which orders it understands, what it leaves alone, and its fixes."""

from __future__ import annotations

import importlib.util
import re
import sys
import textwrap
from pathlib import Path

import pytest
from gpusync_lint.model.levels import FREQUENCIES, Confidence, Heat
from gpusync_lint.settings.selection import Level, level_of

RACES = {"GS706", "GS707", "GS708", "GS709", "GS806"}
HEAD = "import torch\nimport torch.distributed as dist\nN = 64\n"


def _race_programs():
    """The programs and mutants that the simulated device is tested with."""
    path = Path(__file__).parents[2] / "simulated" / "race_programs.py"
    spec = importlib.util.spec_from_file_location("race_programs", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


PROGRAMS = _race_programs()
NOT_FOUND = {
    **dict.fromkeys(
        (
            ("numpy_ring", "no_wait"),
            ("numpy_ring", "recorded_before_the_copy"),
            ("numpy_ring", "waits_after_the_fill"),
            ("numpy_ring", "refilled_at_once"),
        ),
        "the arrays are made of the buffers in a comprehension",
    ),
    ("prefetcher", "waits_before_the_copy"): "the copy that races is that of the step before, of another tensor",
    ("prefetcher", "refilled_at_once"): "`min(step + 1, 5)` is an unknown index",
    ("prefetch_by_event", "recorded_on_the_default_stream"): "the default stream counts as the current one",
    ("offload", "the_event_of_the_layer_before"): "the event of layer -1 is unknown",
    ("collective", "waits_for_the_first_only"): "all collectives count as one stream",
    ("two_halves", "one_column_too_many"): "parts with different unknown bounds are taken to be disjoint",
}
"""Mutants that the linter does not find."""


@pytest.fixture
def races(lint):
    """`races(source)` gives the races of a file: code and line."""

    def run(source: str) -> list[tuple[str, int]]:
        return [(one.code, one.span.line) for one in lint(textwrap.dedent(source)) if one.code in RACES]

    return run


@pytest.mark.parametrize("name", PROGRAMS.PROGRAMS)
def test_a_program_that_waits_for_all_it_needs_is_silent(races, name):
    assert races(HEAD + PROGRAMS.PROGRAMS[name]) == []


@pytest.mark.parametrize("mutant", PROGRAMS.MUTANTS, ids=lambda mutant: f"{mutant.program}-{mutant.name}")
def test_a_missing_wait_is_found_on_one_of_its_lines(races, mutant):
    source = HEAD + PROGRAMS.PROGRAMS[mutant.program]
    for old, new in mutant.changes:
        source = source.replace(old, new, 1)
    lines = {
        number
        for number, text in enumerate(source.splitlines(), 1)
        if (found := re.search(r"# (\w+)$", text)) and found[1] in (mutant.later, mutant.earlier)
    }
    is_found = any(line in lines for _, line in races(source))
    assert is_found is ((mutant.program, mutant.name) not in NOT_FOUND)


BEFORE = """
import torch
import torch.distributed as dist
net = torch.nn.Linear(8, 8).cuda()
side = torch.cuda.Stream()
pinned = torch.empty(4, 8, pin_memory=True)
out = []
"""
FOUND = {
    "a copy into a pinned buffer": (
        "def f(x):\n    pinned.copy_(net(x.cuda()), non_blocking=True)\n    out.append(pinned.numpy().copy())\n",
        ["GS706"],
    ),
    "a copy whose array is kept": (
        "def f(x):\n    h = net(x.cuda()).to('cpu', non_blocking=True)\n    out.append(h.numpy())\n",
        ["GS706"],
    ),
    "a copy on a side stream": (
        (
            "def f(loader):\n    for x in loader:\n        with torch.cuda.stream(side):\n"
            "            d = x.to('cuda', non_blocking=True)\n        y = net(d)\n"
        ),
        ["GS708"],
    ),
    "a buffer that is refilled with each batch": (
        (
            "def f(loader):\n    for x in loader:\n        pinned.copy_(x)\n"
            "        y = net(pinned.to('cuda', non_blocking=True))\n"
        ),
        ["GS707"],
    ),
    "a collective that is not waited for": (
        "def f(x):\n    y = x.cuda()\n    dist.all_reduce(y, async_op=True)\n    return y * 2\n",
        ["GS806"],
    ),
    "a branch that waits for the other buffer only": (
        (
            "def f(x, late):\n    h = net(x.cuda()).to('cpu', non_blocking=True)\n    if late:\n        return h\n"
            "    return h.sum()\n"
        ),
        ["GS706"],
    ),
    "a copy in a method, read in another one": (
        (
            "class Reader:\n    def __init__(self):\n        self.host = torch.empty(8, pin_memory=True)\n"
            "    def copy(self, y):\n        self.host.copy_(y, non_blocking=True)\n"
            "    def read(self, x):\n        self.copy(net(x.cuda()))\n        return self.host.sum()\n"
        ),
        ["GS706"],
    ),
    "a stream of the object": (
        (
            "class Loader:\n    def __init__(self):\n        self.side = torch.cuda.Stream()\n"
            "    def load(self, x):\n        with torch.cuda.stream(self.side):\n"
            "            d = x.to('cuda', non_blocking=True)\n        return d + 1\n"
        ),
        ["GS708"],
    ),
    "the same part with an unknown bound": (
        "def f(x, n):\n    pinned[:n].copy_(net(x.cuda()), non_blocking=True)\n    return pinned[:n].tolist()\n",
        ["GS706"],
    ),
    "the same slot of two": (
        (
            "def f(loader):\n    slots = [torch.empty(8, pin_memory=True) for _ in range(2)]\n"
            "    for i, x in enumerate(loader):\n        slots[i % 2].fill_(i)\n"
            "        y = net(slots[i % 2].to('cuda', non_blocking=True))\n"
        ),
        ["GS707"],
    ),
}
SILENT = {
    "a wait in a function of the project": (
        "def wait():\n    torch.cuda.synchronize()\n"
        "def f(x):\n    h = net(x.cuda()).to('cpu', non_blocking=True)\n    wait()\n    return h.sum()\n"
    ),
    "an unknown function, which may wait": (
        "def f(x, then):\n    h = net(x.cuda()).to('cpu', non_blocking=True)\n    then()\n    return h.sum()\n"
    ),
    "a read under the opposite condition": (
        "def f(x, late):\n    h = pinned\n    if late:\n        h.copy_(net(x.cuda()), non_blocking=True)\n"
        "    if not late:\n        return h.sum()\n"
    ),
    "a wait in the branch that copies": (
        "def f(x, late):\n    h = net(x.cuda()).to('cpu', non_blocking=True)\n    if late:\n"
        "        torch.cuda.synchronize()\n    return h.sum()\n"
    ),
    "a read of another value first": (
        "def f(x):\n    y = net(x.cuda())\n    h = y.to('cpu', non_blocking=True)\n    if y.sum() > 0:\n"
        "        return h.sum()\n"
    ),
    "what is returned, which the caller may wait for": (
        "def f(x):\n    return net(x.cuda()).to('cpu', non_blocking=True).numpy()\n"
    ),
    "what is sent by a library": (
        "def f(x):\n    h = net(x.cuda()).to('cpu', non_blocking=True)\n    out.append(dist.P2POp(dist.isend, h, 1))\n"
    ),
    "a copy back to the device": (
        "def f(x):\n    h = net(x.cuda()).to('cpu', non_blocking=True)\n    return h.to('cuda', non_blocking=True)\n"
    ),
    "a stream that may be the current one": (
        "def f(x, stream):\n    y = x.cuda() + 1\n    with torch.cuda.stream(stream):\n        return y * 2\n"
    ),
    "a flag that is not known": (
        "def f(x, flag):\n    h = net(x.cuda()).to('cpu', non_blocking=flag)\n    return h.sum()\n"
    ),
    "a list of batches, moved one by one": (
        "def f(loader):\n    for views, _ in torch.utils.data.DataLoader(loader, pin_memory=True):\n"
        "        views[0] = views[0].cuda(non_blocking=True)\n        net(views[0])\n"
    ),
    "two parts with different unknown bounds": (
        "def f(x, n):\n    pinned[:n].copy_(net(x.cuda()), non_blocking=True)\n    return pinned[n:].sum()\n"
    ),
    "another slot of two": (
        "def f(loader):\n    slots = [torch.empty(8, pin_memory=True) for _ in range(2)]\n"
        "    for i in range(2):\n        slots[i % 2].fill_(i)\n"
        "        y = net(slots[i % 2].to('cuda', non_blocking=True))\n"
    ),
    "a work in a list": (
        "def f(x):\n    y, works = x.cuda(), []\n    works.append(dist.all_reduce(y, async_op=True))\n"
        "    for work in works:\n        work.wait()\n    return y * 2\n"
    ),
    "an event of `threading`": (
        "import threading\ndef f(x):\n    h = net(x.cuda()).to('cpu', non_blocking=True)\n"
        "    done = threading.Event()\n    out.append((h, done))\n    done.wait()\n    return h.sum()\n"
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_race_is_found(races, name):
    source, codes = FOUND[name]
    assert [code for code, _ in races(BEFORE + source)] == codes


@pytest.mark.parametrize("name", SILENT)
def test_what_is_ordered_or_unknown_is_silent(races, name):
    assert races(BEFORE + SILENT[name]) == []


def test_a_race_is_a_warning_at_any_heat(lint):
    source, _ = FOUND["a collective that is not waited for"]
    (found,) = (one for one in lint(BEFORE + source) if one.code in RACES)
    assert found.heat is Heat.ANY
    assert {level_of(found, heat, Confidence.HIGH) for heat in FREQUENCIES} == {Level.WARNING}


def test_a_race_in_an_assertion_of_a_test_is_reported(lint):
    source = (
        BEFORE
        + "def test_f():\n    h = net(torch.rand(8).cuda()).to('cpu', non_blocking=True)\n    assert h.sum() > 0\n"
    )
    assert [one.code for one in lint(tests__test_net=source) if one.code in RACES] == ["GS706"]


def test_the_message_names_the_tensor_and_the_line_of_the_copy(lint):
    source, _ = FOUND["a copy into a pinned buffer"]
    (found,) = (one for one in lint(BEFORE + source) if one.code in RACES)
    assert (
        found.message == "`pinned` is read on the host; the copy at line 9 may not have filled it: nothing waits for it"
    )


FIXES = {
    "an event after the copy": (
        "def f(x):\n    h = net(x.cuda()).to('cpu', non_blocking=True)\n    return h.sum()\n",
        (
            "def f(x):\n    h = net(x.cuda()).to('cpu', non_blocking=True)\n"
            "    h_copied = torch.cuda.current_stream().record_event()\n    h_copied.synchronize()\n"
            "    return h.sum()\n"
        ),
    ),
    "an event on the stream of the copy": (
        (
            "def f(x):\n    y = net(x.cuda())\n    side.wait_stream(torch.cuda.current_stream())\n"
            "    with torch.cuda.stream(side):\n        pinned.copy_(y, non_blocking=True)\n    y.record_stream(side)\n"
            "    return pinned.sum()\n"
        ),
        (
            "def f(x):\n    y = net(x.cuda())\n    side.wait_stream(torch.cuda.current_stream())\n"
            "    with torch.cuda.stream(side):\n        pinned.copy_(y, non_blocking=True)\n"
            "        pinned_copied = torch.cuda.current_stream().record_event()\n    y.record_stream(side)\n"
            "    pinned_copied.synchronize()\n    return pinned.sum()\n"
        ),
    ),
    "the current stream waits": (
        "def f(x):\n    with torch.cuda.stream(side):\n        d = x.cuda(non_blocking=True)\n    return net(d)\n",
        (
            "def f(x):\n    with torch.cuda.stream(side):\n        d = x.cuda(non_blocking=True)\n"
            "    torch.cuda.current_stream().wait_stream(side)\n    return net(d)\n"
        ),
    ),
    "the side stream waits, before it is entered": (
        "def f(x):\n    y = x.cuda() + 1\n    with torch.cuda.stream(side):\n        z = y * 2\n    return z\n",
        (
            "def f(x):\n    y = x.cuda() + 1\n    side.wait_stream(torch.cuda.current_stream())\n"
            "    with torch.cuda.stream(side):\n        z = y * 2\n    return z\n"
        ),
    ),
    "the work is waited for": (
        "def f(x):\n    y = x.cuda()\n    work = dist.all_reduce(y, async_op=True)\n    z = y * 2\n    return z\n",
        (
            "def f(x):\n    y = x.cuda()\n    work = dist.all_reduce(y, async_op=True)\n    work.wait()\n"
            "    z = y * 2\n"
            "    return z\n"
        ),
    ),
}
NO_FIX = {
    "the event would have to exist before the loop": FOUND["a buffer that is refilled with each batch"][0],
    "nothing refers to the work": FOUND["a collective that is not waited for"][0],
    "the copy runs on some paths only": (
        "def f(x, late):\n    if late:\n        pinned.copy_(net(x.cuda()), non_blocking=True)\n"
        "    return pinned.sum()\n"
    ),
    "the copy is in another function": FOUND["a copy in a method, read in another one"][0],
}


@pytest.mark.parametrize("name", FIXES)
def test_a_fix_adds_the_wait_that_is_missing(lint, with_fix, races, name):
    before, after = (f"{BEFORE}{body}" for body in FIXES[name])
    (found,) = (one for one in lint(before) if one.code in RACES)
    assert with_fix(before, found.fix) == after
    assert races(after) == []


@pytest.mark.parametrize("name", NO_FIX)
def test_no_fix_is_offered_where_it_might_be_wrong(lint, name):
    (found,) = (one for one in lint(BEFORE + NO_FIX[name]) if one.code in RACES)
    assert found.fix is None
