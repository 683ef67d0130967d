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
    "indices.repeat_interleave(indices)",
    "indices.repeat_interleave(indices, output_size=6)",
    "indices.bincount(minlength=8)",
    "x.histc(10)",
    "x.histc(10, min=0, max=4)",
    "torch.isin(indices, indices.repeat(8))",
    "torch.isin(indices, indices[:1])",
    "torch.normal(x, x)",
    "torch.normal(x, 1.0)",
    "x.unique(dim=0)",
    "x.to_sparse_csr()",
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
    return {
        "torch": torch,
        "x": x,
        "indices": torch.tensor([1, 2, 3], device="cuda"),
        "host": torch.ones(4, 4),
        "pinned": torch.ones(4, 4).pin_memory(),
        "event": event,
    }


def count(recorder, statement, scope):
    with record(recorder=recorder) as seen:
        exec(statement, scope)
    return sorted(sync.kind for sync in seen.result().all_syncs)


@pytest.mark.parametrize("statement", COUNTED_EQUALLY)
def test_reads_copies_and_synchronize_calls_are_counted_as_the_device_makes_them(x, statement):
    scope = names(x)
    assert count("dispatcher", statement, scope) == count("simulated", statement, scope)


@pytest.mark.parametrize("tests", range(14, 19))
def test_isin_waits_from_the_size_at_which_torch_sorts(x, tests):
    scope = {"torch": torch, "few": torch.arange(32, device="cuda"), "many": torch.arange(tests, device="cuda")}
    counts = [count(recorder, "torch.isin(few, many)", scope) for recorder in ("dispatcher", "simulated")]
    assert counts[0] == counts[1]


def test_each_block_that_is_freed_is_a_wait(x):
    counts = {}
    for recorder in ("dispatcher", "simulated"):
        kept = [torch.empty(1 << 26, device="cuda") for _ in range(3)]
        del kept
        with record(recorder=recorder) as seen:
            torch.cuda.empty_cache()
            torch.cuda.empty_cache()
        counts[recorder] = [sync.kind for sync in seen.result().all_syncs]
    assert counts["dispatcher"] == counts["simulated"] != []


def test_a_wait_in_a_library_names_its_line_there(x):
    weight = torch.nn.Parameter(x.clone())
    optimizer = torch.optim.LBFGS([weight], max_iter=1)

    def closure():
        optimizer.zero_grad()
        loss = weight.square().mean()
        loss.backward()
        return loss

    with record(recorder="dispatcher") as seen:
        optimizer.step(closure)
    assert {sync.site.via.partition(":")[0] for sync in seen.result().all_syncs} == {"torch/optim/lbfgs.py"}


@pytest.mark.parametrize("statement", ["torch.linalg.svd(x)", "torch.linalg.eigvalsh(x)"])
def test_of_many_waits_inside_a_library_one_is_seen_and_the_report_says_that_there_may_be_more(x, statement):
    with record(recorder="dispatcher") as seen:
        exec(statement)
    assert seen.syncs == 1 < len(count("simulated", statement, {"torch": torch, "x": x}))
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


def test_operators_whose_size_depends_on_values_are_known_without_torchs_tags():
    names = (name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    packets = {getattr(torch.ops.aten, name.partition(".")[0], None) for name in names} - {None}
    tagged = {
        str(packet)
        for packet in packets
        for overload in packet.overloads()
        if torch.Tag.dynamic_output_shape in getattr(packet, overload).tags
    }
    assert tagged <= dispatcher._RULES.keys() | dispatcher._SIZED_BY_VALUES


@pytest.mark.parametrize("statement", ["v.bincount()", "v.repeat_interleave(v)"])
def test_counts_of_cudas_kernels_are_not_claimed_of_rocm(x, monkeypatch, statement):
    scope = {"v": torch.tensor([1, 2], device="cuda")}
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert count("dispatcher", statement, scope) == ["stream"]


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


def test_a_torch_without_torch_accelerator_is_counted_as_well(x, monkeypatch):
    # As torch 2.4 and 2.5 are, which have no more of what this recorder uses than that.
    monkeypatch.delattr(torch, "accelerator")
    monkeypatch.delattr(torch._C, "_accelerator_synchronizeDevice")
    monkeypatch.delattr(torch._C, "_accelerator_emptyCache")
    with record(recorder="dispatcher") as seen:
        x.sum().item()
        torch.cuda.synchronize()
        torch.cuda.current_stream().synchronize()
    assert [(sync.kind, sync.device) for sync in seen.result().all_syncs] == [
        ("stream", 0),
        ("device", 0),
        ("stream", 0),
    ]


def test_there_is_one_apple_gpu_where_torch_does_not_say_which_is_current(monkeypatch):
    monkeypatch.setattr(dispatcher, "accelerator", lambda: torch.device("mps"))
    monkeypatch.delattr(torch, "accelerator")
    assert dispatcher._waited_for(()) == torch.device("mps")


@pytest.mark.skipif(not hasattr(dispatcher._compiler, "set_code_exec_strategy"), reason="torch wraps the method")
def test_an_operator_does_not_pass_through_torchs_wrapper_for_the_compiler():
    assert not hasattr(dispatcher._Mode.__torch_dispatch__, "__wrapped__")


@pytest.mark.long
def test_what_was_compiled_before_stays_compiled_and_the_recorder_is_not_compiled(monkeypatch):
    from torch._dynamo.utils import counters

    def step(x):
        return x.add(1) if x.sum().item() > 0 else x.sub(1)  # breaks the graph

    monkeypatch.setattr(dispatcher, "_is_device", lambda device: device.type == "cpu")
    x = torch.ones(4)
    compiled = torch.compile(step, backend="eager")
    compiled(x)
    before = {name: dict(counters[name]) for name in ("stats", "frames")}
    seen = []
    mode = dispatcher._Mode(lambda wait, frame: seen.append(frame.f_code.co_name))
    dispatcher._python_dispatch._push_mode(mode)
    try:
        compiled(x)
    finally:
        dispatcher._leave(mode)
    assert {name: dict(counters[name]) for name in before} == before
    assert seen == ["step"]


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
