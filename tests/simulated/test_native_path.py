"""The native path: which calls take it, which do not, and that results and counts are the same either way."""

from __future__ import annotations

import gc
import json
import threading
import weakref

import pytest
import torch

from pytest_gpusync.commands import doctor
from pytest_gpusync.machine import native_libraries
from pytest_gpusync.simulated import simulated_cuda
from pytest_gpusync.simulated.abi.lifetimes import LIBRARY
from pytest_gpusync.simulated.native_path import dispatch
from pytest_gpusync.simulated.tensors import memory


def _is_built():
    try:
        native_libraries.load(LIBRARY)
    except native_libraries.NativeUnavailable:
        return False
    return True


needs_native_code = pytest.mark.skipif(not _is_built(), reason="there is no native path")


def _inputs(device):
    torch.manual_seed(0)
    return torch.randn(4, 4, device="cpu").to(device), torch.randn(4, 4, device="cpu").to(device)


PLAIN = {
    "arithmetic": lambda x, y: x + y,
    "a number": lambda x, y: x * 2.5,
    "a tensor of the host without dimensions": lambda x, y: x + torch.tensor(1.5),
    "in place": lambda x, y: x.add_(y, alpha=2),
    "in place on a view": lambda x, y: x[1:].mul_(y[:3]),
    "a view": lambda x, y: x.t(),
    "a product": lambda x, y: torch.addmm(x[0], x, y),
    "a list": lambda x, y: torch.cat([x, y, x]),
    "several results": lambda x, y: x.max(0).values + x.max(0).indices,
    "a list of results": lambda x, y: torch._foreach_add([x, y], [y, x])[1],
    "a long list": lambda x, y: torch._foreach_add([x, y] * 100, 1.0)[199],
    "lists in place": lambda x, y: (torch._foreach_mul_([x, y], 3.0), x + y)[1],
    "another type": lambda x, y: (x > y).to(torch.float64),
    "a copy": lambda x, y: x.copy_(y),
    "softmax": lambda x, y: torch.log_softmax(x, 1),
    "a shape and an option": lambda x, y: torch.zeros_like(x, dtype=torch.int32),
    "absent tensors": lambda x, y: torch.nn.functional.layer_norm(x, (4,)),
    "without results": lambda x, y: torch.empty(0, device=x.device).sum() + x,
}


@pytest.fixture
def past_python(cuda):
    """After the device's first use: a function that returns how many calls took the native path so far."""
    if not _is_built():
        pytest.skip("there is no native path")
    torch.ones(1, device=cuda)
    return dispatch.calls


def _retried():
    return memory.lifetimes().context.retried


@needs_native_code
def test_torch_is_where_it_was_expected(cuda):
    assert dispatch.unavailable is None


@pytest.mark.parametrize("name", ["aten::add.Tensor", "aten::view", "aten::cat", "aten::add_.Tensor", "aten::sinh"])
def test_torch_finds_its_tables_in_order(cuda, name):
    torch._C._dispatch_check_invariants(name)


def test_a_missing_kernel_is_reported_as_ever(cuda):
    with pytest.raises(NotImplementedError, match=r"Could not run .* with arguments from the 'SparseCPU'"):
        torch.ones(2, 2).to_sparse().cumsum(0)


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_operator_goes_past_python_and_computes_what_the_cpu_does(past_python, name):
    expected = PLAIN[name](*_inputs("cpu"))
    given = _inputs("cuda")
    PLAIN[name](*_inputs("cuda"))
    before, retried = past_python(), _retried()
    result = PLAIN[name](*given)
    assert past_python() > before
    assert _retried() == retried
    assert result.device == torch.device("cuda", 0)
    assert (result.dtype, result.stride()) == (expected.dtype, expected.stride())
    assert torch.equal(result.cpu(), expected)


