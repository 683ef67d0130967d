"""Training steps that benchmarks measure: each function sets one up and returns it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[], object]


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_in, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, width) to the same shape."""
        batch, length, width = x.shape
        parts = self.project(self.norm_in(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.merge(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.norm_out(x))


class GPT(nn.Module):
    """A decoder of GPT-2's layout; 124 M parameters with the defaults."""

    def __init__(self, vocabulary: int = 50304, length: int = 1024, layers: int = 12, width: int = 768) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, width // 64) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, length, vocabulary) of token ids (batch, length)."""
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.places(places))))


def gpt_step(batch: int = 8, length: int = 1024) -> Step:
    """Return a step of GPT 124 M in bf16 with fused AdamW, which reads its loss once."""
    torch.manual_seed(0)
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, 50257, (batch, length + 1), device="cuda")

    def step() -> float:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def mlp_step(batch: int = 1024) -> Step:
    """Return a step of about a millisecond, which reads its loss once."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    data, target = torch.randn(batch, 512, device="cuda"), torch.randn(batch, 512, device="cuda")

    def step() -> float:
        loss = functional.mse_loss(model(data), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step
