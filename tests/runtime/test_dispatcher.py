"""The recorder of torch's dispatcher, held against the simulated device's own count."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from pytest_gpusync import allow, record
from pytest_gpusync.machine import devices
from pytest_gpusync.measure import device_choice
from pytest_gpusync.model.measurement import MeasurementError
from pytest_gpusync.recorders import candidates, create, dispatcher
from pytest_gpusync.simulated import simulated_cuda

COUNTED_EQUALLY = [
    "x.sum().item()",
    "float(x[0, 0])",
    "bool((x > 0).all())",
    "x.cpu()",
    "x.to('cpu', non_blocking=True)",
    "torch.empty(4, 4).copy_(x)",
    "host.to('cuda')",
    "x.copy_(host)",
    "pinned.to('cuda', non_blocking=True)",
    "torch.tensor([1, 2], device='cuda')",
    "torch.as_tensor([1, 2], device='cuda')",
    "x.new_tensor([1.0])",
    "x.nonzero()",
    "x[x > 0]",
    "x[x > 0] = 0.0",
    "x[x > 0] = host[host > 0]",
    "x[torch.tensor([0, 1])]",
    "x[[0, 1]]",
    "x[[0, 1]] = 1.0",
    "x.masked_select(x > 0)",
    "x.unique()",
    "x.equal(x + 1)",
    "torch.allclose(x, x)",
    "str(x)",
    "torch.cuda.synchronize()",
    "torch.cuda.current_stream().synchronize()",
    "torch.accelerator.synchronize()",
    "event.synchronize()",
    "torch.linalg.cholesky(torch.eye(3, device='cuda'))",
    "x @ x + x",
    "x.half().float()",
    "torch.zeros(3, device='cuda')",
    "x[0, 1:].clone()",
    "x.masked_fill(x > 0, 1.0)",
    "torch.empty(0).to('cuda')",
]


@pytest.fixture
def x():
    with simulated_cuda():
        yield torch.ones(4, 4, device="cuda")


def names(x):
    event = torch.cuda.Event()
    event.record()
    return {"torch": torch, "x": x, "host": torch.ones(4, 4), "pinned": torch.ones(4, 4).pin_memory(), "event": event}


def count(recorder, statement, scope):
    with record(recorder=recorder) as seen:
        exec(statement, scope)
    return sorted(sync.kind for sync in seen.result().all_syncs)


@pytest.mark.parametrize("statement", COUNTED_EQUALLY)
def test_reads_copies_and_synchronize_calls_are_counted_as_the_device_makes_them(x, statement):
    scope = names(x)
    assert count("dispatcher", statement, scope) == count("simulated", statement, scope)


def test_a_wait_inside_a_kernel_is_not_seen_and_the_report_says_so(x):
    with record(recorder="dispatcher") as seen:
        torch.linalg.svd(x)
    assert seen.syncs == 0
    assert "waits inside kernels" in seen.result().environment.note


def test_a_wait_has_its_line_bytes_and_direction(x):
    with record(recorder="dispatcher") as seen:
        x.cpu()
    (sync,) = seen.result().all_syncs
    assert (sync.site.function, sync.direction, sync.nbytes, sync.device) == (
        "test_a_wait_has_its_line_bytes_and_direction",
        "D2H",
        64,
        0,
    )


def test_steps_and_allowed_waits_are_told_apart(x):
    weight = torch.nn.Parameter(x.clone())
    optimizer = torch.optim.SGD([weight])
    with record(recorder="dispatcher") as seen:
        for _ in range(4):
            (weight * x).sum().backward()
            optimizer.step()
            weight.sum().item()
            with allow("meant"):
                weight.sum().item()
    result = seen.result()
    assert (result.steps, result.environment.recorder, result.environment.coverage) == (4, "dispatcher", "dispatcher")
    assert [sync.allowed for sync in result.all_syncs] == [None, "meant"] * 4


def test_a_wait_in_backward_is_charged_to_its_line(x):
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(context, value):
            return value * 2

        @staticmethod
        def backward(context, gradient):
            gradient.sum().item()
            return gradient

    with record(recorder="dispatcher") as seen:
        Reads.apply(x.clone().requires_grad_()).sum().backward()
    assert seen.syncs == 1


def test_a_region_without_work_of_the_device_is_not_measured(x):
    with record(recorder="dispatcher") as seen:
        torch.ones(3).sum().item()
    assert (seen.syncs, seen.result().device_used) == (0, False)


def test_everything_is_restored(x):
    from torch import _tensor_str
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    before = (torch._C._cuda_synchronize, torch.cuda.Stream.synchronize, _tensor_str._str_intern)
    with pytest.raises(ZeroDivisionError), record(recorder="dispatcher"):
        1 / 0  # noqa: B018
    assert before == (torch._C._cuda_synchronize, torch.cuda.Stream.synchronize, _tensor_str._str_intern)
    assert _get_current_dispatch_mode_stack() == []


def test_a_mode_of_the_program_that_outlives_the_region_stays(x):
    from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

    class Mine(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with record(recorder="dispatcher") as seen:
        mine = Mine()
        mine.__enter__()
        x.sum().item()
    assert _get_current_dispatch_mode_stack() == [mine]
    mine.__exit__(None, None, None)
    assert seen.syncs == 1


@pytest.mark.parametrize(
    ("version", "platform", "found"),
    [
        ("2.13.0+rocm6.4", "linux", "rocm"),
        ("2.13.0+xpu", "linux", "xpu"),
        ("2.13.0", "darwin", "mps"),
        ("2.13.0+cpu", "linux", None),
    ],
)
def test_other_accelerators_are_told_by_the_build_of_torch(monkeypatch, version, platform, found):
    monkeypatch.setattr(devices, "torch_build", lambda: (version, None))
    monkeypatch.setattr(devices.sys, "platform", platform)
    monkeypatch.setattr(devices.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(devices, "_PLUGINS", {})
    device = devices.detect()
    assert (device.kind, device.gpu) == (("none", None) if found is None else ("other", found))


def test_another_accelerator_is_measured_at_the_dispatcher():
    assert list(candidates("other", "auto")) == ["dispatcher"]


def test_an_nvidia_gpu_that_was_asked_for_is_not_replaced_by_another_accelerator(monkeypatch):
    monkeypatch.setattr(devices, "detect", lambda: devices.Device("other", "mps"))
    with pytest.raises(MeasurementError, match="no NVIDIA GPU; leave the device to be found, to measure on mps"):
        device_choice.usable_device("cuda", simulated=False)


def test_without_an_accelerator_the_recorder_refuses(monkeypatch):
    monkeypatch.setattr(dispatcher, "accelerator", lambda: None)
    with pytest.raises(dispatcher.RecorderUnavailable, match="torch finds no accelerator"):
        create("dispatcher").start(lambda raw: None)


def test_the_package_is_imported_without_torch():
    code = "import sys, pytest_gpusync.recorders; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
