from __future__ import annotations

import os

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset


def _status_of_fork(work) -> int:
    child = os.fork()
    if child == 0:
        try:
            os._exit(work())
        except BaseException:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _use_cuda() -> int:
    try:
        torch.zeros(2, device="cuda")
    except RuntimeError as error:
        return 7 if "Cannot re-initialize CUDA in forked subprocess" in str(error) else 8
    return 0


def test_a_child_forked_after_use_refuses(cuda):
    torch.zeros(2, device=cuda)
    assert _status_of_fork(_use_cuda) == 7


def test_a_child_forked_before_use_works(cuda):
    assert _status_of_fork(_use_cuda) == 0


def test_a_child_forked_after_use_still_trains_on_the_cpu(cuda):
    torch.zeros(2, device=cuda)

    def backward() -> int:
        x = torch.ones(2, requires_grad=True)
        x.sum().backward()
        return 0 if x.grad.tolist() == [1, 1] else 1

    assert _status_of_fork(backward) == 0


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pin", [False, True])
def test_a_loader_pins_what_it_is_asked_to(cuda, workers, pin):
    torch.zeros(2, device=cuda)
    loader = DataLoader(TensorDataset(torch.arange(8.0)), 4, num_workers=workers, pin_memory=pin)
    assert [batch.is_pinned() for (batch,) in loader] == [pin, pin]


def test_importing_the_package_imports_no_torch(run_python):
    done = run_python(
        "import sys, pytest_gpusync.simulated, pytest_gpusync.recorders.simulated; sys.exit('torch' in sys.modules)"
    )
    assert done.returncode == 0, done.stderr


TRAINS = """
import torch
from pytest_gpusync.simulated import switch_on
switch_on()
switch_on()
x = torch.ones(4, device="cuda", requires_grad=True)
(x * 2).sum().backward()
{ending}
"""


@pytest.mark.parametrize(("ending", "status"), [("raise SystemExit(3)", 3), ("raise ValueError('mine')", 1)])
def test_a_program_ends_with_its_own_status(run_python, ending, status):
    done = run_python(TRAINS.format(ending=ending))
    assert done.returncode == status, done.stderr


def test_no_autograd_thread_is_left_to_disturb_the_exit(run_python):
    ending = """
import pathlib
print([path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm")])
"""
    done = run_python(TRAINS.format(ending=ending))
    assert done.returncode == 0, done.stderr
    assert "autograd" not in done.stdout


LEFTOVER = """
import torch
from pytest_gpusync.simulated import simulated_cuda
with simulated_cuda():
    x = torch.ones(2, device="cuda", requires_grad=True)
    loss = (x * 2).sum()
refused = []
for use in (lambda: x * 2, lambda: loss.backward(), lambda: print(x), lambda: x.detach().cpu()):
    try:
        use()
    except (AssertionError, RuntimeError):
        refused.append(use)
raise SystemExit(len(refused))
"""


def test_tensors_left_over_raise_and_do_not_abort(run_python):
    done = run_python(LEFTOVER)
    assert done.returncode == 4, done.stderr


SPAWNS = """
import multiprocessing, torch
from pytest_gpusync.simulated import switch_on
switch_on(devices=2)
with multiprocessing.get_context("spawn").Pool(1) as pool:
    print(pool.apply(torch.accelerator.device_count))
"""


def test_a_spawned_process_has_the_device_too(run_python):
    done = run_python(SPAWNS)
    assert done.stdout.split() == ["2"], done.stderr


INTERRUPTED = """
import os, signal, threading, torch
from pytest_gpusync.simulated import switch_on
switch_on()
model = torch.nn.Linear(4, 1).cuda()
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    while True:
        model(torch.ones(8, 4).cuda()).sum().backward()
except KeyboardInterrupt:
    raise SystemExit(130)
"""


def test_an_interrupt_during_a_step_ends_the_program_in_order(run_python):
    done = run_python(INTERRUPTED)
    assert (done.returncode, done.stderr) == (130, "")


def test_tensors_may_outlive_every_module(run_python):
    done = run_python(
        "import sys, torch\n"
        "from pytest_gpusync.simulated import switch_on\n"
        "switch_on()\n"
        "kept = [torch.ones(3, device='cuda') for _ in range(100)]\n"
        "kept.append(kept)\n"
        "sys.kept = torch.kept = kept\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
