"""The syncs that budgets do not count, named: those of other threads and of set-up, allowed ones, and warm-up."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from pytest_gpusync.reporting.rule_names import rules_for
from pytest_gpusync.reporting.site_rows import Row, align, codes, shortened_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.model.document import Document
    from pytest_gpusync.model.measurement import Measurement

SET_UP: Final = "set-up"
"""``step_source`` of the region of a test's set-up, which no budget counts."""

_LINES_SHOWN: Final = 5


def not_counted_document(measurement: Measurement) -> dict[str, int]:
    """Return how many syncs of a measurement no budget counts, by reason."""
    found = {"allowed": 0, "other_threads": 0, "warm_up": 0, "outside_steps": 0}
    for sync in measurement.all_syncs:
        if sync.allowed is not None:
            found["allowed"] += 1
        elif sync.background:
            found["other_threads"] += 1
        elif sync.step is None:
            found["outside_steps"] += 1
        elif sync.step < measurement.warmup:
            found["warm_up"] += 1
    return found


def not_counted_lines(regions: Sequence[Document]) -> list[str]:
    """Return the lines of a summary about the syncs that budgets do not count; empty if there are none."""
    rows: Counter[tuple[str, int, str]] = Counter()
    totals: Counter[str] = Counter()
    for region in regions:
        if region["step_source"] == SET_UP:
            for site in region["sites"]:
                rows[site["path"], site["line"], "in set-up or tear-down"] += site["syncs"]
            continue
        totals.update(region.get("not_counted") or {})
        for site in region["sites"]:
            if site["background"] and site["allowed"] is None:
                rows[site["path"], site["line"], f"on thread {site['thread']}"] += site["syncs"]
    shown = [_row(*key, syncs) for key, syncs in rows.most_common(_LINES_SHOWN)]
    lines = align(shown)
    if len(rows) > len(shown):
        lines.append(f"  and {len(rows) - len(shown)} more lines")
    rest = [f"{totals[key]} {text}" for key, text in _REASONS.items() if totals[key]]
    if rest:
        lines.append(f"  syncs: {', '.join(rest)}")
    return ["not counted:", *lines] if lines else []


_REASONS: Final = {
    "allowed": "allowed",
    "warm_up": "in warm-up steps",
    "outside_steps": "outside of steps (after the last one, or in the set-up of another training)",
}


def _row(path: str, line: int, where: str, syncs: int) -> Row:
    rules = rules_for(path, line)
    return Row(
        where=f"{path}:{line}",
        source=shortened_source(path, line, rules),
        code=codes(rules),
        rate="1 sync" if syncs == 1 else f"{syncs} syncs",
        remark=where,
    )
