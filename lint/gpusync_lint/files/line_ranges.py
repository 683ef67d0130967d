"""The lines that ran, as inclusive ranges. They are never expanded: in a run file, a range may have any length."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def merge_ranges(ranges: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return inclusive ranges of lines in order, those that touch as one."""
    merged: list[list[int]] = []
    for first, last in sorted(map(tuple, ranges)):
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        elif first <= last:
            merged.append([first, last])
    return merged


def overlaps(ranges: list[list[int]], first: int, last: int) -> bool:
    """Return whether merged ranges contain a line from `first` to `last`."""
    after = bisect_right(ranges, last, key=lambda span: span[0])
    return after > 0 and ranges[after - 1][1] >= first
