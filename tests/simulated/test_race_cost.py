"""What looking for races may cost: operators stay in native code, every step is followed, and memory is bounded."""

from __future__ import annotations

import sys

import pytest
import torch

from pytest_gpusync import record, simulated_cuda
from pytest_gpusync.simulated.native_path import dispatch


def races_of(program):
    """The races of a program that is given a side stream."""
    with simulated_cuda(), record() as seen:
        program(torch.cuda.Stream())
    return seen.races


def line_of(function, text):
    first = function.__code__.co_firstlineno
    with open(__file__, encoding="utf-8") as source:
        return next(n for n, line in enumerate(source, 1) if n > first and text in line)


needs_native_path = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not tell instructions to C")


@needs_native_path
def test_operators_on_the_default_stream_stay_in_native_code():
    taken = []

    def program(stream):
        x = torch.ones(8, device="cuda")
        x + 1
        before = dispatch.calls()
        for _ in range(20):
            x.mul_(2)
        taken.append(dispatch.calls() - before)

    assert races_of(program) == ()
    if dispatch.unavailable is not None:
        pytest.skip(dispatch.unavailable)
    assert taken[0] >= 19  # the first one shows its line


def test_a_side_stream_that_does_not_wait_races_with_each_operator_in_native_code():
    def program(stream):
        x = torch.ones(8, device="cuda")
        for _ in range(3):
            x.mul_(2)
            y = x + 1  # read
        with torch.cuda.stream(stream):
            x.fill_(0)  # overwrite
        stream.synchronize()
        return y

    races = races_of(program)
    assert {(race.other.line, race.site.line) for race in races} == {
        (line_of(program, "x.mul_(2)"), line_of(program, "# overwrite")),
        (line_of(program, "# read"), line_of(program, "# overwrite")),
    }


def test_an_operator_in_native_code_that_does_not_wait_is_reported_with_its_variable():
    def program(stream):
        x = torch.ones(8, device="cuda")
        for _ in range(3):
            x.mul_(2)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x.fill_(0)  # fill
        x.mul_(3)  # too early
        torch.cuda.current_stream().wait_stream(stream)
        for _ in range(3):
            x.mul_(4)

    (race,) = races_of(program)
    assert (race.other.line, race.site.line) == (line_of(program, "# fill"), line_of(program, "# too early"))
    assert race.tensor == "x"


@pytest.mark.parametrize(("part", "count"), [((slice(None), slice(5, 10)), 0), ((slice(None), slice(4, 9)), 1)])
def test_parts_with_gaps_are_compared_by_their_bytes(part, count):
    def program(stream):
        x = torch.ones(8, 10, device="cuda")
        left = x[:, :5]
        stream.wait_stream(torch.cuda.current_stream())
        for _ in range(3):
            left.mul_(2)
        with torch.cuda.stream(stream):
            x[part].sum()

    assert len(races_of(program)) == count


def test_a_race_in_any_single_step_is_found():
    model = torch.nn.Linear(8, 8)

    def program(stream):
        layer = model.cuda()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for step in range(40):
            x = torch.ones(4, 8, device="cuda")
            if step != 29:
                stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                y = x * 2  # reads
            torch.cuda.current_stream().wait_stream(stream)
            layer(y).sum().backward()
            optimizer.step()

    (race,) = races_of(program)
    assert race.site.line == line_of(program, "# reads")


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.ones(300_000).to("cuda"),
        lambda: torch.ones(8).pin_memory().cuda(),
        lambda: torch.ones(600_000).to("cuda", non_blocking=True),  # pageable, and too large to return at once
        lambda: torch.tensor([1.0, 2.0], device="cuda"),
    ],
)
def test_what_a_blocking_copy_on_a_side_stream_made_may_be_used_on_another(use):
    def program(stream):
        with torch.cuda.stream(stream):
            x = use()
        x + 1

    assert races_of(program) == ()


def test_what_a_blocking_copy_has_read_may_be_overwritten_on_another_stream():
    def program(stream):
        x = torch.ones(8, device="cuda")
        x.cpu()
        with torch.cuda.stream(stream):
            x.fill_(0)

    assert races_of(program) == ()


def test_memory_that_the_native_path_frees_and_reuses_is_not_taken_for_the_old_one():
    def program(stream):
        x = torch.ones(1000, device="cuda")
        for _ in range(10):
            x = x + 1  # the memory before is freed, and comes back two rounds later
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                x.record_stream(stream)
                x.sum()
        torch.cuda.current_stream().wait_stream(stream)

    assert races_of(program) == ()


_LONG_RUN = """
import gc
import torch
from torch import nn
from pytest_gpusync import record, simulated_cuda

STEPS = (500, 1500)

def resident():
    gc.collect()
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * 4096

torch.set_num_threads(1)
with simulated_cuda(), record({options}) as seen:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stream = torch.cuda.Stream() if {side} else torch.cuda.current_stream()
    for step in range(STEPS[1] + 1):
        batch = torch.randn(16, 16).pin_memory()
        with torch.cuda.stream(stream):
            x = batch.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(stream)
        x.record_stream(torch.cuda.current_stream())
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        if step == STEPS[0]:
            before = resident()
    print("grown", resident() - before, len(seen.races) if {races} else 0, seen.syncs)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the resident set is read from /proc")
@pytest.mark.parametrize("kind", ["races on a side stream", "races not looked for"])
def test_a_long_run_takes_no_more_memory_with_each_step(run_python, kind):
    looking = kind != "races not looked for"
    source = _LONG_RUN.format(options="" if looking else "races=False", side="side" in kind, races=looking)
    least = None
    for _ in range(3):  # on a busy machine torch's threads may take an arena of their own in any step
        _, grown, races, syncs = run_python(source).stdout.split()
        assert int(races) == 0
        assert int(syncs) > 1500
        least = int(grown) if least is None else min(least, int(grown))
        if least < 600_000:  # one sync a step that were kept with its own objects would take as much
            return
    pytest.fail(f"{least} bytes in 1000 steps")
