"""DistributedDataParallel reduces gradients while backward computes the next ones, which hides part of the reduction.

`dist.all_reduce(p.grad)` for each parameter after `backward()` hides none of it, and is a call for each parameter
instead of one for each bucket.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

LAYERS = 6


@pytest.fixture
def one_rank(tmp_path, monkeypatch):
    """Open a process group of this process alone: the order of the calls is that of many ranks."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_reduction_begins_before_backward_has_ended(one_rank, planted, report_result):
    from torch.nn.parallel import DistributedDataParallel

    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(LAYERS)]).cuda()
    order: list[str] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: order.append("gradient"))

    # Buckets of 32 KiB: two layers fit into one.
    ddp = DistributedDataParallel(model, bucket_cap_mb=1 / 32)

    def reduce(state, bucket):
        order.append("reduction")
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    ddp.register_comm_hook(None, reduce)

    def during_backward():
        ddp(torch.ones(8, 64, device="cuda")).sum().backward()

    def after_backward():
        with ddp.no_sync():
            ddp(torch.ones(8, 64, device="cuda")).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            order.append("reduction")

    step = after_backward if planted else during_backward
    step()
    order.clear()  # DDP makes its buckets anew after the first step
    step()
    gradients, reductions = order.count("gradient"), order.count("reduction")
    before_the_end = order[: len(order) - order[::-1].index("gradient")].count("reduction")
    report_result(f"{reductions} reductions of {gradients} gradients, {before_the_end} before the last gradient")
    assert gradients == 2 * LAYERS
    assert reductions < gradients
    assert before_the_end >= 1


@pytest.mark.gpu_only
def test_the_reduction_overlaps_backward(two_gpus, report_result):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = Path(__file__).with_name("ddp_overlap.py")
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=300)
    found = re.search(r"during (\S+) after (\S+) without (\S+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    during, after, without = map(float, found.groups())
    report_result(f"{during:.2f} ms during backward, {after:.2f} ms after it, {without:.2f} ms without")
    # At least 20 % of the reduction's cost is hidden.
    assert during < after - 0.2 * (after - without)
