"""Findings while a document is edited, between two complete analyses.

A complete analysis may take seconds. Until it ends, its last result stays, and moves with the lines. What the edit
itself changes is decided by two quick analyses, of the text of the last result and of the current text: a finding that
only the first one has is removed, and one that only the second one has is added. Findings that follow from other files
are in neither, so they neither vanish nor appear while somebody types.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from gpusync_lint.model.spans import Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusync_lint.server.analysis import Checked
    from gpusync_lint.settings.selection import Reported

_MAX_COMPARED = 1_000
"""The number of lines between the first and the last change that are compared one by one."""


def combined(base: Checked | None, quick_base: Checked | None, quick: Checked) -> Checked:
    """The findings in the text of `quick`.

    Args:
        base: the last complete analysis of the document, of an earlier text; None if there is none.
        quick_base: the quick analysis of the text of `base`.
        quick: the quick analysis of the current text.
    """
    if base is None or quick_base is None:
        return quick
    lines = unchanged_lines(base.text.split("\n"), quick.text.split("\n"))
    before = {
        (one.finding.code, span) for one in quick_base.reported if (span := moved(one.finding.span, lines)) is not None
    }
    now = {(one.finding.code, one.finding.span): one for one in quick.reported}
    kept: dict[tuple[str, Span], Reported] = {}
    for one in base.reported:
        span = moved(one.finding.span, lines)
        if span is None:
            continue
        place = (one.finding.code, span)
        current = now.get(place)
        if current is None and place in before and not quick.errors:
            continue
        # The fix of the last result has positions in its text.
        fix = one.finding.fix if span == one.finding.span and quick.text == base.text else None
        fix = fix if current is None else current.finding.fix
        kept[place] = replace(one, finding=replace(one.finding, span=span, fix=fix))
    added = {place: one for place, one in now.items() if place not in kept and place not in before}
    reported = sorted((kept | added).values(), key=lambda one: (one.finding.span, one.finding.code))
    # A run has measured the lines of the last result, not those that follow an edit.
    return replace(quick, reported=tuple(reported), observations=base.observations)


def moved(span: Span, lines: dict[int, int]) -> Span | None:
    """A span after an edit; None if one of its lines has changed."""
    first = lines.get(span.line)
    if first is None:
        return None
    shift = first - span.line
    if any(lines.get(line) != line + shift for line in range(span.line, span.end_line + 1)):
        return None
    return Span(first, span.column, span.end_line + shift, span.end_column)


def unchanged_lines(old: Sequence[str], new: Sequence[str]) -> dict[int, int]:
    """By number of a line of the old text, from 1, the number of the same line in the new text."""
    shorter = min(len(old), len(new))
    start = 0
    while start < shorter and old[start] == new[start]:
        start += 1
    end = 0
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
    found = {line: line for line in range(1, start + 1)}
    found.update((len(old) - back, len(new) - back) for back in range(end))
    middle_old, middle_new = old[start : len(old) - end], new[start : len(new) - end]
    if middle_old and middle_new and max(len(middle_old), len(middle_new)) <= _MAX_COMPARED:
        for block in SequenceMatcher(None, middle_old, middle_new).get_matching_blocks():
            for line in range(1, block.size + 1):
                found[start + block.a + line] = start + block.b + line
    return found
