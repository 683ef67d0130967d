"""Two processes, each with two simulated devices, as torchrun starts them. Counts are those two H200s had with NCCL."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_PROGRAM = """
import json, os, sys
from pytest_gpusync.simulated import switch_on
from pytest_gpusync.simulated.base import sync_events
switch_on()
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
seen, results = [], {}
sync_events.subscribe(seen.append)

def case(name, run):
    seen.clear()
    value = run()
    results[name] = [len(seen), value.tolist() if isinstance(value, torch.Tensor) else value]

x = torch.full((4,), float(rank + 1), device="cuda")

def reduced(**options):
    y = x.clone()
    dist.all_reduce(y, **options)
    return y

def gathered():
    out = torch.empty(8, device="cuda")
    dist.all_gather_into_tensor(out, x)
    return out

def scattered():
    out = torch.empty(2, device="cuda")
    dist.reduce_scatter_tensor(out, x)
    return out

def exchanged():
    out = torch.empty(4, device="cuda")
    work = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, out, 1 - rank)]
    for each in dist.batch_isend_irecv(work):
        each.wait()
    return out

def objects():
    out = [None, None]
    dist.all_gather_object(out, rank)
    return out

for name, run in [("reduced", reduced), ("average", lambda: reduced(op=dist.ReduceOp.AVG)), ("gathered", gathered),
                  ("scattered", scattered), ("exchanged", exchanged), ("objects", objects)]:
    value = run()
    case(name, run)
case("barrier", dist.barrier)

def train(model, optimizer):
    model(torch.full((2, 4), float(rank + 1), device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).cuda()

model = nn.parallel.DistributedDataParallel(net(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    train(model, optimizer)
case("ddp", lambda: train(model, optimizer))
case("ddp weights", lambda: next(model.parameters()).detach())

from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
sharded = net()
fully_shard(sharded)
optimizer2 = torch.optim.SGD(sharded.parameters(), lr=0.1)
train(sharded, optimizer2)
case("fsdp2", lambda: train(sharded, optimizer2))
sharded(torch.full((2, 4), float(rank + 1), device="cuda")).sum().backward()
case("fsdp2 norm", lambda: nn.utils.clip_grad_norm_(sharded.parameters(), 1.0).full_tensor())
flat = FullyShardedDataParallel(net(), device_id=rank)
optimizer1 = torch.optim.SGD(flat.parameters(), lr=0.1)
train(flat, optimizer1)
case("fsdp1", lambda: train(flat, optimizer1))

torch.manual_seed(0)
data = torch.randn(6, 4)
norm = nn.SyncBatchNorm(4).cuda()
mine = data[3 * rank : 3 * rank + 3].cuda().requires_grad_()
case("batch norm", lambda: norm(mine).detach())
(norm(mine) ** 3).sum().backward()
results["batch norm grad"] = mine.grad.tolist()
results["device"] = str(next(model.parameters()).device)
with open(os.path.join(sys.argv[1], f"{rank}.json"), "w") as file:
    json.dump(results, file)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What both processes found, by rank."""
    folder = tmp_path_factory.mktemp("ranks")
    program = folder / "program.py"
    program.write_text(_PROGRAM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), str(folder)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "lint")]),
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        output = [process.communicate(timeout=300)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(output)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(
    ("case", "first", "second"),
    [
        ("reduced", [3.0] * 4, [3.0] * 4),
        ("average", [1.5] * 4, [1.5] * 4),
        ("gathered", [1.0] * 4 + [2.0] * 4, [1.0] * 4 + [2.0] * 4),
        ("scattered", [3.0] * 2, [3.0] * 2),
        ("exchanged", [2.0] * 4, [1.0] * 4),
        ("objects", [0, 1], [0, 1]),
    ],
)
def test_collectives_give_what_they_should(results, case, first, second):
    assert [rank[case][1] for rank in results] == [first, second]


@pytest.mark.parametrize(
    ("case", "syncs"),
    [
        ("reduced", 0),
        ("average", 0),
        ("gathered", 0),
        ("scattered", 0),
        ("exchanged", 0),
        ("barrier", 1),
        ("ddp", 0),
        ("fsdp2", 0),
        ("fsdp1", 0),
        ("batch norm", 3),
    ],
)
def test_collectives_wait_as_with_nccl(results, case, syncs):
    assert [rank[case][0] for rank in results] == [syncs, syncs]


def test_each_process_uses_its_device(results):
    assert [rank["device"] for rank in results] == ["cuda:0", "cuda:1"]


def test_replicas_stay_equal(results):
    assert results[0]["ddp weights"] == results[1]["ddp weights"]


def test_the_norm_of_sharded_gradients_is_that_of_the_whole(results):
    assert results[0]["fsdp2 norm"][1] == results[1]["fsdp2 norm"][1]


def test_batch_norm_over_processes_is_that_of_the_whole_batch(results):
    import torch

    torch.manual_seed(0)
    whole = torch.randn(6, 4).requires_grad_()
    expected = torch.nn.BatchNorm1d(4)(whole)
    (expected**3).sum().backward()
    torch.testing.assert_close(torch.tensor([row for rank in results for row in rank["batch norm"][1]]), expected)
    torch.testing.assert_close(
        torch.tensor([row for rank in results for row in rank["batch norm grad"]]), whole.grad, rtol=1e-4, atol=1e-4
    )
