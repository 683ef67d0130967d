"""Train the convolutional net without waiting for the GPU inside a step: one read of the counts per epoch.

The same data and the same mathematics as ``train_slow.py``; both reach the same results. Run
``python examples/conv_net/train_fast.py --epochs 2``.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from net import ConvNet
from stripes import CLASSES, MEAN, STD, images, loader


class Trainer:
    """A model, its optimizer, and the counts of the running epoch, kept on the device."""

    def __init__(self, device: str | torch.device, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.device = torch.device(device)
        self.model = ConvNet(CLASSES).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.start_epoch()

    def start_epoch(self) -> None:
        self.loss_sum = torch.zeros((), device=self.device)
        self.confusion = torch.zeros(CLASSES * CLASSES, dtype=torch.int64, device=self.device)

    def step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        """One training step on (pixels, labels) in pinned host memory."""
        pixels, labels = batch
        # Only a copy from pinned memory returns before it is done: see pin_memory in `train`.
        pixels = pixels.to(self.device, non_blocking=True)
        labels = labels.to(self.device, non_blocking=True)
        # Python numbers travel with the kernel launch; tensors made of them would be copies.
        logits = self.model((pixels - MEAN) / STD)
        loss = F.cross_entropy(logits, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

        guesses = logits.argmax(1)
        self.loss_sum += loss.detach() * len(labels)
        # bincount would wait for its own length; adding at known places does not.
        cells = labels * CLASSES + guesses
        self.confusion.scatter_add_(0, cells, torch.ones_like(cells))

    def finish_epoch(self) -> dict[str, float | list[list[int]]]:
        """Mean loss, accuracy, and the confusion matrix (rows: true class) since `start_epoch`.

        One read brings all of it to the host: float64 holds the counts exactly. A loss that was not a number
        in any step makes the sum one too, so this is also where that is seen.
        """
        loss_sum, *cells = torch.cat((self.loss_sum.double().view(1), self.confusion.double())).tolist()
        if loss_sum != loss_sum:
            raise FloatingPointError("the loss is not a number")
        confusion = [[int(n) for n in cells[i : i + CLASSES]] for i in range(0, len(cells), CLASSES)]
        correct = sum(confusion[k][k] for k in range(CLASSES))
        return {"loss": loss_sum / sum(cells), "accuracy": correct / sum(cells), "confusion": confusion}


def train(
    epochs: int, device: str | torch.device, count: int = 512, batch_size: int = 64, seed: int = 0
) -> list[dict[str, float | list[list[int]]]]:
    """Train on `count` images; the results of every epoch."""
    trainer = Trainer(device, seed)
    data = loader(images(count, seed), batch_size, seed, pin_memory=trainer.device.type == "cuda")
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
