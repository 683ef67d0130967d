"""A DDP step on every rank, over NCCL on GPUs and over gloo on the simulated device."""

import os
import signal

import pytest
import torch
import torch.distributed as dist

from pytest_gpusync.simulated import is_on

RANK = int(os.environ["RANK"])


@pytest.fixture(scope="module", autouse=True)
def group():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("gloo" if is_on() else "nccl")
    yield
    dist.destroy_process_group()


def trains(gpu_train, reads):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64, device="cuda"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        loss = model(torch.ones(8, 64, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for _ in range(reads):
            loss.item()

    # In its first ten steps DDP reads the times of its own events.
    return gpu_train(step, steps=24, warmup=12)


def test_keeps(gpu_train):
    trains(gpu_train, reads=1).assert_syncs(max=1)


def test_breaks(gpu_train):
    trains(gpu_train, reads=3 if RANK == 1 else 1).assert_syncs(max=1)


def test_dies(gpu_sync):
    value = torch.ones(8, device="cuda")
    with gpu_sync.budget(max=100):
        for step in range(100):
            if RANK == 2 and step == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(value)
            value.sum().item()
