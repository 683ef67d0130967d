"""Sums over what ``torch.compile`` did: graph breaks and recompilations, by line and by step."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpusync.model.measurement import CompilerEvent, Effect, EventKind, Measurement, Site


class CompiledLine(NamedTuple):
    """The graph breaks of a line, or the recompilations of a function."""

    kind: EventKind
    site: Site
    times: int
    """How often Dynamo broke a graph there: several times if it compiles the line in several functions, or again."""
    in_steps: int
    """How many of these happened in measured steps."""
    reason: str
    """The most frequent one."""
    name: str | None
    effect: Effect | None


def compiled_lines(events: Iterable[CompilerEvent], warmup: int = 0) -> list[CompiledLine]:
    """Return the lines at which graphs broke, then the functions that were compiled again, most frequent first.

    Args:
        events: graph breaks and recompilations.
        warmup: the first measured step.
    """
    groups: dict[tuple[str, str, int], list[CompilerEvent]] = {}
    for event in events:
        groups.setdefault((event.kind, event.site.path, event.site.line), []).append(event)
    lines = []
    for found in groups.values():
        (name, reason, effect), _ = Counter((event.name, event.reason, event.effect) for event in found).most_common(1)[
            0
        ]
        in_steps = sum(1 for event in found if event.step is not None and event.step >= warmup)
        lines.append(CompiledLine(found[0].kind, found[0].site, len(found), in_steps, reason, name, effect))
    return sorted(lines, key=lambda line: (line.kind, -line.times, line.site.path, line.site.line))


def graph_breaks(events: Iterable[CompilerEvent]) -> list[CompiledLine]:
    """Return the lines at which graphs broke, by file and line."""
    found = compiled_lines(event for event in events if event.kind == "graph_break")
    return sorted(found, key=lambda line: (line.site.path, line.site.line))


def events_per_step(measurement: Measurement, kind: EventKind) -> list[int] | None:
    """Return how many events of a kind each measured step had; None if they were not counted."""
    if measurement.compilation is None:
        return None
    counts = [0] * max(measurement.steps - measurement.warmup, 0)
    for event in measurement.compilation:
        if event.kind == kind and event.step is not None and event.step >= measurement.warmup:
            counts[event.step - measurement.warmup] += 1
    return counts


def count(events: Sequence[CompilerEvent], kind: EventKind) -> int:
    """Return how many events are of a kind."""
    return sum(1 for event in events if event.kind == kind)
