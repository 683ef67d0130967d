"""Images that need no download: noisy stripes at one of four angles; the angle is the class."""

from __future__ import annotations

import math

import torch
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 4
SIZE = 16
MEAN, STD = 0.5, 0.45
"""Mean and standard deviation of the pixels, for normalization."""


def images(count: int, seed: int) -> TensorDataset:
    """Return `count` images as (pixels, class): float32 of shape [count, 1, SIZE, SIZE], about 0 to 1, and int64."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    angle = (labels * (math.pi / CLASSES)).view(-1, 1, 1)
    phase = 2 * math.pi * torch.rand(count, 1, 1, generator=generator)
    pixel = torch.arange(SIZE, dtype=torch.float32)
    along = angle.cos() * pixel + angle.sin() * pixel.view(-1, 1)
    noise = 0.3 * torch.randn(count, SIZE, SIZE, generator=generator)
    pixels = 0.5 + 0.5 * torch.sin(1.2 * along + phase) + noise
    return TensorDataset(pixels.unsqueeze(1), labels)


def loader(data: TensorDataset, batch_size: int, seed: int, pin_memory: bool = False) -> DataLoader:
    """Return shuffled batches; the same seed gives the same order in each epoch."""
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(data, batch_size, shuffle=True, generator=generator, pin_memory=pin_memory)
