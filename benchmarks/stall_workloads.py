"""Six training steps with waits that can be left out one by one, for gpu_budgets.py: what does each of them cost?

Each function sets one up and returns it; the step takes the names of the waits that it is to make.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from training_steps import GPT

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "experiments"))
from resnet import resnet

Step = Callable[[Collection[str]], None]


def wide_mlp() -> Step:
    """Device-bound: six layers of 2048, batch 4096, float32."""
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data, target = torch.randn(4096, 2048, device="cuda"), torch.randn(4096, 2048, device="cuda")

    def step(waits: Collection[str]) -> None:
        loss = functional.mse_loss(model(data), target)
        if "before backward" in waits:
            loss.item()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if "at the end" in waits:
            loss.item()

    return step


def gpt() -> Step:
    """Host and device nearly balanced: GPT 124 M, batch 8 x 1024, bf16, fused AdamW."""
    torch.manual_seed(0)
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, 50257, (8, 1025), device="cuda")

    def step(waits: Collection[str]) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        if "before backward" in waits:
            loss.item()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if "norm" in waits:
            norm.item()
        optimizer.step()
        optimizer.zero_grad()
        if "at the end" in waits:
            loss.item()

    return step


def small_gpt() -> Step:
    """Host-bound: a GPT of 4 layers and width 256, batch 4 x 128, float32."""
    torch.manual_seed(0)
    model = GPT(vocabulary=512, length=128, layers=4, width=256).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 512, (4, 129), device="cuda")

    def step(waits: Collection[str]) -> None:
        logits = model(ids[:, :-1])
        if "whole device" in waits:
            torch.cuda.synchronize()
        loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if "at the end" in waits:
            loss.item()

    return step


def resnet50() -> Step:
    """Host-bound on a fast GPU: ResNet-50, batch 32, bf16, its batch copied from pinned memory."""
    torch.manual_seed(0)
    model = resnet(50).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(32, 3, 224, 224).pin_memory()
    labels = torch.randint(0, 1000, (32,)).pin_memory()

    def step(waits: Collection[str]) -> None:
        if "copy in" in waits:
            batch = images.to("cuda")
        else:
            batch = images.to("cuda", non_blocking=True)
        target = labels.to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(batch), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if "at the end" in waits:
            loss.item()

    return step


def deep_convolutions() -> Step:
    """Device-bound: convolutions of 128 channels over 64 images of 64 x 64, a mask that is read in between."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Conv2d(128, 128, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(3, 128, 3, padding=1), *layers, nn.Conv2d(128, 1, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    images = torch.randn(64, 3, 64, 64, device="cuda")

    def step(waits: Collection[str]) -> None:
        out = model(images)
        if "finite" in waits and not torch.isfinite(out).all():
            raise ArithmeticError
        out.square().mean().backward()
        if "whole device" in waits:
            torch.cuda.synchronize()
        optimizer.step()
        optimizer.zero_grad()

    return step


def small_mlp() -> Step:
    """Host-bound: a step of a millisecond."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    data, target = torch.randn(1024, 512, device="cuda"), torch.randn(1024, 512, device="cuda")

    def step(waits: Collection[str]) -> None:
        loss = functional.mse_loss(model(data), target)
        if "before backward" in waits:
            loss.item()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if "at the end" in waits:
            loss.item()

    return step


WORKLOADS: dict[str, tuple[Callable[[], Step], tuple[str, ...]]] = {
    "wide MLP": (wide_mlp, ("before backward", "at the end")),
    "GPT 124 M": (gpt, ("before backward", "norm", "at the end")),
    "small GPT": (small_gpt, ("whole device", "at the end")),
    "ResNet-50": (resnet50, ("copy in", "at the end")),
    "deep convolutions": (deep_convolutions, ("finite", "whole device")),
    "small MLP": (small_mlp, ("before backward", "at the end")),
}
