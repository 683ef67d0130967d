"""The ``compilation`` object of a region: graph breaks and recompilations of ``torch.compile``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpusync.model.compilation import compiled_lines, count, events_per_step
from pytest_gpusync.reporting.rule_names import rule_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpusync.model.compilation import CompiledLine
    from pytest_gpusync.model.document import Document
    from pytest_gpusync.model.measurement import Measurement


def compilation_document(measurement: Measurement) -> Document | None:
    """Return how often graphs broke and functions were compiled again, in all, by measured step and by line; None if
    that was not seen.
    """
    events = measurement.compilation
    if events is None:
        return None
    return {
        "graph_breaks": count(events, "graph_break"),
        "recompilations": count(events, "recompilation"),
        "per_step": {
            "graph_breaks": events_per_step(measurement, "graph_break"),
            "recompilations": events_per_step(measurement, "recompilation"),
        },
        "lines": [_line(line) for line in compiled_lines(events, measurement.warmup)],
    }


def with_codes(compilation: Document | None) -> Document | None:
    """Return a ``compilation`` object with the linter's rule code for each graph break whose line has one."""
    if compilation is None:
        return None
    return {**compilation, "lines": [_with_code(line) for line in compilation["lines"]]}


@dataclass(frozen=True, slots=True)
class Compilations:
    """The graph breaks and recompilations of some regions."""

    sentence: str
    """How many there were."""
    lines: list[Document]
    """As in a ``compilation`` object, those of all regions together, the most frequent first."""

    def breaks_at(self, path: str, line: int) -> bool:
        """Return whether graphs broke at a line."""
        return any((one["kind"], one["path"], one["line"]) == ("graph_break", path, line) for one in self.lines)


def compilations(regions: Iterable[Document]) -> Compilations | None:
    """Return the graph breaks and recompilations of regions; None if there were none."""
    found = [region["compilation"] for region in regions if region.get("compilation")]
    totals = {
        "graph break": sum(each["graph_breaks"] for each in found),
        "recompilation": sum(each["recompilations"] for each in found),
    }
    said = [f"{number} {noun}{'' if number == 1 else 's'}" for noun, number in totals.items() if number]
    if not said:
        return None
    merged: dict[tuple[str, str, int], Document] = {}
    for line in (line for each in found for line in each["lines"]):
        one = merged.setdefault((line["kind"], line["path"], line["line"]), {**line, "times": 0, "in_steps": 0})
        one["times"] += line["times"]
        one["in_steps"] += line["in_steps"]
    ranked = sorted(merged, key=lambda place: (-merged[place]["times"], place))
    return Compilations(f"torch.compile: {', '.join(said)}", [merged[place] for place in ranked])


def compilation_lines(regions: Iterable[Document], shown: int) -> list[str]:
    """Return how many graph breaks and recompilations the regions had, and the lines with most, for a summary."""
    found = compilations(regions)
    if found is None:
        return []
    rows = [
        f"  {line['kind'].replace('_', ' ')}  {line['path']}:{line['line']}  {line['reason']}"
        for line in found.lines[:shown]
    ]
    if len(found.lines) > shown:
        rows.append(f"  and {len(found.lines) - shown} more")
    return [found.sentence, *rows]


def _with_code(line: Document) -> Document:
    if line["kind"] != "graph_break" or line["code"] is not None:
        return line
    rule = rule_for(line["path"], line["line"])
    return line if rule is None else {**line, "code": rule.code}


def _line(line: CompiledLine) -> Document:
    return {
        "kind": line.kind,
        "path": line.site.path,
        "line": line.site.line,
        "function": line.site.function,
        "via": line.site.via,
        "code": None,  # filled in when the run is written
        "name": line.name,
        "reason": line.reason,
        "effect": line.effect,
        "times": line.times,
        "in_steps": line.in_steps,
    }
