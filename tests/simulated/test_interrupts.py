"""Signal handlers that raise at any point, as that of Ctrl-C and the time limits of pytest-timeout do."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from torch_state import changes, torch_state

import pytest_gpusync
from pytest_gpusync import allow, record, simulated_cuda
from pytest_gpusync.measure import recording, scopes

FILES = (str(Path(pytest_gpusync.__file__).parent), contextlib.__file__, __file__)
POINTS = int(os.environ.get("GPUSYNC_INTERRUPTS", "60"))
"""How many of the points of the program are interrupted. 20000 interrupts every one, in ten minutes."""


class Interrupted(BaseException):
    pass


def program():
    with simulated_cuda(), record(children=True):
        x = torch.zeros(1, device="cuda")
        with allow("the second read is wanted"):
            x.item()
        x.item()


def train(steps):
    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        optimizer.step()
        torch.cuda.synchronize()


class Interruption:
    """Sends this process a signal before it runs line number `point` of the program or this project."""

    def __init__(self, point):
        self.point = point
        self.lines = 0

    def trace(self, frame, event, argument):
        if event == "call" and not frame.f_code.co_filename.startswith(FILES):
            return None
        self.lines += 1
        if self.lines == self.point:
            signal.raise_signal(signal.SIGUSR1)
        return self.trace


def run(point):
    """Run the program, interrupted at a point; return the number of its points and whether it was interrupted."""
    interruption = Interruption(point)
    before = sys.gettrace()
    sys.settrace(interruption.trace)
    try:
        program()
    except Interrupted:
        return interruption.lines, True
    finally:
        sys.settrace(before)
    return interruption.lines, False


@pytest.fixture
def raising():
    def handle(number, frame):
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handle)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # interrupts in finalizers
def test_whenever_the_program_is_interrupted_everything_is_restored(raising):
    program()
    with simulated_cuda(), record() as seen:
        train(2)
    before, expected = torch_state(), seen.syncs
    points, _ = run(0)
    assert points > 5000
    interrupted = 0
    for point in range(1, points + 1, max(1, points // POINTS)):
        interrupted += run(point)[1]
        assert changes(before, torch_state()) == {}, point
        assert (recording._allowed, recording._uncounted, scopes._open) == ((), set(), ()), point
        assert (recording.current._regions, recording.current._recorder) == ((), None), point
    assert interrupted > POINTS / 2
    with simulated_cuda(), record() as seen:
        train(2)
    assert seen.syncs == expected


def test_the_first_switch_on_can_be_interrupted_and_repeated(run_python):
    done = run_python(FIRST_SWITCH_ON)
    assert done.stdout.splitlines() == ["interrupted", "False", "2.0 6.0"], done.stderr


FIRST_SWITCH_ON = """
import torch
from pytest_gpusync import simulated_cuda
from pytest_gpusync.simulated.kernels import registration
register, calls = registration._implement, []
def implement(*arguments):
    calls.append(1)
    if len(calls) == 100:
        raise KeyboardInterrupt
    register(*arguments)
registration._implement = implement
try:
    with simulated_cuda(): pass
except KeyboardInterrupt:
    print("interrupted")
print(torch.cuda.is_available())
with simulated_cuda():
    x = torch.ones(2, device="cuda", requires_grad=True)
    (x * 3).sum().backward()
    print(x.sum().item(), x.grad.sum().item())
"""


def test_an_interrupt_as_an_allow_block_ends_does_not_allow_what_follows(raising):
    with simulated_cuda(), record() as seen:
        x = torch.zeros(1, device="cuda")

        def interrupt(frame, event, argument):
            if frame.f_code is allow.__exit__.__code__:
                signal.raise_signal(signal.SIGUSR1)

        before = sys.gettrace()
        with pytest.raises(Interrupted):
            sys.settrace(interrupt)
            try:
                with allow("the value is wanted"):
                    x.item()
            finally:
                sys.settrace(before)
        x.item()
    assert seen.syncs == 1


def test_a_region_that_was_dropped_is_not_measured_as_zero():
    from pytest_gpusync import MeasurementError

    with simulated_cuda():
        region = record().__enter__()
        torch.zeros(1, device="cuda").item()
        with pytest.raises(MeasurementError, match="dropped before it was closed"):
            region.syncs  # noqa: B018
