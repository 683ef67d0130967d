"""Random programs that open and leave the simulated device, regions and allow(), beside a count made by hand."""

from __future__ import annotations

import os
import random
import threading

import pytest
import torch
from torch_state import changes, torch_state

from pytest_gpusync import allow, record, simulated_cuda

PROGRAMS = int(os.environ.get("GPUSYNC_PROGRAMS", "150"))
SEED = int(os.environ.get("GPUSYNC_SEED", "0"))
BLOCKS = ("device", "region", "region", "allow", "fails", "thread", "generator")
LEAVES = ("read", "read", "backward", "default type", "stream")


class Failed(Exception):
    pass


def program(chance, depth=0):
    """Return a random program: a list of names of operations, and of blocks with their bodies."""
    body = []
    for _ in range(chance.randrange(1, 5)):
        if depth < 6 and chance.random() < 0.6:
            body.append((chance.choice(BLOCKS), program(chance, depth + 1)))
        else:
            body.append(chance.choice(LEAVES))
    return body


class Run:
    """Runs a program, and counts the reads that each region must have seen."""

    def __init__(self):
        self.on = 0
        self.regions = 0

    def body(self, body, open_blocks):
        """Run a body; `open_blocks` are those of this thread: a list of one count for a region, None for allow()."""
        for item in body:
            if isinstance(item, tuple):
                getattr(self, item[0])(item[1], open_blocks)
            elif self.on:
                getattr(self, item.replace(" ", "_"))(open_blocks)
            else:
                with pytest.raises((AssertionError, RuntimeError)):
                    torch.zeros(1, device="cuda")

    def read(self, open_blocks):
        torch.zeros(1, device="cuda").item()
        if None not in open_blocks:
            for count in open_blocks:
                count[0] += 1

    def backward(self, open_blocks):
        x = torch.ones(2, device="cuda", requires_grad=True)
        (x * 2).sum().backward()

    def default_type(self, open_blocks):
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
        assert torch.empty(1).is_cuda

    def stream(self, open_blocks):
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.ones(2, device="cuda")

    def device(self, body, open_blocks):
        with simulated_cuda():
            self.on += 1
            try:
                self.body(body, open_blocks)
            finally:
                self.on -= 1

    def region(self, body, open_blocks):
        if not self.on:
            return
        count = [0]
        with record(children=True) as region:
            try:
                self.body(body, [*open_blocks, count])
            finally:
                seen = region.syncs
        self.regions += 1
        assert (seen, region.syncs) == (count[0], count[0])

    def allow(self, body, open_blocks):
        with allow("it is meant"):
            self.body(body, [*open_blocks, None])

    def fails(self, body, open_blocks):
        with pytest.raises(Failed):
            self._fail(body, open_blocks)

    def _fail(self, body, open_blocks):
        with allow("it fails"):
            self.body(body, [*open_blocks, None])
            raise Failed

    def thread(self, body, open_blocks):
        errors = []

        def work():
            try:
                self.body(body, [])
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, name="worker")
        thread.start()
        thread.join()
        if errors:
            raise errors[0]

    def generator(self, body, open_blocks):
        def steps():
            with simulated_cuda():
                yield
                raise AssertionError

        generator = steps()
        next(generator)
        self.on += 1
        try:
            self.body(body, open_blocks)
        finally:
            self.on -= 1
            del generator


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_random_programs_are_counted_right_and_leave_nothing_behind():
    with simulated_cuda(), record(children=True):
        Run().default_type([])
    before, regions = torch_state(), 0
    for number in range(PROGRAMS):
        body = program(random.Random(SEED + number))
        run = Run()
        run.body(body, [])
        assert changes(before, torch_state()) == {}, (SEED + number, body)
        regions += run.regions
    assert regions > PROGRAMS / 4
