"""The top-level modules whose import says that a file uses a framework."""

from __future__ import annotations

FRAMEWORK_ROOTS = frozenset(
    {
        "torch", "torchvision", "torchaudio", "torchtext", "lightning", "pytorch_lightning", "accelerate",
        "fastai", "transformers", "diffusers", "timm", "torch_geometric", "torchmetrics", "ignite", "deepspeed",
        "tensordict", "torchrl", "monai", "kornia", "xformers", "dgl", "gpytorch", "pyro", "peft",
        "sentence_transformers",
    }
)  # fmt: skip
ARRAY_LIBRARIES = frozenset({"jax", "flax", "tensorflow", "keras", "mxnet", "cupy", "paddle", "mindspore"})
"""Array libraries other than torch, whose arrays have methods of the same names."""
