"""Tests of every kind, one copy to each worker."""

import pytest
import torch


@pytest.mark.parametrize("reads", [1, 2, 3])
def test_reads(reads):
    value = torch.ones(3, device="cuda")
    for _ in range(reads):
        value.sum().item()


def test_trains(gpu_train):
    model = torch.nn.Linear(8, 8, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        loss = model(torch.ones(4, 8, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    gpu_train(step, steps=10, warmup=3).assert_syncs(exact=1)


def test_allows(gpu_sync):
    value = torch.ones(3, device="cuda")
    with gpu_sync.budget(max=0), gpu_sync.allow("the test of the report"):
        value.sum().item()
