"""What is known of names outside the project by the names alone."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import roots
from gpusync_lint.domain import torch_api
from gpusync_lint.domain.lattice import BOOL_DTYPE, DTYPE, GPU_DEVICE, HOST, NONE, Value, name

if TYPE_CHECKING:
    from gpusync_lint.catalogue.schema import Engine

_DTYPE_NAMES = frozenset(
    {
        "float", "float16", "float32", "float64", "double", "half", "bfloat16", "int", "int8", "int16", "int32",
        "int64", "long", "short", "uint8", "complex64", "complex128", "cfloat", "float8_e4m3fn", "float8_e5m2",
    }
)  # fmt: skip


@lru_cache(20_000)
def member(dotted: str, attr: str) -> Value:
    """What something outside holds under a name."""
    if dotted == "torch":
        if attr == "bool":
            return BOOL_DTYPE
        if attr in _DTYPE_NAMES:
            return DTYPE
    if attr == "device" and engine_of(dotted) is not None:
        return GPU_DEVICE
    root = dotted.partition(".")[0]
    if root == "math" and attr in ("pi", "e", "inf", "nan", "tau"):
        return HOST
    if root == "numpy" and attr in ("pi", "inf", "nan", "newaxis"):
        return NONE if attr == "newaxis" else HOST
    return name(f"{dotted}.{attr}")


def engine_of(dotted: str) -> Engine | None:
    """The class of an object that moves what it is given to the device, from its name: `accelerate.Accelerator()`."""
    return torch_api.engines().get(dotted[:-2].rpartition(".")[2]) if dotted.endswith("()") else None


_NOT_MODULES = (
    "Config", "Callback", "Tokenizer", "Processor", "Dataset", "DataModule", "Arguments", "Logger", "Trainer",
)  # fmt: skip
"""Ends of the names of classes that are no `torch.nn.Module`."""


def is_unknown_class(dotted: str) -> bool:
    """Whether nothing is known of a class: it is not torch's, and its name does not say that it is something else."""
    last = dotted.rpartition(".")[2]
    return last[:1].isupper() and not dotted.startswith("torch.") and not last.endswith(_NOT_MODULES)


def is_module_name(dotted: str) -> bool:
    """Whether a class is a `torch.nn.Module`."""
    last = dotted.rpartition(".")[2]
    if dotted == "torch.nn.Module" or last in ("LightningModule", "PreTrainedModel", "MessagePassing"):
        return True
    return (
        dotted.startswith(roots.module_classes())
        and last[:1].isupper()
        and not last.endswith(_NOT_MODULES)
        and ".functional" not in dotted
        and ".utils." not in dotted
        and last not in ("Parameter", "ParameterList", "ParameterDict")
    )
