"""The lines that synced, in aligned columns: place, source, rule, rate, remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpusync.reporting.by_device import place_text
from pytest_gpusync.reporting.rule_names import rules_for
from pytest_gpusync.reporting.sources import line_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpusync.model.line_counts import LineCount
    from pytest_gpusync.reporting.rule_names import Rule

SOURCE_WIDTH: Final = 44
"""Width of the source column; longer text is cut."""

_KIND_NAMES: Final = {
    "stream": "stream synchronize",
    "device": "device synchronize",
    "event": "event synchronize",
    "copy": "blocking copy",
    "pageable": "copy of pageable memory",
    "free": "freeing device memory",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a report, its columns as text."""

    where: str
    source: str
    code: str
    rate: str
    remark: str


def line_row(line: LineCount, *, whole_region: bool, name_devices: bool = False) -> Row:
    """Return the columns for one line; for a region without steps (`whole_region`) the rate is a plain number."""
    rules = rules_for(line.path, line.line)
    remarks = [place_text(line.devices)] if name_devices and line.devices else []
    if line.allowed is not None:
        remarks.append(f"allowed: {line.allowed}")
    elif line.background:
        remarks.append(f"on thread {line.thread}")
    elif line.cause is not None:
        remarks.append(line.cause)
    elif rules:
        remarks.append(rules[0].advice)
    if line.via:
        others = f" and {len(line.via) - 1} more" if len(line.via) > 1 else ""
        remarks.append(f"via {line.via[0]}{others}")
    return Row(
        where=f"{line.path}:{line.line}",
        source=shortened_source(line.path, line.line, rules) or f"in {line.function}: {_KIND_NAMES[line.kind]}",
        code=codes(rules),
        rate=_rate(line, whole_region=whole_region),
        remark="  ".join(remarks),
    )


def align(rows: Iterable[Row], *, indent: str = "  ") -> list[str]:
    """Return rows as text, with aligned columns."""
    rows = list(rows)
    if not rows:
        return []
    where = max(len(row.where) for row in rows)
    source = max(len(row.source) for row in rows)
    code = max(len(row.code) for row in rows)
    rate = max(len(row.rate) for row in rows)
    drawn = []
    for row in rows:
        columns = [f"{indent}{row.where:<{where}}", f"{row.source:<{source}}"]
        if code:
            columns.append(f"{row.code:<{code}}")
        columns.append(f"{row.rate:<{rate}}   {row.remark}")
        drawn.append("  ".join(columns).rstrip())
    return drawn


def codes(rules: Sequence[Rule]) -> str:
    """Return the codes of a line's rules as one column."""
    return " ".join(rule.code for rule in rules)


def source_text(path: str, line: int) -> str:
    """Return the text of a line without indentation and trailing comment; empty if the file cannot be read."""
    return _without_comment(line_of(path, line).strip())


def shortened_source(path: str, line: int, rules: Sequence[Rule]) -> str:
    """Return the text of a line as :func:`source_text` does, cut to the column's width.

    The cut keeps the barrier visible if the linter has marked one.
    """
    raw = line_of(path, line)
    indent = len(raw) - len(raw.lstrip())
    text = _without_comment(raw[indent:])
    if len(text) <= SOURCE_WIDTH:
        return text
    end = rules[0].end_column - 1 - indent if rules else 0
    if end < SOURCE_WIDTH:
        return text[: SOURCE_WIDTH - 1] + "…"
    start = end - SOURCE_WIDTH + 2
    return "…" + text[start:end] + ("…" if end < len(text) else "")


def _without_comment(text: str) -> str:
    code, mark, comment = text.partition("  #")
    # A quote after it may mean that it is inside a string: then nothing is removed.
    return code.rstrip() if mark and not any(quote in comment for quote in "'\"") else text


def _rate(line: LineCount, *, whole_region: bool) -> str:
    most = max(line.by_step, default=0)
    if whole_region:
        return "1 sync" if most == 1 else f"{most} syncs"
    if min(line.by_step, default=0) == most:
        return f"{most} per step"
    active = sum(1 for made in line.by_step if made)
    if active == len(line.by_step):
        return f"up to {most} per step"
    return f"up to {most} per step, in {active} of {len(line.by_step)}"
