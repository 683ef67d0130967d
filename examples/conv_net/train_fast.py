"""Train the convolutional net without waiting for the GPU inside a step: the counts are read once per epoch.

The data and the mathematics are those of ``train_slow.py``; both reach the same results. Run ``python
examples/conv_net/train_fast.py --epochs 2``.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from net import ConvNet
from stripes import CLASSES, MEAN, STD, images, loader


class Trainer:
    """A model, its optimizer, and the counts of the current epoch, kept on the device."""

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
        """Run one training step on (pixels, labels) in pinned host memory."""
        pixels, labels = batch
        # Only a copy from pinned memory is asynchronous: see pin_memory in `train`.
        pixels = pixels.to(self.device, non_blocking=True)
        labels = labels.to(self.device, non_blocking=True)
        # Python numbers are passed with the kernel launch; tensors made of them would need copies.
        logits = self.model((pixels - MEAN) / STD)
        loss = F.cross_entropy(logits, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

        guesses = logits.argmax(1)
        self.loss_sum += loss.detach() * len(labels)
        # bincount waits, to know its length; adding at known indices does not.
        cells = labels * CLASSES + guesses
        self.confusion.scatter_add_(0, cells, torch.ones_like(cells))

    def finish_epoch(self) -> dict[str, float | list[list[int]]]:
        """Return mean loss, accuracy and the confusion matrix (rows: true class) since `start_epoch`.

        One read copies all of it to the host: float64 holds the counts exactly. A NaN loss in any step makes the sum
        NaN, so it is detected here.
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
    """Train on `count` images; return the results of each epoch."""
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
