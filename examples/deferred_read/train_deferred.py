"""Log the loss of every step without waiting for the GPU: each is read one step later, when it has arrived.

Run ``python examples/deferred_read/train_deferred.py --steps 50``.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from pytest_gpusync import deferred


def train(steps: int, device: str | torch.device, seed: int = 0) -> list[float]:
    """Train for `steps` steps and return the loss of each."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses: list[float] = []
    pending = None
    for step in range(steps):
        x = torch.randn(256, 32, device=device)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # `losses.append(loss.item())` would wait for this step. The loss of the step before has arrived by now.
        if pending is not None:
            losses.append(pending.item())
            print(f"step {step - 1}: loss {losses[-1]:.4f}")
        pending = deferred(loss)
    if pending is not None:
        losses.append(pending.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    train(options.steps, options.device)


if __name__ == "__main__":
    main()
