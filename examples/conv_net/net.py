"""A small convolutional classifier."""

from __future__ import annotations

from torch import Tensor, nn


class ConvNet(nn.Module):
    """Maps images, float32 of shape [batch, 1, height, width], to logits of shape [batch, classes]."""

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Linear(8 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).flatten(1))
