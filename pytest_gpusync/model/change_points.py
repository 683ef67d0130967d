"""Where a figure changed its level, over runs in order: change points of counts and of times with intervals.

The method. A point is a figure with its interval; that of a count is the count itself. A change is marked at a point
if this point and those after it (up to :data:`AFTER`) all lie on one side of the level before it: their intervals are
apart from those of every point since the last change (of the last :data:`BEFORE`). Overlapping intervals are never a
change.

Points that only vary at random are sometimes apart by chance. If nothing changed, every order of the points is equally
likely, and `b` points before lie apart from `a` points after with probability ``2 / C(a + b, a)``. That has to be at
most :data:`CHANCE`. Most counts do not vary at all: in a series that is steady, a count that differs from a constant
level is a change at once. A series is steady if at most one in :data:`STEADY` of its points differs from the one
before.

Where a constant level is left for fewer than :data:`AFTER` points, and then returned to, the change has an end. If that
happens twice within :data:`BEFORE` points, the figure varies by itself, and none of it is a change.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import comb
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

BEFORE: Final = 20
"""Most points that a change is held against."""

AFTER: Final = 5
"""Points after a change that confirm it, as far as there are as many."""

CHANCE: Final = 0.01
"""Most probability of a change that is none, for each of the places where it is looked for."""

STEADY: Final = 5

_FEW: Final = 4
"""So many differences are allowed in a short series."""

_CONSTANT: Final = 3
"""Equal points that make a level constant."""


class Point(NamedTuple):
    """A figure and the interval that covers it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Change:
    """A change of level."""

    index: int
    """The first point of the new level."""
    before: float
    """The last figure before it."""
    after: float
    end: int | None = None
    """Where the level before returns; None if it does not."""
    confirmed: bool = True
    """Whether as many points follow as confirm a change."""


def change_points(points: Sequence[Point]) -> list[Change]:
    """Return the changes of level in a series, in order. The time that this takes is linear in its length."""
    steady = is_steady(points)
    found: list[Change] = []
    start = 0
    aside: Change | None = None
    """A return to the level within the last BEFORE points, which the level leaves out."""
    index = 1
    while index < len(points):
        if aside is not None and aside.index < index - BEFORE:
            aside = None
        out = range(aside.index, aside.end or 0) if aside is not None else range(0)
        level = [points[at] for at in range(max(start, index - BEFORE), index) if at not in out]
        side = _side(points[index], level)
        after = points[index : index + AFTER]
        if side and all(_side(point, level) == side for point in after):
            if _is_unlikely(level, after) or (steady and _is_exact(level, after)):
                confirmed = len(after) == AFTER
                found.append(Change(index, level[-1].value, points[index].value, confirmed=confirmed))
                start, aside = index, None
        elif side and steady and _is_constant(level):
            end = next(at for at in range(index, index + len(after)) if _side(points[at], level) != side)
            if aside is None:
                aside = Change(index, level[-1].value, points[index].value, end)
                found.append(aside)
            else:
                found.remove(aside)
                aside = None
            index = end - 1
        index += 1
    return found


def is_steady(points: Sequence[Point]) -> bool:
    """Return whether a series keeps its figure nearly always from one point to the next."""
    return sum(after != before for before, after in pairwise(points)) <= max(_FEW, len(points) // STEADY)


def _side(point: Point, level: Sequence[Point]) -> int:
    """Return 1 if a point lies above a level, -1 if below, and 0 if their intervals overlap."""
    above = point.low > max(each.high for each in level)
    return above - (point.high < min(each.low for each in level))


def _is_constant(level: Sequence[Point]) -> bool:
    return len(level) >= _CONSTANT and _are_equal(level)


def _are_equal(points: Sequence[Point]) -> bool:
    first = points[0]
    return first.low == first.high and all(point == first for point in points)


def _is_unlikely(level: Sequence[Point], after: Sequence[Point]) -> bool:
    """Return whether points would hardly lie apart from a level by chance."""
    return 2 / comb(len(level) + len(after), len(after)) <= CHANCE


def _is_exact(level: Sequence[Point], after: Sequence[Point]) -> bool:
    """Return whether points that lie apart from a level show a change of a count that does not vary by itself."""
    if _is_constant(level):
        return True
    # At the beginning, and after a change, few points precede: counts that move one way do not vary at random.
    values = [point.value for point in after]
    is_monotone = len(after) == AFTER and sorted(values) in (values, values[::-1])
    exact = all(point.low == point.high for point in after)
    return _are_equal(level) and exact and (is_monotone or (len(after) > 1 and _are_equal(after)))
