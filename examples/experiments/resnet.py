"""Residual networks with 18 and 50 layers (He et al., 2015), as short as possible."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """Convolutions with a shortcut: two of 3 x 3, or 1 x 1, 3 x 3 and 1 x 1 with four times the channels."""

    def __init__(self, channels: int, width: int, stride: int, deep: bool) -> None:
        super().__init__()
        out = 4 * width if deep else width
        sizes = [(1, channels, width, 1), (3, width, width, stride), (1, width, out, 1)] if deep else []
        sizes = sizes or [(3, channels, width, stride), (3, width, out, 1)]
        layers: list[nn.Module] = []
        for kernel, before, after, step in sizes:
            layers += [
                nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            ]
        self.main = nn.Sequential(*layers[:-1])
        same = stride == 1 and channels == out
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(x) + self.shortcut(x))


def resnet(layers: int, width: int = 64, classes: int = 1000) -> nn.Module:
    """Return the network with 18 or 50 layers; `width`: channels of its first stage."""
    deep, depths = {18: (False, (2, 2, 2, 2)), 50: (True, (3, 4, 6, 3))}[layers]
    stages: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    stages.append(nn.MaxPool2d(3, 2, 1))
    channels = width
    for stage, depth in enumerate(depths):
        for number in range(depth):
            stages.append(Block(channels, width << stage, 2 if stage and not number else 1, deep))
            channels = (width << stage) * (4 if deep else 1)
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
