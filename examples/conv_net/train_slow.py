"""Train the convolutional net as a first version is often written: the host waits for the GPU nine times per step.

Run ``python examples/conv_net/train_slow.py --epochs 2``; ``train_fast.py`` is the same training without the waits.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from net import ConvNet
from stripes import CLASSES, MEAN, STD, images, loader


class Trainer:
    """A model, its optimizer, and the counts of the current epoch."""

    def __init__(self, device: str | torch.device, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.device = torch.device(device)
        self.model = ConvNet(CLASSES).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.start_epoch()

    def start_epoch(self) -> None:
        self.loss_sum = 0.0
        self.correct = 0
        self.confusion = np.zeros((CLASSES, CLASSES), dtype=np.int64)

    def step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Run one training step on (pixels, labels) in host memory."""
        pixels, labels = batch
        pixels = pixels.to(self.device)
        labels = labels.to(self.device)
        mean = torch.tensor(MEAN, device=self.device)
        std = torch.tensor(STD, device=self.device)
        logits = self.model((pixels - mean) / std)
        loss = F.cross_entropy(logits, labels)
        if torch.isnan(loss):
            raise FloatingPointError("the loss is not a number")
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

        guesses = logits.argmax(1)
        self.loss_sum += loss.item() * len(labels)
        self.correct += (guesses == labels).sum().item()
        truth = labels.cpu().numpy()
        np.add.at(self.confusion, (truth, guesses.cpu().numpy()), 1)

    def finish_epoch(self) -> dict[str, float | list[list[int]]]:
        """Return mean loss, accuracy and the confusion matrix (rows: true class) since `start_epoch`."""
        seen = int(self.confusion.sum())
        return {
            "loss": self.loss_sum / seen,
            "accuracy": self.correct / seen,
            "confusion": self.confusion.tolist(),
        }


def train(
    epochs: int, device: str | torch.device, count: int = 512, batch_size: int = 64, seed: int = 0
) -> list[dict[str, float | list[list[int]]]]:
    """Train on `count` images; return the results of each epoch."""
    trainer = Trainer(device, seed)
    data = loader(images(count, seed), batch_size, seed)
    results = []
    for epoch in range(epochs):
        trainer.start_epoch()
        for batch in data:
            trainer.step(batch)
        results.append(trainer.finish_epoch())
        print(f"epoch {epoch}: loss {results[-1]['loss']:.4f}, accuracy {results[-1]['accuracy']:.1%}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    train(options.epochs, options.device, options.images, options.batch_size, options.seed)


if __name__ == "__main__":
    main()
