"""Ranges of source, and replacements of their text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """A range of source: lines from 1, columns from 1 in characters, the end exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int

    def contains(self, other: Span) -> bool:
        """Whether another range lies within this one; a range contains itself."""
        return self[:2] <= other[:2] and other[2:] <= self[2:]


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the text of one range."""

    span: Span
    replacement: str
