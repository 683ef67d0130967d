"""The accesses during the capture of a CUDA graph, which each replay repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pytest_gpusync.simulated.races.extents import Extent


class Captured(NamedTuple):
    """An access that each replay of a graph repeats."""

    base: int
    extent: Extent
    is_write: bool
    device: int
    pinned: bool


_accesses: list[Captured] | None = None
"""Those of the capture under way; None while there is none."""


def begin() -> None:
    """A capture begins."""
    global _accesses
    _accesses = []


def end() -> list[Captured]:
    """The capture has ended: return its accesses."""
    global _accesses
    accesses, _accesses = _accesses, None
    return accesses or []


def keep(base: int, extent: Extent, is_write: bool, device: int, *, pinned: bool) -> None:
    """Keep an access by work that is being captured."""
    if _accesses is not None:
        _accesses.append(Captured(base, extent, is_write, device, pinned))
