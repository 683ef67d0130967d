"""Train the character GPT as a first version is often written: the host waits for the GPU ten times per step.

Run ``python examples/char_gpt/train_slow.py --steps 50``; ``train_fast.py`` is the same training without the waits.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from gpt import CharGPT, GPTConfig, z_weight
from sums import ALPHABET, CONTEXT, IGNORE, batches
from torch import nn


def train(steps: int, device: str | torch.device, batch_size: int = 64, seed: int = 0) -> dict[str, list[float]]:
    """Train for `steps` steps; return loss, gradient norm and accuracy of each step, and the best loss so far."""
    device = torch.device(device)
    torch.manual_seed(seed)
    model = CharGPT(GPTConfig(vocabulary=len(ALPHABET), context=CONTEXT)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, norms, accuracies, bests = [], [], [], []
    best = float("inf")

    for step, (x, y) in enumerate(batches(steps, batch_size, seed)):
        x = x.to(device)
        y = y.to(device)
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=IGNORE)
        weight = torch.tensor(z_weight(step), device=device)
        loss = loss + weight * logits.logsumexp(-1).square().mean()

        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norms.append(norm.item())
        optimizer.step()

        graded = y != IGNORE
        guesses = logits.argmax(-1)[graded]
        accuracy = (guesses == y[graded]).float().mean()
        accuracies.append(accuracy.item())
        losses.append(loss.item())
        if loss < best:
            best = losses[-1]
        bests.append(best)
        print(f"step {step}: loss {loss:.4f}, best {best:.4f}")

    return {"loss": losses, "norm": norms, "accuracy": accuracies, "best": bests}


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
