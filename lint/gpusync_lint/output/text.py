"""Text for people: each warning with its source line and the remedy."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusync_lint.accept.observed_runs import Evidence
from gpusync_lint.escaping import escaped, masked
from gpusync_lint.model.levels import Heat
from gpusync_lint.output.base.format import Format, Shows
from gpusync_lint.settings.selection import Level

if TYPE_CHECKING:
    from gpusync_lint.accept.observed_runs import Observation, Observed
    from gpusync_lint.model.findings import Finding
    from gpusync_lint.model.spans import Span
    from gpusync_lint.output.base.format import Options
    from gpusync_lint.run.outcome import Outcome
    from gpusync_lint.settings.selection import Reported

WIDTH = 140
"""The maximum number of columns of a source line."""

TAB = "    "

_NOQA = re.compile(r"#\s*noqa\b(?!\s*:(?!.*\bGS\d))", re.IGNORECASE)
"""A comment that accepts everything on its line for other linters, or names one of our codes."""


@dataclass(frozen=True, slots=True)
class Style:
    """Terminal colors, or none."""

    color: bool = False

    def __call__(self, text: str, code: str) -> str:
        """The text with an SGR escape code (``31`` is red)."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.color else text


class Text(Format):
    """Each warning with its source line and the remedy, and a closing line with counts."""

    audience = "people"
    shows = Shows(
        "with the source line",
        notes="counted in the closing line",
        suppressed="what is allowed, with its reason",
        statistics="counts instead of lines",
        observed="a line for each warning, and the lines that waited without one",
    )

    def render(self, outcome: Outcome, options: Options) -> str:
        """The report; empty when no file was linted."""
        style = Style(options.color)
        blocks = []
        if options.statistics:
            blocks.append(_statistics(outcome, style))
        else:
            previous = None
            source: list[str] = []
            for one in outcome.reported:
                finding = one.finding
                if one.level is not Level.WARNING or (one.accepted is not None and not options.show_suppressed):
                    continue
                if previous is not None and finding.path != previous:
                    blocks.append("\n")
                if finding.path != previous:
                    source = outcome.texts.get(finding.path, "").split("\n")
                previous = finding.path
                blocks.append(_finding(one, outcome, source, style))
            if previous is not None:
                blocks.append("\n")
        blocks.append(closing(outcome, style, options))
        return "".join(blocks)


def _finding(reported: Reported, outcome: Outcome, source: list[str], style: Style) -> str:
    finding = reported.finding
    place = f"{escaped(outcome.place(finding))}:"
    lines = [f"{style(place, '1')} {style(finding.code, '1;31')} [{finding.name}] {escaped(finding.message)}"]
    lines += [f"    {line}" for line in _excerpt(source, finding.span, style)]
    lines.append(f"    remedy: {escaped(finding.remedy)}")
    if finding.graph_break is not None:
        lines.append(f"    torch.compile: {escaped(finding.graph_break.sentence)}")
    if finding.fix is not None:
        how = "--fix" if finding.fix.safe else "--fix --unsafe-fixes"
        hazard = f"; {finding.fix.hazard}" if finding.fix.hazard else ""
        lines.append(f"    fix: {escaped(f'{finding.fix.title} ({how}{hazard})')}")
    if outcome.observed is not None and finding.key in outcome.observed.observations:
        lines.append(f"    observed: {observed(outcome.observed.observations[finding.key])}")
    if reported.accepted is not None:
        lines.append(f"    {escaped(reported.accepted)}")
    elif any(_NOQA.search(line) for line in source[finding.span.line - 1 : finding.span.end_line]):
        lines.append(f"    hint: `# noqa` does not accept it; `# gpusync: allow[{finding.code}] REASON` does")
    return "\n".join(lines) + "\n"


def observed(seen: Observation) -> str:
    """What runs show about a finding, as a clause."""
    if seen.evidence is Evidence.WAITED:
        return _measured(seen.syncs or 0, seen.per_step_max or 0, seen.blocked_ms)
    return {
        Evidence.SILENT: "the line ran and did not wait",
        Evidence.NOT_RUN: "the line did not run",
        Evidence.UNRECORDED: "no sync was recorded; whether the line ran is not known",
    }[seen.evidence]


def _measured(syncs: int, per_step: int, blocked_ms: float | None) -> str:
    waited = "" if blocked_ms is None else f", the host waited {blocked_ms:,.1f} ms"
    return f"{_count(syncs, 'sync')}, at most {per_step:,} per step{waited}"


