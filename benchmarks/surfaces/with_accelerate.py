"""A training with Accelerate that reads the loss of all ranks in each step."""

import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x in loader:
    loss = model(x).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(accelerator.gather(loss.detach()[None]).mean().item())
