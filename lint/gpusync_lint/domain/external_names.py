"""What names of things outside the project tell by themselves."""

from __future__ import annotations

from functools import lru_cache

from gpusync_lint.domain import torch_api
from gpusync_lint.domain.lattice import BOOL_DTYPE, DTYPE, GPU_DEVICE, HOST, NONE, Value, name

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
    if dotted.endswith(torch_api.ENGINES) and attr == "device":
        return GPU_DEVICE
    root = dotted.partition(".")[0]
    if root == "math" and attr in ("pi", "e", "inf", "nan", "tau"):
        return HOST
    if root == "numpy" and attr in ("pi", "inf", "nan", "newaxis"):
        return NONE if attr == "newaxis" else HOST
    return name(f"{dotted}.{attr}")
