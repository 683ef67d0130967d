"""Every loss is logged, no step waits, and nothing is read before it has arrived."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.gpu_sync_budget(max=0)
def test_a_step_waits_for_nothing():
    from train_deferred import train

    losses = train(20, "cuda")
    assert len(losses) == 20
    assert losses[-1] < losses[0]


@pytest.mark.gpu_sync_budget(max=0)
@pytest.mark.xfail(strict=True, reason="the same by hand, without the wait: a data race, although no step waits")
def test_a_copy_that_nothing_waits_for_is_a_race():
    weight = torch.ones(64, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    losses = []
    for _ in range(5):
        loss = weight.square().mean()
        loss.backward()
        optimizer.step()
        copy = loss.detach().to("cpu", non_blocking=True)
        losses.append(float(copy))
