"""``torch.compile`` on the simulated device: returns the function itself, with one warning that says so."""

from __future__ import annotations

import warnings
from typing import Any

EAGER = "torch.compile runs eagerly on the simulated CUDA device: counts are those of eager code"


class _Warning:
    was_given = False


def _warn_once(stacklevel: int) -> None:
    if not _Warning.was_given:
        _Warning.was_given = True
        warnings.warn(EAGER, stacklevel=stacklevel + 1)


def compile(model: Any = None, **options: Any) -> Any:
    """Replaces ``torch.compile``, as a function and as a decorator."""
    _warn_once(2)
    return (lambda function: function) if model is None else model


def compile_module(self: Any, *arguments: Any, **options: Any) -> None:
    """Replaces ``torch.nn.Module.compile``."""
    _warn_once(2)


def reset() -> None:
    """Allow the warning again."""
    _Warning.was_given = False
