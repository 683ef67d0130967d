from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_gpusync import record
from pytest_gpusync.model.line_counts import CHOICE_OF_ALGORITHM, line_counts
from pytest_gpusync.reporting.run_file import region_document

ONE = {"device": 11, "event": 10}
"""The waits for one convolution: ten plans, as an H200 was seen to try."""


def times(number: int) -> dict[str, int]:
    return {kind: count * number for kind, count in ONE.items()} if number else {}


@pytest.fixture(autouse=True)
def benchmark(cuda):
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        yield


@pytest.fixture
def image():
    return torch.ones(2, 3, 8, 8, device="cuda")


@pytest.mark.parametrize(
    ("layer", "number"),
    [
        (lambda: nn.Conv2d(3, 4, 3), 1),
        (lambda: nn.ConvTranspose2d(3, 4, 3), 1),
        (lambda: nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)), 1),
        (lambda: nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=2)), 2),
        (lambda: nn.Conv2d(3, 6, 3, groups=3), 0),
        (lambda: nn.Flatten(), 0),
    ],
    ids=["convolution", "transposed", "the same twice", "two", "depthwise", "none"],
)
def test_a_convolution_is_timed_when_it_is_first_met(image, kinds, layer, number):
    model = layer().cuda()
    with kinds() as first:
        model(image)
    with kinds() as second:
        model(image)
    assert (dict(first), dict(second)) == (times(number), {})


def test_a_batch_of_another_size_is_timed_again(image, kinds):
    model = nn.Conv2d(3, 4, 3).cuda()
    model(image)
    with kinds() as counted:
        model(image[:1])
    assert dict(counted) == times(1)


@pytest.mark.parametrize(("needs_input", "number"), [(False, 1), (True, 2)])
def test_each_gradient_of_a_convolution_is_timed(image, kinds, needs_input, number):
    loss = nn.Conv2d(3, 4, 3).cuda()(image.requires_grad_(needs_input)).sum()
    with kinds() as counted:
        loss.backward()
    assert dict(counted) == times(number)


def test_a_transposed_convolution_runs_backward_as_one_that_was_met_there(image, kinds):
    narrow = nn.Conv2d(3, 4, 4, 2, 1).cuda()
    widen = nn.ConvTranspose2d(4, 3, 4, 2, 1).cuda()
    half = narrow(image)
    half.sum().backward()
    loss = widen(half.detach().requires_grad_()).sum()
    with kinds() as counted:
        loss.backward()
    # Its weight's gradient is that of `narrow`; its input's runs forward, for the first time in a backward pass.
    assert dict(counted) == times(1)


def test_nothing_is_timed_unless_asked_for(image, kinds):
    with torch.backends.cudnn.flags(enabled=True, benchmark=False), kinds() as counted:
        nn.Conv2d(3, 4, 3).cuda()(image).sum().backward()
    assert "event" not in counted


def test_nothing_is_timed_without_cudnn(image, kinds):
    model = nn.Conv2d(3, 4, 3).cuda()
    with torch.backends.cudnn.flags(enabled=False, benchmark=True), kinds() as counted:
        model(image)
    assert dict(counted) == {}


def test_a_limit_makes_it_shorter(image, kinds, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark_limit", 4)
    model = nn.Conv2d(3, 4, 3).cuda()
    with kinds() as counted:
        model(image)
    assert dict(counted) == {"device": 5, "event": 4}


def test_the_waits_of_a_choice_are_told_from_others(image):
    net = nn.Conv2d(3, 4, 3).cuda()
    with record() as seen:
        net(image).sum().backward()
        image.sum().item()
    forward_and_backward, read = sorted(line_counts(seen.result()), key=lambda line: line.line)
    assert forward_and_backward.cause == CHOICE_OF_ALGORITHM
    assert read.cause is None
    sites = region_document(seen.result())["sites"]
    assert {site["cause"] for site in sites if site["kind"] in ("device", "event")} == {CHOICE_OF_ALGORITHM}
