"""Reads ``calibration.toml``: which operators make the host wait inside their CUDA kernels, how often, and when."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import torch

from pytest_gpusync.simulated.base import sync_events
from pytest_gpusync.simulated.base.state import current_device, process
from pytest_gpusync.simulated.kernels import autotuning
from pytest_gpusync.simulated.kernels.sized_calls import COUNTS
from pytest_gpusync.simulated.tensors.labels import as_cpu

if TYPE_CHECKING:
    from pytest_gpusync.model.measurement import Direction

Announce = Callable[[Sequence[Any], Mapping[str, Any]], None]
"""Announces the syncs of one call, from the operator's arguments."""


@dataclass(frozen=True)
class Entry:
    """One entry of the file, which describes the fields."""

    names: tuple[str, ...]
    evidence: str
    syncs: int = 0
    counted_by: str | None = None
    when: str | None = None
    more: int = 0
    more_when: str | None = None
    at_least: bool = False
    direction: Direction | None = None


def _nonempty(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    return bool(arguments[0].numel())


def _equal_bounds(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    low = arguments[2] if len(arguments) > 2 else keywords.get("min", 0)
    high = arguments[3] if len(arguments) > 3 else keywords.get("max", 0)
    return bool(low == high) and bool(arguments[0].numel())


def _compared(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether `equal` compares values: two tensors of the same shape that are not the same memory."""
    one, other = arguments[0], arguments[1] if len(arguments) > 1 else keywords["other"]
    same = one.data_ptr() == other.data_ptr() and one.stride() == other.stride() and one.dtype == other.dtype
    return bool(one.numel()) and one.shape == other.shape and not same


def _no_output_size(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    return keywords.get("output_size") is None and bool(arguments[0].numel())


_LARGEST_NORM = {torch.float64: 2.996158913811580e-01, torch.complex128: 2.996158913811580e-01}
"""1-norms above which torch computes a matrix exponential in another way; for other types:"""
_LARGEST_NORM_OF_OTHERS = 1.461661507209034


def _large_norm(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    x = arguments[0]
    if not process.values or not x.numel():
        return False
    norm = as_cpu(x).abs().sum(-2).amax()
    return bool(norm > _LARGEST_NORM.get(x.dtype, _LARGEST_NORM_OF_OTHERS))


CONDITIONS: Mapping[str, Callable[[Sequence[Any], Mapping[str, Any]], bool]] = {
    "nonempty": _nonempty,
    "equal_bounds": _equal_bounds,
    "compared": _compared,
    "no_output_size": _no_output_size,
    "large_norm": _large_norm,
}


@cache
def _tables() -> Mapping[str, Any]:
    tables: dict[str, Any] = tomllib.loads(
        (resources.files(__package__) / "calibration.toml").read_text(encoding="utf-8")
    )
    return tables


@cache
def entries() -> Mapping[str, Entry]:
    """Return the entry of each operator, by qualified name with overload."""
    found: dict[str, Entry] = {}
    for table in _tables()["operator"]:
        entry = Entry(**{**table, "names": tuple(table["names"])})
        found.update(dict.fromkeys(entry.names, entry))
    return found


@cache
def _autotuned() -> Mapping[str, Announce]:
    return autotuning.announcers(_tables()["autotuning"]["plans"])


def announcer(name: str) -> Announce | None:
    """Return the function that announces the syncs of operator `name`; None if its kernel makes none of its own."""
    entry = entries().get(name)
    if entry is None:
        return _autotuned().get(name)
    condition = CONDITIONS[entry.when] if entry.when else None
    syncs, direction = entry.syncs, entry.direction
    counted_by = COUNTS[entry.counted_by] if entry.counted_by else None
    more, more_when = entry.more, CONDITIONS[entry.more_when] if entry.more_when else None

    def announce(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        if condition is not None and not condition(arguments, keywords):
            return
        count = syncs if counted_by is None else counted_by(arguments, keywords)
        if more_when is not None and more_when(arguments, keywords):
            count += more
        if count:
            sync_events.announce("stream", count, direction=direction, device=_device(arguments, keywords))

    return announce


def _device(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> int:
    """Return the device that an operator runs on: that of its first cuda tensor, else the current one."""
    for value in (*arguments, *keywords.values()):
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
                return tensor.get_device()
    return current_device()
