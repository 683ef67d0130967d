"""Graph breaks and recompilations as lines of text: place, source, rule, Dynamo's reason and the rule's remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpusync_lint.escaping import escaped

from pytest_gpusync.model.compilation import compiled_lines, count
from pytest_gpusync.reporting.rule_names import rules_for
from pytest_gpusync.reporting.site_rows import codes, shortened_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.model.compilation import CompiledLine
    from pytest_gpusync.model.measurement import CompilerEvent, Effect

_EFFECTS: Final[dict[Effect, str]] = {
    "rest_eager": "the rest of the function runs eagerly",
    "function_eager": "the whole function runs eagerly",
}


def break_rows(lines: Sequence[CompiledLine]) -> list[str]:
    """Return three rows for each graph break: its line with the linter's rule, Dynamo's reason, and the remedy."""
    rows = []
    for line in lines:
        site = line.site
        rules = rules_for(site.path, site.line)
        source = shortened_source(site.path, site.line, rules) or f"in {site.function}"
        times = f"{line.times} times" if line.times > 1 else ""
        rows.append("  ".join(part for part in (f"  {site.path}:{site.line}", source, codes(rules), times) if part))
        rows.append(f"      {line.reason}")
        if line.effect in _EFFECTS:
            rows.append(f"      {_EFFECTS[line.effect]}")
        if site.via:
            rows.append(f"      via {site.via}")
        if rules:
            rows.append(f"      {rules[0].code}: {rules[0].remedy}")
    return [escaped(row) for row in rows]


def compilation_sentence(events: Sequence[CompilerEvent], warmup: int) -> str | None:
    """Return how many graph breaks and recompilations a region had; None without any."""
    parts = []
    for kind, noun in (("graph_break", "graph break"), ("recompilation", "recompilation")):
        number = count(events, kind)  # type: ignore[arg-type]
        if not number:
            continue
        later = sum(line.in_steps for line in compiled_lines(events, warmup) if line.kind == kind)
        said = f"{number} {noun}{'' if number == 1 else 's'}"
        parts.append(f"{said}, {later} after warm-up" if warmup else said)
    return f"torch.compile: {'; '.join(parts)}" if parts else None


def compilation_rows(events: Sequence[CompilerEvent], warmup: int, limit: int | None) -> list[str]:
    """Return a sentence and a row for each line, at most `limit`; nothing without graph breaks and recompilations."""
    sentence = compilation_sentence(events, warmup)
    if sentence is None:
        return []
    lines = compiled_lines(events, warmup)
    shown = lines if limit is None else lines[:limit]
    places = [f"{line.site.path}:{line.site.line}" for line in shown]
    width = max(map(len, places))
    rows = [f"  {sentence}"]
    for place, line in zip(places, shown, strict=True):
        what = "graph break" if line.kind == "graph_break" else f"{line.site.function}() compiled again"
        rules = codes(rules_for(line.site.path, line.site.line)) if line.kind == "graph_break" else ""
        times = f" {line.times} times" if line.times > 1 else ""
        rows.append("  ".join(part for part in (f"    {place:<{width}}", f"{what}{times}", rules, line.reason) if part))
    if len(shown) < len(lines):
        rows.append(f"    and {len(lines) - len(shown)} more lines")
    return rows
