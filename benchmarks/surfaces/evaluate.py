"""An evaluation as people write it: what the source tells of it, and what only a run does."""

import torch


class Meter:
    """Adds up what it is given."""

    def __init__(self, read="item"):
        self.read = read
        self.total = 0.0

    def take(self, add, *arguments):
        self.total += getattr(add(*arguments), self.read)()


def batches(count, device):
    for _ in range(count):
        yield {"x": torch.randn(32, 16, device=device), "y": torch.randint(0, 4, (32,), device=device)}


def evaluate(model, loader, device, keep=False):
    meter, kept = Meter(), []
    for batch in loader:
        x, y = (torch.as_tensor(batch[name]).to(device) for name in ("x", "y"))
        guesses = model(x).argmax(-1)
        meter.take(torch.sum, guesses == y)
        if keep:
            kept.append(guesses.cpu())
    return meter.total, kept


net = torch.nn.Linear(16, 4).to("cuda")
right, _ = evaluate(net, batches(20, "cuda"), torch.device("cuda"))
print(f"{right:.0f} right")
