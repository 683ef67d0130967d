"""``torch.compile`` on the simulated device: the function itself, with one warning that says so."""

from __future__ import annotations

import warnings
from typing import Any

EAGER = "torch.compile runs eagerly on the simulated CUDA device: counts are those of eager code"


class _Told:
    yet = False


def _tell(stacklevel: int) -> None:
    if not _Told.yet:
        _Told.yet = True
        warnings.warn(EAGER, stacklevel=stacklevel + 1)


def compile(model: Any = None, **options: Any) -> Any:
    """Stands in for ``torch.compile``, as a function and as a decorator."""
    _tell(2)
    return (lambda function: function) if model is None else model


def compile_module(self: Any, *arguments: Any, **options: Any) -> None:
    """Stands in for ``torch.nn.Module.compile``."""
    _tell(2)


def reset() -> None:
    """Forget that it was said."""
    _Told.yet = False
