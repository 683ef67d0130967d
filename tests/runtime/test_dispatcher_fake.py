"""The recorder of torch's dispatcher over tensors without memory, which every supported torch has, from 2.4 on."""

from __future__ import annotations

import types
from contextlib import suppress

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from pytest_gpusync.recorders import dispatcher

WAITS = {
    "x.sum().item()": ["stream"],
    "bool((x > 0).all())": ["stream"],
    "x.cpu()": ["stream"],
    "x.masked_select(x > 0)": ["stream"],
    "x.equal(x)": ["stream"],
    "x @ x + x": [],
    "x.half().float()": [],
    "torch.zeros(3, device='cuda')": [],
    "x.masked_fill(x > 0, 1.0)": [],
}
"""The kinds of waits of each statement. Statements that ask for the current device need a build of torch with one."""


@pytest.fixture
def waits(monkeypatch):
    """What the recorder tells of while the test runs."""
    seen = []
    monkeypatch.setattr(dispatcher, "accelerator", lambda: torch.device("cuda", 0))
    recorder = dispatcher.DispatcherRecorder()
    with FakeTensorMode():
        recorder.start(seen.append)
        try:
            yield seen
        finally:
            recorder.stop()


@pytest.mark.parametrize("statement", WAITS)
def test_a_statement_waits_as_often_as_on_a_gpu(waits, statement):
    names = types.SimpleNamespace(torch=torch, x=torch.ones(4, 4, device="cuda"))
    waits.clear()
    with suppress(DataDependentOutputException, DynamicOutputShapeException):  # a fake tensor has no values
        eval(statement, vars(names))
    assert [wait.kind for wait in waits] == WAITS[statement]
    assert all(wait.frame.f_code.co_filename for wait in waits)


def test_nothing_is_told_after_the_end(waits):
    recorder = dispatcher.DispatcherRecorder()
    recorder.start(waits.append)
    x = torch.ones(4, device="cuda")
    recorder.stop()
    waits.clear()
    assert x.cpu().shape == (4,)
    assert len(waits) == 1  # that of the fixture's recorder
