from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed
import torch.profiler

from pytest_gpusync.simulated import SimulationUnavailable, is_on, simulated_cuda
from pytest_gpusync.simulated.base import versions

REPLACED_IN = (
    torch,
    torch._C,
    torch.Tensor,
    torch.UntypedStorage,
    torch.accelerator,
    torch.autograd,
    torch.autograd.Variable,
    torch.backends.cudnn,
    torch.cuda,
    torch.cuda.graphs,
    torch.cuda.memory,
    torch.cuda.nccl,
    torch.cuda.nvtx,
    torch.cuda.streams,
    torch.distributed,
    torch.distributed.distributed_c10d,
    torch.nn.Module,
    torch.profiler,
    torch.version,
)


def _attributes():
    return {(str(owner), name): id(value) for owner in REPLACED_IN for name, value in vars(owner).items()}


def _stock_error():
    with pytest.raises(Exception) as raised:
        torch.cuda.init()
    return type(raised.value), str(raised.value)


def test_every_attribute_is_as_before():
    before = _attributes()
    with simulated_cuda():
        torch.zeros(2, device="cuda")
    after = _attributes()
    assert {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)} == set()


def test_cuda_is_available_only_inside():
    with simulated_cuda():
        assert torch.cuda.is_available()
    assert not torch.cuda.is_available()


def test_asking_for_cuda_afterwards_gives_torchs_own_error():
    kind, message = _stock_error()
    with simulated_cuda():
        torch.zeros(2, device="cuda")
    with pytest.raises(kind) as raised:
        torch.zeros(2, device="cuda")
    assert str(raised.value) == message


def test_a_tensor_left_over_refuses_work():
    kind, _ = _stock_error()
    with simulated_cuda():
        x = torch.zeros(2, device="cuda")
    with pytest.raises(kind):
        x + 1


def test_blocks_nest():
    with simulated_cuda():
        with simulated_cuda():
            x = torch.ones(2, device="cuda")
        assert x.sum().item() == 2
    assert not is_on()


def test_the_device_comes_back_after_it_was_off():
    for _ in range(2):
        with simulated_cuda():
            assert torch.ones(2, device="cuda").sum().item() == 2


def test_an_error_in_the_block_switches_off():
    with pytest.raises(ValueError, match="mine"), simulated_cuda():
        raise ValueError("mine")
    assert not is_on()


def test_the_number_of_devices_is_as_asked():
    with simulated_cuda(devices=3):
        assert torch.cuda.device_count() == 3
        assert torch.zeros(1, device="cuda:2").get_device() == 2


def test_more_devices_in_an_inner_block_are_refused():
    with (
        simulated_cuda(),
        pytest.raises(SimulationUnavailable, match="with 1 devices, not 2"),
        simulated_cuda(devices=2),
    ):
        pass


def test_no_device_is_refused():
    with pytest.raises(SimulationUnavailable, match="at least 1"), simulated_cuda(devices=0):
        pass


def test_a_backward_pass_before_switching_on_does_no_harm():
    (torch.ones(2, requires_grad=True) * 2).sum().backward()
    with simulated_cuda():
        x = torch.ones(2, device="cuda", requires_grad=True)
        (x * 2).sum().backward()
    assert x.grad is not None


def test_backward_passes_of_several_threads(cuda):
    gradients = []

    def work():
        x = torch.ones(2, device="cuda", requires_grad=True)
        (x * 3).sum().backward()
        gradients.append(x.grad.tolist())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gradients == [[3.0, 3.0]] * 4


WHAT_WORKS = "the simulated device works with torch 2.11 to 2.15 on Linux (x86-64, aarch64)"


@pytest.mark.parametrize("version", ["2.10.0", "2.10.1+cu130", "2.16.0a0+git", "3.0", "unknown"])
def test_another_torch_is_refused_in_one_sentence(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(SimulationUnavailable) as raised:
        versions.check_supported()
    elsewhere = "; on a GPU, syncs are counted with earlier releases too" if version.startswith("2.10") else ""
    assert str(raised.value) == f"torch {version} is not supported: {WHAT_WORKS}{elsewhere}"


@pytest.mark.parametrize(
    "version", ["2.11.0a0+5228986c39.nv26.02", "2.13.0b1", "2.15.0rc2", "2.12.0.dev20260301+cu130", "2.14.0dev1"]
)
def test_a_pre_release_of_torch_is_not_taken_for_the_release(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(SimulationUnavailable) as raised:
        versions.check_supported()
    assert str(raised.value) == (
        f"torch {version} is a pre-release, as NVIDIA's containers and the nightly builds have it: "
        "install torch 2.11 to 2.15 from PyPI or pytorch.org"
    )


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0+cu130", "2.13.0+cpu", "2.14.1.post1", "2.15.2+gitabc"])
def test_a_release_of_torch_is_known_whatever_its_build(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    versions.check_supported()


OTHER_PLATFORMS = [
    ("darwin", "Darwin", "arm64"),
    ("darwin", "Darwin", "x86_64"),
    ("linux", "Linux", "ppc64le"),
    ("win32", "Windows", "AMD64"),
]


@pytest.mark.parametrize(("platform", "system", "machine"), OTHER_PLATFORMS)
def test_another_platform_is_refused_in_one_sentence(monkeypatch, platform, system, machine):
    monkeypatch.setattr(versions.sys, "platform", platform)
    monkeypatch.setattr(versions.platform, "system", lambda: system)
    monkeypatch.setattr(versions.platform, "machine", lambda: machine)
    with pytest.raises(SimulationUnavailable) as raised:
        versions.check_supported()
    assert str(raised.value) == (f"this is {system} on {machine}, and {WHAT_WORKS}: run there, in CI or in a container")


def test_on_another_platform_a_command_ends_with_one_line(run_python, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('never')")
    done = run_python(
        "import platform, sys\n"
        "import pytest_gpusync.commands.cli as cli, pytest_gpusync.commands.trace\n"
        "platform.machine, platform.system, sys.platform = lambda: 'arm64', lambda: 'Darwin', 'darwin'\n"
        f"sys.exit(cli.main(['trace', '--device', 'simulated', {str(script)!r}]))\n"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"gpusync trace: this is Darwin on arm64, and {WHAT_WORKS}: run there, in CI or in a container\n"
    )


def test_a_missing_torch_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(versions.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SimulationUnavailable, match="torch is not installed: pip install torch"):
        versions.check_supported()


def test_a_step_that_fails_leaves_everything_as_it_was(monkeypatch):
    from pytest_gpusync.simulated.abi import cuda_hooks

    before = _attributes()
    monkeypatch.setattr(cuda_hooks, "_accelerator_is_cuda", lambda: False)
    with pytest.raises(SimulationUnavailable, match="another accelerator"), simulated_cuda():
        pass
    assert not is_on()
    assert _attributes() == before


COMPILED = """
import torch
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
from pytest_gpusync.simulated import simulated_cuda
with simulated_cuda(devices=2):
    torch.cuda.set_device(1)
    x = torch.ones(2, requires_grad=True).cuda()
    x.sum().backward()
    print(x.device, x.sum().item())
"""


def test_a_program_that_has_compiled_something_can_switch_it_on(run_python):
    done = run_python(COMPILED)
    assert done.stdout == "cuda:1 2.0\n", done.stderr
