"""A data set that needs no download: all sums of two numbers below 100, one per line, such as ``07+58=065``."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

ALPHABET = "0123456789+=\n"
QUESTION = len("07+58=")
"""Length of the prompt; the model is graded on the characters after it."""
CONTEXT = len("07+58=065")
IGNORE = -100
"""Target of a character that is not graded: the default `ignore_index` of ``cross_entropy``."""


def all_sums() -> TensorDataset:
    """The 10,000 lines as (characters, targets), each an int64 tensor of shape [10000, CONTEXT]."""
    number = {character: index for index, character in enumerate(ALPHABET)}
    lines = [f"{a:02d}+{b:02d}={a + b:03d}\n" for a in range(100) for b in range(100)]
    codes = torch.tensor([[number[character] for character in line] for line in lines])
    targets = codes[:, 1:].clone()
    targets[:, : QUESTION - 1] = IGNORE
    return TensorDataset(codes[:, :-1], targets)


def batches(steps: int, batch_size: int, seed: int, pin_memory: bool = False) -> DataLoader:
    """One batch of random lines per step; the same seed gives the same batches."""
    generator = torch.Generator().manual_seed(seed)
    lines = all_sums()
    sampler = RandomSampler(lines, replacement=True, num_samples=steps * batch_size, generator=generator)
    return DataLoader(lines, batch_size, sampler=sampler, pin_memory=pin_memory)