def _gaps(observed: Observed, style: Style) -> list[str]:
    """A summary of what the runs show about the findings, and the lines that waited without a finding."""
    counts = Counter(seen.evidence for seen in observed.observations.values())
    words = {
        Evidence.WAITED: "waited",
        Evidence.SILENT: "ran and did not wait",
        Evidence.NOT_RUN: "did not run",
        Evidence.UNRECORDED: "without a recorded sync",
    }
    summary = ", ".join(f"{counts[evidence]} {word}" for evidence, word in words.items() if counts[evidence])
    lines = [f"Observed in {escaped(', '.join(observed.runs))}: {summary or 'no findings'}"]
    if observed.gaps:
        lines.append(f"{_count(len(observed.gaps), 'line')} waited without a finding:")
    for gap in observed.gaps:
        known = f" ({gap.code} at a lower heat or confidence)" if gap.code is not None else ""
        measured = _measured(gap.syncs, gap.per_step_max, gap.blocked_ms)
        place = style(escaped(f"{gap.path}:{gap.line}"), "1")
        lines.append(f"  {place} {escaped(gap.function)}: {measured}{escaped(known)}")
    return lines


def _excerpt(lines: list[str], span: Span, style: Style) -> list[str]:
    """The line in which the span starts, with carets below the marked part."""
    if span.line > len(lines):
        return []
    line = lines[span.line - 1]
    indent = len(line) - len(line.lstrip())
    start = min(max(span.column - 1, indent), len(line))
    end = min(span.end_column - 1, len(line)) if span.end_line == span.line else len(line.rstrip())
    end = max(end, start)
    if len(line) > 4 * WIDTH:  # a line may have thousands of findings
        cut, end = max(start - WIDTH, 0), min(end, start + WIDTH)
        line, indent, start, end = line[cut : end + WIDTH], max(indent - cut, 0), start - cut, end - cut
    line = masked(line.rstrip())  # not part by part, because a command may extend beyond one
    parts = (line[indent:start], line[start:end], line[end:])
    before, marked, after = (part.replace("\t", TAB) for part in parts)
    if len(before) + len(marked) > WIDTH and len(before) > WIDTH // 2:
        before = "..." + before[-(WIDTH // 2) :]
    room = max(WIDTH - len(before), 8)
    if len(marked) > room:
        marked, after = marked[:room], "..."
    elif len(marked) + len(after) > room:
        after = after[: room - len(marked)] + "..."
    carets = "^" * max(_cells(marked), 1)
    return [before + marked + after, " " * _cells(before) + style(carets, "31")]


def _cells(text: str) -> int:
    """The number of terminal columns that a text occupies."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def _statistics(outcome: Outcome, style: Style) -> str:
    counts = outcome.statistics
    width = max((len(str(one.count)) for one in counts), default=0)
    lines = []
    for one in counts:
        ending = f"  ({one.fixable} with a fix)" if one.fixable else ""
        lines.append(f"{one.count:>{width}}  {style(one.code, '1;31')}  {one.name}{ending}\n")
    return "".join(lines)


def closing(outcome: Outcome, style: Style, options: Options) -> str:
    """The lines with counts at the end; empty if no file was linted."""
    if not outcome.files:
        return ""
    lines = []
    if options.fixed:
        fixed = f"Fixed {_count(outcome.fixed, 'warning')}"
        files = f" in {_count(outcome.fixed_files, 'file')}" if outcome.fixed else ""
        lines.append(f"{fixed}{files}.")
    warnings = outcome.warnings
    accepted = f", {len(outcome.suppressed)} allowed" if outcome.suppressed else ""
    if outcome.baselined:
        accepted += f", {len(outcome.baselined)} in the baseline"
    errors = f", {_count(len(outcome.errors), 'error')}" if outcome.errors else ""
    if warnings:
        found = style(f"Found {_count(len(warnings), 'warning')}", "1")
        lines.append(f"{found}{_fixable(warnings)}{accepted}{errors}")
    else:
        # A file with an error does not count as free of warnings.
        linted = outcome.files - sum(path in outcome.texts for path in {error.path for error in outcome.errors})
        none = f"No warnings in {_count(linted, 'file')}{accepted}{errors}"
        lines.append(none if linted else errors.removeprefix(", "))
    if outcome.notes:
        lines.append(f"(+{_count(len(outcome.notes), 'note')}: {_heats(outcome.notes)})")
    if outcome.observed is not None:
        lines += _gaps(outcome.observed, style)
    return "\n".join(lines) + "\n"


def _fixable(warnings: list[Finding]) -> str:
    fixes = [one.fix for one in warnings if one.fix is not None]
    safe = sum(fix.safe for fix in fixes)
    unsafe = len(fixes) - safe
    if safe and unsafe:
        return f" ({safe} fixable with --fix, {unsafe} more with --unsafe-fixes)"
    if fixes:
        return f" ({len(fixes)} fixable with --fix{'' if safe else ' --unsafe-fixes'})"
    return ""


def _heats(notes: list[Finding]) -> str:
    heats = {one.heat for one in notes}
    words = {Heat.GUARDED: "guarded", Heat.EPOCH: "once per epoch"}
    coolest = max(heats, key=lambda heat: heat.rank)
    listed = " or ".join(word for heat, word in words.items() if heat in heats)
    return f"{listed}; --heat {coolest.value} shows them"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