def test_training_goes_past_python(past_python):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x, target = torch.ones(3, 4, device="cuda"), torch.zeros(3, dtype=torch.long, device="cuda")

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()

    step()
    before, retried = past_python(), _retried()
    step()
    assert past_python() - before > 25
    assert _retried() == retried


def test_what_an_operator_writes_is_the_object_that_was_given(past_python):
    x, y = _inputs("cuda")
    version = x._version
    before = past_python()
    assert x.add_(y) is x
    assert past_python() == before + 1
    assert x._version == version + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        leaf = torch.ones(2, device="cuda", requires_grad=True)
        result = leaf.exp()
        result.add_(1)
        result.sum().backward()


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, y: x + y[:3],
        lambda x, y: x.add_(y[:3]),
        lambda x, y: torch.cat([x, y[0]]),
        lambda x, y: x @ y[:3],
        lambda x, y: torch._foreach_add_([x, y], [y, x[:3]]),
        lambda x, y: torch.addmm(x, x, y[:3]),
    ],
)
def test_errors_are_the_cpus(past_python, compute):
    with pytest.raises(RuntimeError) as expected:
        compute(*_inputs("cpu"))
    x, y = _inputs("cuda")
    for _ in range(3):
        with pytest.raises(RuntimeError) as raised:
            compute(x, y)
        assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]
    assert torch.equal((x + y).cpu(), x.cpu() + y.cpu())


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x.to("cpu"),
        lambda x: torch.ones(2).to("cuda"),
        lambda x: x.uniform_(),
        lambda x: torch.ops.aten._softmax(x, 0, True),
        lambda x: x.nonzero(),
    ],
    ids=["to the host", "from the host", "random", "half to float", "a wait"],
)
def test_what_is_more_than_the_cpus_kernel_goes_through_python(past_python, compute):
    x = _inputs("cuda")[0].half()
    compute(x)
    before = past_python()
    compute(x)
    assert past_python() == before


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: torch.add(x, x, out=torch.empty(0, device=x.device)),
        lambda x: torch.mul((x + 0j).conj(), 2j).real,
        lambda x: torch.addmm(x[0], x, x, out=x.clone()),
        lambda x: x.resize_(2, 2) * 2,
        lambda x: torch.cat([x.expand(2, 4, 4), x[None]]).unsqueeze_(0),
        lambda x: x.index_select(0, torch.tensor([1, 1]).to(x.device)),
        lambda x: torch.linalg.qr(x).Q,
    ],
    ids=["out", "conjugate", "out of the right size", "resized", "expanded", "indices", "factors"],
)
def test_values_are_the_cpus_whichever_way_they_go(past_python, compute):
    expected, result = (compute(_inputs(device)[0]) for device in ("cpu", "cuda"))
    assert torch.equal(result.cpu(), expected)


def test_the_device_of_the_host_is_refused_beside_it(past_python):
    x = _inputs("cuda")[0]
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + torch.ones(4)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.cat([x, torch.ones(4, 4)])


@needs_native_code
def test_two_devices_are_told_apart():
    with simulated_cuda(2):
        one, other = torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")
        before = dispatch.calls()
        assert (other + other).device.index == 1
        assert dispatch.calls() > before
        with pytest.raises(RuntimeError, match="found at least two devices"):
            one + other
        with torch.cuda.device(1):
            assert torch.zeros(2, device="cuda").device.index == 1
        assert torch.cuda.memory_allocated(1) == 512


def _of(x):
    before = dispatch.calls()
    x + x
    return dispatch.calls() - before


