"""Two ranks under torchrun: a DistributedDataParallel step whose all-reduce overlaps backward, or follows it.

usage: torchrun --nproc-per-node=2 ddp_overlap.py [ROUNDS]

In each round rank 0 prints the milliseconds of a step whose gradients are reduced during backward, of one whose
gradients are all reduced after it, and of one without a reduction. With PLANT_HAZARDS=1 the first is like the second.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LAYERS, WIDTH, BATCH, STEPS = 16, 4096, 512, 20


def milliseconds(step) -> float:
    """Return the device time of a step: the mean of twenty after warm-up."""
    for _ in range(5):
        step()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.barrier()
    start.record()
    for _ in range(STEPS):
        step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / STEPS


def main() -> None:
    """Time the three kinds of step in each round."""
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]).cuda()
    ddp = DistributedDataParallel(model, device_ids=[rank])
    batch = torch.randn(BATCH, WIDTH, device="cuda")

    def during_backward():
        ddp(batch).square().mean().backward()
        ddp.zero_grad()

    def without():
        with ddp.no_sync():
            ddp(batch).square().mean().backward()
        ddp.zero_grad()

    def after_backward():
        with ddp.no_sync():
            ddp(batch).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        ddp.zero_grad()

    planted = os.environ.get("PLANT_HAZARDS", "0") not in ("", "0")
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
        steps = (after_backward if planted else during_backward, after_backward, without)
        times = [milliseconds(step) for step in steps]
        if rank == 0:
            print("during {:.3f} after {:.3f} without {:.3f}".format(*times))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
