"""Twenty workloads that keep no memory from step to step, though their memory goes up and down, for gpu_budgets.py.

Each function sets one up and returns its step. They run on a GPU and on the simulated device.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from itertools import cycle

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Step = Callable[[], object]


def mlp(*optimizer: type[torch.optim.Optimizer], width: int = 256) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a small network and its optimizer."""
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).cuda()
    return model, (optimizer[0] if optimizer else torch.optim.AdamW)(model.parameters())


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[torch.Tensor]) -> Step:
    """Return a step that trains on the next batch."""

    def step() -> None:
        optimizer.zero_grad()
        model(next(batches)).square().mean().backward()
        optimizer.step()

    return step


def batch(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def plain() -> Step:
    """One batch, again and again."""
    return trained(*mlp(), cycle([batch(64, 256)]))


def momentum() -> Step:
    """SGD with momentum, whose buffers come with the first step."""
    model, _ = mlp()
    return trained(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), cycle([batch(64, 256)]))


def batch_sizes() -> Step:
    """Batches of random sizes."""
    sizes = random.Random(0)
    return trained(*mlp(), (batch(sizes.randrange(1, 512), 256) for _ in cycle([0])))


def lengths() -> Step:
    """Sequences of random lengths through a GRU."""
    numbers = random.Random(0)
    model = nn.GRU(32, 64, batch_first=True).cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(batch(8, numbers.randrange(4, 64), 32))[0].square().mean().backward()
        optimizer.step()

    return step


def fragments() -> Step:
    """Tensors of very different sizes, kept for a few steps each: the allocator's segments are cut up."""
    numbers = random.Random(0)
    kept: deque[torch.Tensor] = deque(maxlen=12)
    return lambda: kept.append(torch.empty(int(2 ** numbers.uniform(9, 24)), dtype=torch.uint8, device="cuda"))


def late_buffer() -> Step:
    """A large buffer that is made in the fortieth step, and kept."""
    inner, kept, count = plain(), [], iter(range(1 << 30))

    def step() -> None:
        if next(count) == 40:
            kept.append(batch(1 << 20))
        inner()

    return step


def cache_that_fills() -> Step:
    """A table of position encodings by length, which is full after some steps."""
    numbers, table = random.Random(0), {}

    def step() -> torch.Tensor:
        length = numbers.randrange(1, 24)
        if length not in table:
            table[length] = batch(length, 64)
        return table[length] * 2

    return step


def bounded_history() -> Step:
    """The last ten losses are kept."""
    model, optimizer = mlp()
    losses: deque[torch.Tensor] = deque(maxlen=10)
    data = batch(64, 256)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    return step


def accumulation() -> Step:
    """Gradients of four batches before each step of the optimizer."""
    model, optimizer = mlp()
    data = batch(64, 256)

    def step() -> None:
        for _ in range(4):
            model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def evaluation() -> Step:
    """Every twenty-fifth step evaluates a larger batch."""
    model, optimizer = mlp()
    train, count = trained(model, optimizer, cycle([batch(64, 256)])), iter(range(1 << 30))

    def step() -> None:
        train()
        if next(count) % 25 == 0:
            with torch.no_grad():
                model(batch(4096, 256)).argmax(-1)

    return step


def mixed_precision() -> Step:
    """Autocast to bfloat16, with its cache of weights."""
    model, optimizer = mlp()
    data = batch(64, 256)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(data).square().mean()
        loss.backward()
        optimizer.step()

    return step


def checkpointed() -> Step:
    """Activations are computed again in backward."""
    model, optimizer = mlp()
    data = batch(64, 256).requires_grad_()

    def step() -> None:
        optimizer.zero_grad()
        checkpoint(model, data, use_reentrant=False).square().mean().backward()
        optimizer.step()

    return step


def adversarial() -> Step:
    """Two networks with an optimizer each."""
    (generator, g_steps), (critic, c_steps) = mlp(), mlp()

    def step() -> None:
        c_steps.zero_grad()
        critic(generator(batch(64, 256)).detach()).square().mean().backward()
        c_steps.step()
        g_steps.zero_grad()
        critic(generator(batch(64, 256))).square().mean().backward()
        g_steps.step()

    return step


def moving_average() -> Step:
    """An exponential moving average of the weights."""
    model, optimizer = mlp()
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    train = trained(model, optimizer, cycle([batch(64, 256)]))

    def step() -> None:
        train()
        averaged.update_parameters(model)

    return step


def convolutions() -> Step:
    """A convolutional net with batch norm, images of three sizes."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3)).cuda()
    sizes = cycle([24, 32, 28])
    return trained(model, torch.optim.AdamW(model.parameters()), (batch(8, 3, size, size) for size in sizes))


def attention() -> Step:
    """A transformer layer over sequences of random lengths."""
    numbers = random.Random(0)
    model = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda()
    data = (batch(8, numbers.randrange(8, 96), 64) for _ in cycle([0]))
    return trained(model, torch.optim.AdamW(model.parameters()), data)


def second_derivatives() -> Step:
    """A gradient penalty: backward through backward."""
    model, optimizer = mlp()

    def step() -> None:
        optimizer.zero_grad()
        data = batch(64, 256).requires_grad_()
        [gradient] = torch.autograd.grad(model(data).square().sum(), data, create_graph=True)
        gradient.square().mean().backward()
        optimizer.step()

    return step


def loader() -> Step:
    """Batches of a DataLoader, copied from pinned memory."""
    data = torch.utils.data.TensorDataset(torch.randn(512, 256))
    batches = torch.utils.data.DataLoader(data, batch_size=48, shuffle=True)
    endless = (part[0].cuda(non_blocking=True) for _ in cycle([0]) for part in batches)
    return trained(*mlp(), endless)


def embeddings() -> Step:
    """An embedding with sparse gradients, of ever other rows."""
    model = nn.Embedding(4096, 64, sparse=True).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randint(0, 4096, (64, 16), device="cuda")).square().mean().backward()
        optimizer.step()

    return step


def decoding() -> Step:
    """A cache of keys that grows for sixteen tokens and is then dropped."""
    weight, cache = batch(64, 64), []

    def step() -> torch.Tensor:
        if len(cache) == 16:
            cache.clear()
        cache.append(batch(4, 64) @ weight)
        keys = torch.stack(cache, 1)
        return functional.softmax(keys @ keys.transpose(1, 2), -1)

    return step


WORKLOADS: tuple[Callable[[], Step], ...] = (
    plain,
    momentum,
    batch_sizes,
    lengths,
    fragments,
    late_buffer,
    cache_that_fills,
    bounded_history,
    accumulation,
    evaluation,
    mixed_precision,
    checkpointed,
    adversarial,
    moving_average,
    convolutions,
    attention,
    second_derivatives,
    loader,
    embeddings,
    decoding,
)
