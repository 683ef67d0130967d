"""The recorder of torch's dispatcher, held against the driver."""

from __future__ import annotations

import pytest
import torch

from pytest_gpusync import record

pytestmark = pytest.mark.gpu_only

STATEMENTS = [
    "x.sum().item()",
    "x.cpu()",
    "host.to('cuda')",
    "pinned.to('cuda', non_blocking=True)",
    "torch.tensor([1, 2], device='cuda')",
    "x[x > 0]",
    "x[x > 0] = 0.0",
    "x[[0, 1]] = 1.0",
    "x.unique()",
    "str(x)",
    "torch.cuda.synchronize()",
    "torch.cuda.current_stream().synchronize()",
    "indices.bincount()",
    "indices.repeat_interleave(indices)",
    "x.histc(10)",
    "torch.isin(indices, indices.repeat(8))",
    "torch.isin(indices, indices[:1])",
    "torch.normal(x, x)",
    "torch.normal(0.0, x)",
    "x.unique(dim=0)",
    "x.to_sparse_csr()",
    "big = torch.empty(1 << 28, device='cuda'); del big; torch.cuda.empty_cache()",
    "x @ x",
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_dispatcher_shows_what_the_driver_is_asked(statement):
    scope = {
        "torch": torch,
        "x": torch.ones(8, 8, device="cuda"),
        "indices": torch.tensor([1, 2, 3], device="cuda"),
        "host": torch.ones(8, 8),
        "pinned": torch.ones(8, 8, pin_memory=True),
    }
    for _ in range(2):
        exec(statement, scope)
    counts = {}
    for recorder in ("dispatcher", "cupti"):
        with record(recorder=recorder) as seen:
            exec(statement, scope)
        counts[recorder] = [sync.kind for sync in seen.result().all_syncs]
    assert counts["dispatcher"] == counts["cupti"]


def test_a_compiled_model_stays_compiled_while_the_dispatcher_is_recorded():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda()
    compiled = torch.compile(model)
    x = torch.ones(4, 64, device="cuda")
    compiled(x)
    before = dict(torch._dynamo.utils.counters["stats"])
    with record(recorder="dispatcher") as seen:
        compiled(x).sum().item()
    assert (seen.syncs, dict(torch._dynamo.utils.counters["stats"])) == (1, before)
