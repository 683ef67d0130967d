"""Two GPUs of one host, in one process and with a rank for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from importlib.metadata import entry_points
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from pytest_gpusync import record  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from two_devices import STATEMENTS, count, namespace  # noqa: E402

pytestmark = pytest.mark.skipif("torch.cuda.device_count() < 2", reason="takes two GPUs")

ROOT = Path(__file__).parents[2]
IS_INSTALLED = any(point.value == "pytest_gpusync.plugin" for point in entry_points(group="pytest11"))
PLUGIN = [] if IS_INSTALLED else ["-p", "pytest_gpusync.plugin"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
PYTEST = ["-m", "pytest", "-p", "no:cacheprovider", *PLUGIN]


@pytest.fixture
def torchrun(tmp_path):
    """Return a function that runs a test file with a pytest per GPU."""

    def run(source, *options, ranks=2):
        (tmp_path / "test_ranks.py").write_text(textwrap.dedent(source))
        paths = [str(ROOT), str(ROOT / "lint"), os.environ.get("PYTHONPATH", "")]
        return subprocess.run(
            [*TORCHRUN, f"--nproc-per-node={ranks}", *PYTEST, *options, "test_ranks.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=180,
            check=False,
        )

    return run


def products(other):
    """Run 1000 matrix products on the first GPU, waiting for one of the two after each."""
    a = torch.randn(256, 256, device="cuda:0")
    b = torch.randn(256, 256, device="cuda:0")
    torch.cuda.synchronize(0)
    with record(recorder="cupti") as region:
        for _ in range(1000):
            a @ b
            torch.cuda.synchronize(other)
    return region.result().all_syncs


def test_waiting_for_the_idle_gpu_is_counted_and_waits_for_nothing():
    torch.ones(1, device="cuda:1")
    torch.cuda.synchronize(1)
    own, other = products(0), products(1)
    assert (len(own), len(other)) == (1000, 1000)
    assert {sync.device for sync in own} == {0}
    assert {sync.device for sync in other} == {1}
    assert sum(sync.blocked_ns for sync in other) < 0.7 * sum(sync.blocked_ns for sync in own)


def test_a_busy_gpu_is_told_from_an_idle_one():
    torch.ones(1, device="cuda:1")
    with record(recorder="cupti") as region:
        torch.cuda._sleep(20_000_000)
        torch.cuda.synchronize(1)
        torch.cuda.synchronize(0)
    idle, busy = region.result().all_syncs
    assert (idle.device, busy.device) == (1, 0)
    assert idle.blocked_ns < 1_000_000 < busy.blocked_ns


def test_a_copy_between_gpus_does_not_wait():
    x = torch.ones(1 << 20, device="cuda:0")
    x.to("cuda:1")
    with record(recorder="cupti") as region:
        x.to("cuda:1")
        x.to("cuda:1", non_blocking=True)
    assert region.syncs == 0


@pytest.fixture(scope="module")
def names():
    return namespace()


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_sync_is_of_the_device_that_is_waited_for(names, statement):
    assert count(statement, names) == STATEMENTS[statement]


PREAMBLE = """
    import os, pytest, torch, torch.distributed as dist
    rank = int(os.environ["LOCAL_RANK"])

    @pytest.fixture(scope="module", autouse=True)
    def group():
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        yield
        dist.destroy_process_group()
"""


def test_a_ddp_step_keeps_a_budget_of_none(torchrun):
    done = torchrun(
        PREAMBLE
        + """
    def test_ddp(gpu_train):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda(), device_ids=[rank])
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        def step():
            model(torch.ones(8, 64, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        # In its first ten steps, and every hundredth, DDP reads the times of its own events.
        gpu_train(step, steps=20, warmup=12).assert_syncs(max=0)
    """,
        "--gpu-require",
    )
    assert done.returncode == 0, done.stdout


def test_an_fsdp_step_keeps_a_budget_of_one(torchrun):
    done = torchrun(
        PREAMBLE
        + """
    def test_fsdp(gpu_train):
        from torch.distributed.fsdp import fully_shard
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).cuda()
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
        def step():
            loss = model(torch.ones(8, 64, device="cuda")).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
        run = gpu_train(step, steps=10)
        run.assert_syncs(exact=1)
    """,
        "--gpu-require",
    )
    assert done.returncode == 0, done.stdout


def test_one_rank_over_its_budget_fails_the_run_and_hangs_none(torchrun):
    done = torchrun(
        PREAMBLE
        + """
    @pytest.mark.gpu_sync_budget(max=1)
    def test_step():
        value = torch.ones(8, device="cuda")
        for _ in range(3 if rank == 1 else 1):
            value.sum().item()
        dist.all_reduce(value)

    def test_after():
        dist.all_reduce(torch.ones(1, device="cuda"))
    """,
        "--gpu-require",
    )
    assert done.returncode != 0, done.stdout
    assert "made 3 syncs, budget 1" in done.stdout
    assert "rank 1 failed" in done.stdout


@pytest.mark.skipif("torch.cuda.device_count() < 4", reason="takes four GPUs")
def test_of_four_ranks_the_one_over_its_budget_fails_the_run_and_hangs_none(torchrun, tmp_path):
    began = time.monotonic()
    done = torchrun(
        PREAMBLE
        + """
    @pytest.mark.gpu_sync_budget(max=1)
    def test_step():
        value = torch.ones(8, device="cuda")
        for _ in range(4 if rank == 2 else 1):
            value.sum().item()
        dist.all_reduce(value)

    def test_after():
        dist.all_reduce(torch.ones(1, device="cuda"))
    """,
        "--gpu-require",
        "--gpu-sync-report=run.json",
        ranks=4,
    )
    assert done.returncode != 0, done.stdout
    assert "made 4 syncs, budget 1" in done.stdout
    assert "rank 2 failed" in done.stdout
    assert not any(f"rank {rank} failed" in done.stdout for rank in (0, 1, 3))
    regions = json.loads((tmp_path / "run.json").read_text())["regions"]
    worst = sorted(region["syncs_per_step"]["max"] for region in regions if "test_step" in region["name"])
    assert worst == [1, 1, 1, 4]
    assert time.monotonic() - began < 120
