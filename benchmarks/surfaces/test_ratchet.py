import pytest
import torch


@pytest.mark.gpu_sync_budget(max=9)
def test_step():
    model = torch.nn.Linear(4, 2, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms, logged = [], 0.0
    for _ in range(5):
        total = model(torch.ones(3, 4, device="cuda")).sum()
        total.backward()
        # grows here
        norms.append(torch.linalg.vector_norm(total.detach()).item())
        for value in (total, total):
            logged += value.item()
        optimizer.step()
        optimizer.zero_grad()
