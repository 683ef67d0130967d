"""Facts about names outside the project that follow from the names alone."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import roots
from gpusync_lint.domain import torch_api
from gpusync_lint.domain.values import BOOL_DTYPE, DTYPE, GPU_DEVICE, HOST, NONE, Value, external_name

if TYPE_CHECKING:
    from gpusync_lint.catalogue.schema import Engine

_DTYPE_NAMES = frozenset(
    {
        "float", "float16", "float32", "float64", "double", "half", "bfloat16", "int", "int8", "int16", "int32",
        "int64", "long", "short", "uint8", "complex64", "complex128", "cfloat", "float8_e4m3fn", "float8_e5m2",
    }
)  # fmt: skip
_MATH_CONSTANTS = frozenset({"pi", "e", "inf", "nan", "tau"})
_NUMPY_CONSTANTS = frozenset({"pi", "inf", "nan"})
_NOT_MODULES = (
    "Config", "Callback", "Tokenizer", "TokenizerFast", "Processor", "ProcessorFast", "FeatureExtractor", "Scheduler",
    "Dataset", "DataModule", "Arguments", "Logger", "Trainer",
)  # fmt: skip
"""Endings of the names of classes that are no `torch.nn.Module`."""
_MODULES = frozenset({"LightningModule", "PreTrainedModel", "MessagePassing"})
"""Last names of base classes that are, wherever they are imported from."""
_PARAMETERS = frozenset({"Parameter", "ParameterList", "ParameterDict"})


@lru_cache(20_000)
def member(dotted: str, attribute: str) -> Value:
    """The value of an attribute of something outside the project."""
    if dotted == "torch":
        if attribute == "bool":
            return BOOL_DTYPE
        if attribute in _DTYPE_NAMES:
            return DTYPE
    if attribute == "device" and engine_of(dotted) is not None:
        return GPU_DEVICE
    root = dotted.partition(".")[0]
    if root == "numpy" and attribute == "newaxis":
        return NONE
    if (root == "math" and attribute in _MATH_CONSTANTS) or (root == "numpy" and attribute in _NUMPY_CONSTANTS):
        return HOST
    return external_name(f"{dotted}.{attribute}")


def engine_of(dotted: str) -> Engine | None:
    """The catalogue's entry for the class of an object, `accelerate.Accelerator()`, that moves models and data.

    None for any other name.
    """
    return torch_api.engines().get(dotted[:-2].rpartition(".")[2]) if dotted.endswith("()") else None


def is_unknown_class(dotted: str) -> bool:
    """Whether a class may be a `torch.nn.Module`: it is not one of torch's, and its name does not exclude it."""
    last = dotted.rpartition(".")[2]
    return last[:1].isupper() and not dotted.startswith("torch.") and not is_no_module(last)


def is_no_module(dotted: str) -> bool:
    """Whether the name of a class excludes that it is a `torch.nn.Module`: a tokenizer, a configuration."""
    return dotted.removesuffix("()").endswith(_NOT_MODULES)


def is_module_name(dotted: str) -> bool:
    """Whether a class is a `torch.nn.Module`."""
    last = dotted.rpartition(".")[2]
    if dotted == "torch.nn.Module" or last in _MODULES:
        return True
    return (
        dotted.startswith(roots.module_classes())
        and last.lstrip("_")[:1].isupper()  # `torch.nn.modules.loss._Loss`
        and not is_no_module(last)
        and ".functional" not in dotted
        and ".utils." not in dotted
        and last not in _PARAMETERS
    )
