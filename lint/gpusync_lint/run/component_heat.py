"""The heat of components that are analyzed in parts, as the cache stores it.

The heat of a finding depends on the call graphs of all parts of its component. The cache stores these graphs, and the
heats that follow from them. If a part that is analyzed again has the same graph as before, no other part is affected.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpusync_lint.run.cache_file import DamagedError, line, parsed, read_lines, write_lines
from gpusync_lint.run.graph_rows import graph_row, heats_row, read_graph, read_heats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.placement import CallGraph, FunctionHeat
    from gpusync_lint.run.cache_file import Document
    from gpusync_lint.run.schedule import Part

_NO_GRAPH = b"null"
"""The line of a part that could not be analyzed as one."""


@dataclass(slots=True)
class ComponentHeat:
    """The call graphs and heats of the parts of a component, by number of the unit, as lines of its document."""

    graphs: dict[int, bytes] = field(default_factory=dict)
    heats: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def read(cls, location: Path, key: bytes, members: Sequence[int], stamp: str) -> ComponentHeat | None:
        """Read the document of a component; None if it is damaged or does not belong to the stamp."""
        try:
            header, *lines = read_lines(location, key)
            if parsed(header, dict).get("stamp") != stamp or len(lines) != 2 * len(members):
                return None
        except (OSError, DamagedError):
            return None
        count = len(members)
        return cls(dict(zip(members, lines[:count], strict=True)), dict(zip(members, lines[count:], strict=True)))

    def write(self, location: Path, key: bytes, stamp: str) -> None:
        """Write the document of a component. Raises OSError."""
        lines = [self.graphs[unit] for unit in sorted(self.graphs)]
        lines += [self.heats[unit] for unit in sorted(self.heats)]
        write_lines(location, key, [line({"stamp": stamp}), *lines])

    def updated(self, members: Sequence[int], parts: Mapping[int, Part]) -> Update:
        """The heats after some parts have been analyzed again. Raises DamagedError.

        Args:
            members: the units of the component.
            parts: the units that have been analyzed.
        """
        from gpusync_lint.heat.call_graph import propagate

        lines = dict(self.graphs)
        graphs: dict[int, CallGraph] = {}
        for unit in members:
            if unit in parts:
                links = parts[unit].analysis.links
                if links is not None:
                    graphs[unit] = links.graph
                lines[unit] = _NO_GRAPH if links is None else line(graph_row(links.graph))
        if lines == self.graphs:
            return Update(self, graphs)
        graphs.update((unit, _graph(lines[unit])) for unit in members if unit not in parts and lines[unit] != _NO_GRAPH)
        heats = propagate({key: node for _, graph in sorted(graphs.items()) for key, node in graph.items()})
        heat_lines = {unit: line(heats_row(graphs[unit], heats) if unit in graphs else None) for unit in members}
        return Update(ComponentHeat(lines, heat_lines), graphs)


@dataclass(slots=True)
class Update:
    """The new heats of a component, and the call graphs that were read or computed for them."""

    heat: ComponentHeat
    graphs: dict[int, CallGraph]

    def heats(self, unit: int) -> dict[Key, FunctionHeat]:
        """The heats of the functions of a unit. Raises DamagedError."""
        try:
            return read_heats(parsed(self.heat.heats[unit], list), self.graphs[unit])
        except (LookupError, TypeError, ValueError):
            raise DamagedError from None


def _graph(stored: bytes) -> CallGraph:
    try:
        return read_graph(parsed(stored, list))
    except (LookupError, TypeError, ValueError):
        raise DamagedError from None


def set_heats(document: Document, file: int, heats: Mapping[Key, FunctionHeat]) -> None:
    """Replace the heats of the findings in a file."""
    from gpusync_lint.run.schedule import heated

    placed = document.placed(file)
    findings = heated(placed, heats)
    if findings != [finding for finding, _ in placed]:
        document.set_findings(file, zip(findings, (place for _, place in placed), strict=True))
