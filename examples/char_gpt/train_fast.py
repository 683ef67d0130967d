"""Train the character GPT without waiting for the GPU inside a step: results are read once every few steps.

The data and the mathematics are those of ``train_slow.py``; both learn the same losses. Run ``python
examples/char_gpt/train_fast.py --steps 50``.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from gpt import CharGPT, GPTConfig, z_weight
from sums import ALPHABET, CONTEXT, IGNORE, batches
from torch import nn


def train(
    steps: int, device: str | torch.device, batch_size: int = 64, seed: int = 0, read_every: int = 10
) -> dict[str, list[float]]:
    """Train for `steps` steps; return loss, gradient norm and accuracy of each step, and the best loss so far."""
    device = torch.device(device)
    torch.manual_seed(seed)
    model = CharGPT(GPTConfig(vocabulary=len(ALPHABET), context=CONTEXT)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    # Built on the device: no copy from the host.
    best = torch.full((), float("inf"), device=device)
    pending: list[torch.Tensor] = []
    history: list[list[float]] = []

    # Only a copy from pinned memory is asynchronous.
    for step, (x, y) in enumerate(batches(steps, batch_size, seed, pin_memory=device.type == "cuda")):
        x = x.to(device, non_blocking=True)
        y = y.to(device, non_blocking=True)
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=IGNORE)
        # A Python number is passed with the kernel launch; a tensor made of it would need a copy.
        loss = loss + z_weight(step) * logits.logsumexp(-1).square().mean()

        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

        graded = y != IGNORE
        # The length of a selection by mask is known only on the GPU; torch.where keeps the shape.
        correct = torch.where(graded, logits.argmax(-1) == y, False)
        accuracy = correct.sum() / graded.sum()
        best = torch.minimum(best, loss.detach())
        pending.append(torch.stack((loss.detach(), norm, accuracy, best)))

        # One read for the values of all pending steps. It also limits how far the host runs ahead.
        if (step + 1) % read_every == 0:
            history += torch.stack(pending).tolist()
            pending.clear()
            print(f"step {step}: loss {history[-1][0]:.4f}, best {history[-1][3]:.4f}")

    if pending:
        history += torch.stack(pending).tolist()
    names = ("loss", "norm", "accuracy", "best")
    return {name: [row[column] for row in history] for column, name in enumerate(names)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    train(options.steps, options.device, options.batch_size, options.seed)


if __name__ == "__main__":
    main()
