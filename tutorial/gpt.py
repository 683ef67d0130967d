"""A small GPT over characters: token and position embeddings, pre-norm blocks, one linear head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class GPTConfig:
    vocabulary: int
    context: int
    layers: int = 2
    heads: int = 4
    width: int = 64


class Attention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class CharGPT(nn.Module):
    """Maps characters, int64 of shape [batch, time], to logits of shape [batch, time, vocabulary]."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.characters = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Parameter(0.02 * torch.randn(config.context, config.width))
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.characters(characters) + self.positions[: characters.size(1)]
        return self.head(self.norm(self.blocks(x)))


def z_weight(step: int) -> float:
    """Weight of the z-loss, which keeps the logits from drifting: ramps up to 1e-3 over 100 steps."""
    return 1e-3 * min(1.0, (step + 1) / 100)
