"""Adds accesses by work on streams to the history of memory, and reports what they race with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpusync.simulated.base.state import in_backward
from pytest_gpusync.simulated.races import reports
from pytest_gpusync.simulated.races.history import Access, History
from pytest_gpusync.simulated.races.sentences import LaterAccess

if TYPE_CHECKING:
    import torch

    from pytest_gpusync.model.measurement import RaceKind
    from pytest_gpusync.simulated.races.clocks import Timeline
    from pytest_gpusync.simulated.races.extents import Extent
    from pytest_gpusync.simulated.races.lines import Line

COPY: Final = "copy"
GRAPH: Final = "graph"
COLLECTIVE: Final = "collective"
"""Values of :attr:`Access.what` that are no names of operators."""


def access(
    history: History,
    extent: Extent,
    is_write: bool,
    stream: Timeline,
    line: Line,
    what: str,
    tensor: torch.Tensor | None = None,
) -> None:
    """Work on `stream` uses memory: report what races with it, and keep it."""
    for other, was_write in history.unordered(extent, is_write, stream):
        if in_backward() and not is_write and not other.freed:
            # The engine runs the operator on the stream of its forward operator, after what that stream waited for.
            stream.wait(other.stream.seen)
            stream.wait({other.stream: other.stream.clock})
            continue
        later = LaterAccess(line, stream.name, is_write, extent, tensor)
        reports.report(_kind(what, other, was_write), later, other, was_write)
    history.add(Access(extent, stream, stream.clock, line.place, what), is_write)


def _kind(what: str, other: Access, was_write: bool) -> RaceKind:
    if other.freed:
        return "allocator"
    if COLLECTIVE in (what, other.what):
        return "distributed"
    return "graph" if GRAPH in (what, other.what) else "stream"
