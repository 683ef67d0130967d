"""The ``compilation`` object of a region: graph breaks and recompilations of ``torch.compile``."""

from __future__ import annotations

from collections import Counter
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


def compilation_lines(regions: Iterable[Document], shown: int) -> list[str]:
    """Return how many graph breaks and recompilations the regions had, and the lines with most, for a summary."""
    found = [region["compilation"] for region in regions if region.get("compilation")]
    totals = {
        "graph break": sum(each["graph_breaks"] for each in found),
        "recompilation": sum(each["recompilations"] for each in found),
    }
    said = [f"{number} {noun}{'' if number == 1 else 's'}" for noun, number in totals.items() if number]
    if not said:
        return []
    times: Counter[tuple[str, str, int]] = Counter()
    reasons: dict[tuple[str, str, int], str] = {}
    for line in (line for each in found for line in each["lines"]):
        place = (line["kind"], line["path"], line["line"])
        times[place] += line["times"]
        reasons.setdefault(place, line["reason"])
    ranked = sorted(times, key=lambda place: (-times[place], place))
    rows = [
        f"  {kind.replace('_', ' ')}  {path}:{line}  {reasons[kind, path, line]}" for kind, path, line in ranked[:shown]
    ]
    if len(ranked) > shown:
        rows.append(f"  and {len(ranked) - shown} more")
    return [f"torch.compile: {', '.join(said)}", *rows]


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
