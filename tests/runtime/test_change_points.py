"""Changes of level in a series: what is one, what is chance, and what varies by itself."""

from __future__ import annotations

from random import Random

import pytest

from pytest_gpusync.model.change_points import Point, change_points, is_steady


def counts(values):
    return [Point(value, value, value) for value in values]


def found(values):
    return [(change.index, change.before, change.after) for change in change_points(counts(values))]


@pytest.mark.parametrize(
    ("values", "changes"),
    [
        ([1] * 20, []),
        ([1] * 10 + [2] * 10, [(10, 1, 2)]),
        ([2] * 10 + [0] * 10, [(10, 2, 0)]),
        ([1] * 10 + [2], [(10, 1, 2)]),
        ([1] * 8 + [2, 3] + [4] * 5, [(8, 1, 2), (9, 2, 3), (10, 3, 4)]),
        ([1] * 5 + [3] + [2] * 6, [(5, 1, 3), (6, 3, 2)]),
        ([1] * 10 + [5] + [1] * 4 + [3] * 8, [(10, 1, 5), (15, 1, 3)]),
        ([1] + [2] * 5, [(1, 1, 2)]),
        ([1], []),
        ([], []),
    ],
)
def test_a_count_that_keeps_its_level_changes_at_once(values, changes):
    assert found(values) == changes


def test_a_level_that_returns_soon_has_an_end():
    (change,) = change_points(counts([1] * 10 + [2] * 3 + [1] * 10))
    assert (change.index, change.end) == (10, 13)


def test_a_change_is_confirmed_by_the_points_after_it():
    assert [change_points(counts([1] * 9 + [2] * after))[0].confirmed for after in (4, 5)] == [False, True]


def test_a_level_that_is_left_twice_varies_by_itself():
    assert found([1] * 8 + [2] + [1] * 8 + [2] + [1] * 8) == []


@pytest.mark.parametrize(
    "draw",
    [
        lambda chance: 1 + (chance.random() < 0.2),
        lambda chance: 1 + (chance.random() < 0.5),
        lambda chance: chance.randrange(10, 20),
        lambda chance: chance.gauss(10, 1),
    ],
)
def test_random_series_rarely_have_a_change(draw):
    wrong = 0
    for seed in range(300):
        chance = Random(seed)
        wrong += bool(found([draw(chance) for _ in range(60)]))
    assert wrong <= 15


def test_a_shift_of_a_random_series_is_found():
    chance = Random(3)
    values = [chance.randrange(10, 20) for _ in range(30)] + [chance.randrange(25, 35) for _ in range(30)]
    assert [index for index, _, _ in found(values)] == [30]


@pytest.mark.parametrize(("half", "changes"), [(0.4, 1), (0.6, 0)])
def test_intervals_that_overlap_are_no_change(half, changes):
    points = [Point(value, value - half, value + half) for value in [10.0] * 15 + [11.0] * 15]
    assert len(change_points(points)) == changes


def test_a_series_is_steady_that_seldom_changes():
    assert is_steady(counts([1] * 30 + [2] * 30))
    assert not is_steady(counts([1, 2] * 30))
