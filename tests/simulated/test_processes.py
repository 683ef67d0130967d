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
# A process that is started in the background of a shell ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
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


CHILD = "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())"
STARTS = f"""
import os, subprocess, sys
from pytest_gpusync.simulated import simulated_cuda
def ask(*options):
    done = subprocess.run([sys.executable, *options, "-c", {CHILD!r}], capture_output=True, text=True)
    print(done.stdout.strip() + done.stderr)
before = dict(os.environ)
with simulated_cuda(devices=2):
    ask()
    os.environ["LOCAL_WORLD_SIZE"] = "3"
    ask()
    del os.environ["LOCAL_WORLD_SIZE"]
print(dict(os.environ) == before)
"""


def test_a_python_that_is_started_has_the_device_too(run_python):
    done = run_python(STARTS)
    assert done.stdout.splitlines() == ["True 2", "True 3", "True"], done.stderr


def test_a_python_without_torch_is_none_the_wiser(run_python):
    done = run_python("""
import subprocess, sys
from pytest_gpusync.simulated import switch_on
switch_on()
child = "import sys; print(sorted({'torch', 'pytest_gpusync.simulated.device'} & set(sys.modules)), sys.path)"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout)
""")
    assert done.stdout.startswith("[] ["), done.stderr
    assert "startup" not in done.stdout


def test_the_sitecustomize_of_the_environment_still_runs(run_python, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('customized')\n")
    done = run_python(f"""
import os, subprocess, sys
os.environ["PYTHONPATH"] = {str(tmp_path)!r} + os.pathsep + os.environ["PYTHONPATH"]
from pytest_gpusync.simulated import switch_on
switch_on()
child = {CHILD!r} + "; import sitecustomize; print(sitecustomize.__file__)"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout)
""")
    assert done.stdout.split() == ["customized", "True", "1", str(tmp_path / "sitecustomize.py")], done.stderr


LOADS = """
import torch
from torch.utils.data import DataLoader, Dataset
from pytest_gpusync.simulated import switch_on

class Rows(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.full((2,), float(index), device="cuda").sum().cpu()

if __name__ == "__main__":
    switch_on()
    loader = DataLoader(Rows(), 2, num_workers=2, multiprocessing_context={context!r})
    print([batch.cuda().tolist() for batch in loader])
"""


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_loader_workers_that_are_started_afresh_have_the_device(run_python, tmp_path, context):
    program = tmp_path / "loads.py"
    program.write_text(LOADS.format(context=context))
    done = run_python(f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')")
    assert done.stdout == "[[0.0, 2.0], [4.0, 6.0]]\n", done.stderr


RANK = """
import torch, torch.distributed as dist
dist.init_process_group("{backend}")
torch.cuda.set_device(dist.get_rank())
x = torch.full((2,), float(dist.get_rank() + 1), device="cuda")
dist.all_reduce(x)
print(f"{{x.tolist()}} {{x.device}}" + chr(10), end="", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_ranks_that_a_program_has_launched_have_a_device_each(run_python, tmp_path, backend):
    program = tmp_path / "rank.py"
    program.write_text(RANK.format(backend=backend))
    done = run_python(f"""
import subprocess, sys
from pytest_gpusync.simulated import switch_on
switch_on()
launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", {str(program)!r}]
sys.exit(subprocess.run(launch).returncode)
""")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[6.0, 6.0] cuda:{rank}" for rank in range(3)]


ASKS_ITSELF = """
import torch
from pytest_gpusync.simulated import simulated_cuda, switch_on
{before}
with simulated_cuda(memory="1 GiB", values=False):
    print(torch.cuda.mem_get_info()[1] >> 20, torch.ones(2, device="cuda").sum().item())
"""


@pytest.mark.parametrize(
    ("before", "printed"),
    [
        ("", "1024 ?"),
        ("torch.ones(2, device='cuda')", "the simulated device is on with values"),
        ("switch_on()", "the simulated device is on with values"),
    ],
    ids=["unused", "used", "asked for"],
)
def test_a_process_that_asks_for_another_device_than_it_inherited_has_it(run_python, before, printed):
    done = run_python(f"""
import subprocess, sys
from pytest_gpusync.simulated import switch_on
switch_on()
print(subprocess.run([sys.executable, "-c", {ASKS_ITSELF.format(before=before)!r}], capture_output=True, text=True))
""")
    assert printed in done.stdout, done.stderr
