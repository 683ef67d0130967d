"""A thousand products on cuda:0, each followed by a synchronize: of cuda:1, which is idle, then of cuda:0.

usage: gpusync trace [--devices 2] two_gpus.py

The first time is that of the launches, although there is a barrier: it is one of the other GPU. The same file runs on
two GPUs and, with --devices 2, on two simulated devices.
"""

from __future__ import annotations

import time

import torch

PRODUCTS, SIZE = 1000, 64


def main() -> None:
    """Time the products with each of the two barriers."""
    a = torch.randn(SIZE, SIZE, device="cuda:0")
    torch.ones(1, device="cuda:1")
    torch.mm(a, a)
    for device in ("cuda:1", "cuda:0"):
        torch.cuda.synchronize("cuda:0")
        start = time.perf_counter()
        for _ in range(PRODUCTS):
            torch.mm(a, a)
            torch.cuda.synchronize(device)
        print(f"{PRODUCTS} products on cuda:0, synchronize of {device}: {time.perf_counter() - start:.4f} s")


if __name__ == "__main__":
    main()
