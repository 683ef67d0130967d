"""A training loop that fixes, formats and hostile files are tried on; further lines go into the loop."""

from __future__ import annotations

HOT_LOOP = """import torch

model = torch.nn.Linear(3, 3).cuda()
opt = torch.optim.SGD(model.parameters(), 0.1)
for x in loader:
    loss = model(x.cuda()).sum()
    loss.backward()
    opt.step()
"""