def test_it_is_closed_while_a_graph_is_captured(past_python):
    x = torch.ones(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert _of(x) == 0
        y = x + 1
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [6, 6]
    assert _of(x) == 1


def test_it_is_closed_on_another_stream_and_while_births_are_watched(past_python):
    x = torch.ones(2, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        assert _of(x) == 0
    assert _of(x) == 1
    births = []
    memory.watch_births(births.append)
    try:
        assert _of(x) == 0
        assert births
    finally:
        memory.watch_births(None)
    assert _of(x) == 1


@needs_native_code
def test_it_is_closed_without_values_and_when_the_device_is_off():
    with simulated_cuda(values=False):
        assert _of(torch.ones(2, device="cuda")) == 0
    with simulated_cuda():
        x = torch.ones(2, device="cuda")
        assert _of(x) == 1
    # The error is the one that torch raises on this machine.
    with pytest.raises(Exception) as raised:
        x + x
    assert str(raised.value)


def test_nothing_is_kept_alive(past_python):
    x, y = _inputs("cuda")
    result = torch.cat([x + y, x])
    seen = [weakref.ref(t) for t in (x, y, result)]
    with pytest.raises(RuntimeError):
        torch.cat([result, x[0]])
    storage = result.untyped_storage()
    detached = result.detach()
    del x, y, result
    gc.collect()
    assert [ref() for ref in seen] == [None] * 3
    assert detached.untyped_storage().data_ptr() == storage.data_ptr()
    assert torch.cuda.memory_allocated() == 512
    del detached, storage
    assert torch.cuda.memory_allocated() == 0


def test_memory_is_counted_to_the_byte(past_python):
    x = torch.zeros(1000, device="cuda")
    before = torch.cuda.memory_allocated()
    kept = [x + 1 for _ in range(10)]
    assert torch.cuda.memory_allocated() - before == 10 * 4096
    assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated()
    del kept[::2]
    assert torch.cuda.memory_allocated() - before == 5 * 4096
    torch.cuda.reset_peak_memory_stats()
    for _ in range(100):
        x + 1
    assert torch.cuda.max_memory_allocated() - before == 6 * 4096
    views = [kept[0][:10], kept[0].view(10, 100)]
    del kept
    assert torch.cuda.memory_allocated() - before == 4096
    del views


def test_many_tensors_between_two_looks_at_the_books(past_python):
    x = torch.zeros(4, device="cuda")
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(60_000):
        y = x + 1
    stats = torch.cuda.memory_stats()
    assert stats["allocation.all.allocated"] - before == 60_000
    assert stats["allocation.all.current"] == 2
    assert y.tolist() == [1] * 4


def test_a_full_device_says_so():
    with simulated_cuda(memory="64 MiB"):
        x = torch.zeros(1 << 20, device="cuda")
        kept = []
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            for _ in range(100):
                kept.append(x + 1)
        assert 10 <= len(kept) <= 15
        del kept
        assert (x + 1)[0] == 1


def test_more_than_the_host_has_is_out_of_memory_too(past_python):
    x = torch.zeros(1 << 24, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        x[:, None] + x
    assert float(x.sum()) == 0


def test_threads_compute_beside_each_other(past_python):
    wrong = []
    shared = torch.zeros(64, device="cuda")

    def work(seed):
        x = torch.full((64,), float(seed), device="cuda")
        for _ in range(300):
            y = torch._foreach_add([x, shared], 1.0)
            z = torch.cat([y[0], y[1]]).sum()
            if z.item() != 64 * (seed + 1) + 64:
                wrong.append(z.item())

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    gc.collect()
    assert torch.cuda.memory_allocated() == 512
    assert shared.sum() == 0


def test_inference_mode_makes_inference_tensors(past_python):
    with torch.inference_mode():
        x = torch.ones(2, device="cuda")
        before = past_python()
        y = x + x
        assert past_python() > before
    assert y.is_inference()
    assert not (torch.ones(2, device="cuda") + 1).is_inference()
    assert (y * 2).tolist() == [4, 4]


def test_storages_can_be_freed_and_grown_again(past_python):
    x = torch.ones(1024, device="cuda") + 1
    storage = x.untyped_storage()
    size = storage.size()
    before = torch.cuda.memory_allocated()
    storage.resize_(0)
    assert torch.cuda.memory_allocated() == before - 4096
    storage.resize_(size)
    assert torch.cuda.memory_allocated() == before


@needs_native_code
def test_a_child_that_is_forked_before_the_first_use_may_use_it(run_python):
    done = run_python(
        "import os, torch\n"
        "from pytest_gpusync.simulated import switch_on\n"
        "from pytest_gpusync.simulated.native_path import dispatch\n"
        "switch_on()\n"
        "child = os.fork()\n"
        "x = torch.ones(4, device='cuda')\n"
        "before = dispatch.calls()\n"
        "y = x + x\n"
        "assert dispatch.calls() == before + 1 and y.tolist() == [2] * 4\n"
        "assert torch.cuda.memory_allocated() == 1024, torch.cuda.memory_allocated()\n"
        "if child == 0: os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "if os.fork() == 0:\n"
        "    try: x + x\n"
        "    except RuntimeError as error: os._exit('Cannot re-initialize CUDA' in str(error))\n"
        "    os._exit(3)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 1\n"
    )
    assert done.returncode == 0, done.stderr


@needs_native_code
def test_where_torch_is_laid_out_in_another_way_python_does_it_all(run_python):
    done = run_python(
        "import torch\n"
        "from pytest_gpusync.simulated import switch_on\n"
        "from pytest_gpusync.simulated.native_path import dispatch, torch_layout\n"
        "def fail(*_): raise torch_layout.UnknownLayout('it is elsewhere')\n"
        "torch_layout._find_storages = fail\n"
        "switch_on()\n"
        "x = torch.ones(4, device='cuda', requires_grad=True)\n"
        "(x * x).sum().backward()\n"
        "assert x.grad.tolist() == [2] * 4\n"
        "print(dispatch.unavailable, dispatch.calls())\n"
    )
    assert (done.returncode, done.stdout) == (0, "it is elsewhere 0\n"), done.stderr


def test_the_doctor_says_that_kernels_are_in_python(monkeypatch, capsys):
    monkeypatch.setattr(dispatch, "unavailable", "it is elsewhere")
    assert doctor._check_simulated()
    assert "its kernels run in Python, about 10 us slower each: it is elsewhere" in capsys.readouterr().out


@needs_native_code
def test_without_native_code_python_counts_the_same_memory(run_python):
    source = (
        "import json, os, torch\n"
        "{}"
        "from pytest_gpusync.simulated import switch_on\n"
        "from pytest_gpusync.simulated.native_path import dispatch\n"
        "switch_on()\n"
        "layers = [torch.nn.Linear(64, 64) for _ in range(4)]\n"
        "model = torch.nn.Sequential(*layers).cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for step in range(5):\n"
        "    x = torch.ones(100 + step, 64, device='cuda')\n"
        "    model(x).square().mean().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "    x.untyped_storage().resize_(0)\n"
        "print(json.dumps([dispatch.unavailable, dispatch.calls() > 0, torch.cuda.memory_stats()]))\n"
    )
    natively, in_python = (
        json.loads(run_python(source.format(line)).stdout) for line in ("", "os.environ['GPUSYNC_NATIVE'] = '0'\n")
    )
    assert natively[:2] == [None, True]
    assert in_python[:2] == ["native code is switched off by GPUSYNC_NATIVE=0; unset GPUSYNC_NATIVE", False]
    assert natively[2] == in_python[2]


def test_a_kernel_of_the_users_own_is_called(run_python):
    done = run_python(
        "import torch\n"
        "from pytest_gpusync.simulated import switch_on\n"
        "switch_on()\n"
        "x = torch.ones(4, device='cuda')\n"
        "assert x.sinh()[0] > 1\n"
        "library = torch.library.Library('aten', 'IMPL')\n"
        "library.impl('sinh', lambda x: x - 1, 'CUDA', allow_override=True)\n"
        "assert x.sinh().tolist() == [0] * 4\n"
    )
    assert done.returncode == 0, done.stderr
