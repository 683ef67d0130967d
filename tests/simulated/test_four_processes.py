"""Four processes that a program with the device launches, one device each: they train as one process does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed.run")

ROOT = Path(__file__).parents[2]

_LAUNCHES = """
import subprocess, sys
from pytest_gpusync.simulated import switch_on
switch_on()
launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", *sys.argv[1:]]
sys.exit(subprocess.run(launch).returncode)
"""

_RANK = """
import json, os, sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(1)
data = torch.randn(8, 8)

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))

def train(model, batch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()

alone = net()
train(alone, data)

def is_as_alone(parameters):
    return all(torch.allclose(a, b.cpu(), atol=1e-5) for a, b in zip(alone.parameters(), parameters, strict=True))

mine = data[2 * rank : 2 * rank + 2].cuda()
results = {}
model = nn.parallel.DistributedDataParallel(net().cuda(), device_ids=[rank])
train(model, mine)
results["DDP"] = is_as_alone(model.parameters())
both = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
for name, options in {"FSDP2": {}, "FSDP2, replicated": {"mesh": both}}.items():
    model = net().cuda()
    fully_shard(model, **options)
    train(model, mine)
    results[name] = is_as_alone(parameter.full_tensor() for parameter in model.parameters())
model = FullyShardedDataParallel(net().cuda(), device_id=rank)
train(model, mine)
with FullyShardedDataParallel.summon_full_params(model):
    results["FSDP1"] = is_as_alone(model.parameters())

groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
x = torch.full((2,), float(rank), device="cuda")
dist.all_reduce(x, group=groups[rank % 2])
results["groups"] = x.tolist() == [2.0 + 2 * (rank % 2)] * 2
parts = [torch.empty(1, device="cuda") for _ in range(4)]
dist.all_to_all(parts, [torch.full((1,), float(10 * rank + to), device="cuda") for to in range(4)])
results["all to all"] = [part.item() for part in parts] == [10.0 * sender + rank for sender in range(4)]
rows = distribute_tensor(torch.arange(16.0).view(4, 4).cuda(), init_device_mesh("cuda", (4,)), [Shard(0)])
results["tensor over devices"] = rows.sum().full_tensor().item() == 120.0
with open(os.path.join(sys.argv[1], f"{rank}.json"), "w") as file:
    json.dump(results, file)
dist.destroy_process_group()
"""

_CASES = ("DDP", "FSDP2", "FSDP2, replicated", "FSDP1", "groups", "all to all", "tensor over devices")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the four processes found."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "rank.py").write_text(_RANK)
    path = os.pathsep.join([str(ROOT), str(ROOT / "lint")])
    done = subprocess.run(
        [sys.executable, "-c", _LAUNCHES, str(folder / "rank.py"), str(folder)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]


@pytest.mark.parametrize("case", _CASES)
def test_four_processes_have_what_one_has(results, case):
    assert [rank[case] for rank in results] == [True] * 4
