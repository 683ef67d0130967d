"""What a GPU refuses, the simulated device refuses."""

from __future__ import annotations

import pytest
import torch

from pytest_gpusync.simulated import simulated_cuda


def test_numpy_of_a_device_tensor(cuda):
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        torch.ones(2, device=cuda).numpy()


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, c: x + c,
        lambda x, c: torch.mm(x, c),
        lambda x, c: torch.cat([x, c]),
        lambda x, c: x.add_(c),
        lambda x, c: torch.where(x > 0, x, c),
    ],
)
def test_mixed_devices(cuda, operation):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        operation(torch.ones(2, 2, device=cuda), torch.ones(2, 2))


def test_a_host_tensor_takes_no_index_from_the_device(cuda):
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        torch.ones(4)[torch.arange(2, device=cuda)]


def test_two_devices_are_not_one():
    with (
        simulated_cuda(devices=2),
        pytest.raises(RuntimeError, match="cuda:0 and cuda:1"),
    ):
        torch.ones(2, device="cuda:0") + torch.ones(2, device="cuda:1")


def test_a_cpu_scalar_tensor_mixes(cuda):
    assert (torch.ones(2, device=cuda) + torch.tensor(1.0)).device.type == "cuda"


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.zeros(2, device="cuda:1"),
        lambda: torch.ones(2).to("cuda:1"),
        lambda: torch.cuda.set_device(1),
        lambda: torch.cuda.synchronize(1),
        lambda: torch.accelerator.synchronize(1),
    ],
    ids=["factory", "copy", "set", "synchronize", "accelerator"],
)
def test_a_device_that_is_not_simulated_names_the_options(cuda, use):
    with pytest.raises(RuntimeError, match=r"invalid device ordinal: .*--devices 2.*--gpu-simulated-devices=2"):
        use()


def test_the_properties_of_a_device_that_is_not_simulated_name_the_options(cuda):
    with pytest.raises(AssertionError, match=r"Invalid device id: .*simulated_cuda\(devices=4\)"):
        torch.cuda.get_device_properties(3)


def test_a_sync_while_a_graph_is_captured(cuda):
    x = torch.ones((), device=cuda)
    with (
        pytest.raises(RuntimeError, match="not permitted when stream is capturing"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        x.item()


def test_a_cpu_generator_for_a_device_tensor(cuda):
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.randn(2, device=cuda, generator=torch.Generator())


def test_pinning_a_device_tensor(cuda):
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ones(2, device=cuda).pin_memory()


def test_handing_memory_to_a_cuda_library(cuda):
    with pytest.raises(NotImplementedError, match="CuPy"):
        torch.ones(2, device=cuda).__cuda_array_interface__  # noqa: B018


def test_a_cpu_tensor_still_has_no_cuda_array_interface(cuda):
    assert not hasattr(torch.ones(2), "__cuda_array_interface__")


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "quantized"),
        (lambda x: torch.quantize_per_tensor(x.cpu(), 0.1, 0, torch.qint8).cuda(), "quantized"),
    ],
)
def test_kinds_of_tensors_that_are_not_simulated_are_refused_by_name(cuda, make, kind):
    with pytest.raises(NotImplementedError, match=f"does not simulate {kind} tensors.*or run on a GPU"):
        make(torch.ones(2, device=cuda))


def test_elapsed_time_of_events_without_timing(cuda):
    first, second = torch.cuda.Event(), torch.cuda.Event()
    with pytest.raises(ValueError, match="enable_timing=True"):
        first.elapsed_time(second)


def test_sending_a_device_tensor_to_another_process(cuda):
    from multiprocessing.reduction import ForkingPickler

    with pytest.raises(NotImplementedError, match="cannot be sent to another process"):
        ForkingPickler.dumps(torch.ones(2, device=cuda))


@pytest.mark.parametrize("query", ["utilization", "temperature", "list_gpu_processes"])
def test_what_only_a_driver_knows(cuda, query):
    with pytest.raises(NotImplementedError, match=f"torch.cuda.{query} is not simulated"):
        getattr(torch.cuda, query)()
