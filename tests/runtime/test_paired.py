"""The ratio of two elapsed times, from clocks that are made up."""

from __future__ import annotations

import gc
import random
from math import inf

import pytest

from pytest_gpusync.elapsed.paired import (
    EDGE_MS,
    MIN_ROUNDS,
    Pair,
    no_garbage_collection,
    ratio_estimate,
    ratio_of,
    run_rounds,
    with_disturbance,
)
from pytest_gpusync.model.measurement import Disturbance


def clock(seed, ratio, noise, drift=0.0):
    """A machine on which `a` takes `ratio` times as long as `b`, each sample disturbed, and that slows down."""
    rng = random.Random(seed)
    slowness = 1.0

    def take(side):
        nonlocal slowness
        slowness += drift
        return (ratio if side == "a" else 1.0) * slowness * (1 + noise * rng.random())

    return take


CALLS = 1000
"""So many that what a sample begins and ends with is nothing."""


def measured(take, rounds=100, tolerance=0.02):
    def is_sufficient(taken):
        found = ratio_estimate([Pair(**one) for one in taken], CALLS)
        return found.high - found.low <= tolerance * found.value

    pairs = [Pair(**one) for one in run_rounds(take, "ab", rounds, is_sufficient)]
    return ratio_of(pairs, CALLS, tolerance)


def never(taken):
    return False


def test_the_order_of_the_two_changes_from_round_to_round():
    asked = []
    run_rounds(lambda side: asked.append(side) or 1.0, "ab", 4, never)
    assert "".join(asked) == "abbaabba"


def test_of_three_each_is_first_as_often_as_the_others():
    asked = []
    run_rounds(lambda side: asked.append(side) or 1.0, "abc", 3, never)
    assert "".join(asked) == "abcbcacab"


def test_each_side_keeps_its_own_time():
    taken = run_rounds(lambda side: 2.0 if side == "a" else 1.0, "ab", 2, never)
    assert [Pair(**one) for one in taken] == [Pair(2, 1), Pair(2, 1)]


def test_a_quiet_machine_needs_few_rounds():
    ratio = measured(clock(0, 1.25, noise=0.001))
    assert (ratio.rounds, ratio.outcome) == (MIN_ROUNDS, "measured")


def test_a_noisier_machine_takes_more_rounds():
    ratio = measured(clock(0, 1.25, noise=0.05))
    assert MIN_ROUNDS < ratio.rounds < 100
    assert ratio.outcome == "measured"


def test_rounds_that_do_not_suffice_are_too_noisy_to_tell():
    ratio = measured(clock(0, 1.25, noise=1.0), rounds=20)
    assert (ratio.rounds, ratio.outcome) == (20, "too noisy to tell")


@pytest.mark.parametrize("truth", [1.05, 1.1, 1.2, 1.5])
def test_the_interval_covers_the_truth(truth):
    ratios = [measured(clock(seed, truth, noise=0.1)) for seed in range(20)]
    assert sum(ratio.low <= truth <= ratio.high for ratio in ratios) >= 18


@pytest.mark.parametrize("truth", [1.05, 1.5])
def test_a_difference_is_seen(truth):
    assert all(measured(clock(seed, truth, noise=0.1)).low > 1.0 for seed in range(20))


def test_equal_steps_are_not_called_different():
    ratios = [measured(clock(seed, 1.0, noise=0.1)) for seed in range(200)]
    # Each look has 99.9 %: that one of 200 measurements is wrong happens, more do not.
    assert sum(not ratio.low <= 1.0 <= ratio.high for ratio in ratios) <= 1


def test_what_a_sample_begins_and_ends_with_widens_the_interval():
    found = ratio_estimate([Pair(2.0, 1.0)] * 12, calls=3)
    edges = EDGE_MS / 6 + EDGE_MS / 3
    assert (found.low, found.high) == pytest.approx((2 * (1 - edges), 2 * (1 + edges)))


def test_a_machine_that_slows_down_favours_neither_side():
    ratio = measured(clock(1, 1.0, noise=0.01, drift=0.002))
    assert ratio.low <= 1.0 <= ratio.high


def test_the_sentence_carries_interval_rounds_and_times():
    text = repr(ratio_of([Pair(2.5, 2.0)] * 12, calls=4, tolerance=0.02))
    interval = "99 % interval 1.247 to 1.253, 12 rounds of 4 calls"
    assert text == f"a took 1.25 times as long as b ({interval}, 2.5 against 2 ms)"


def test_the_sentence_says_that_it_was_too_noisy():
    assert repr(ratio_of([Pair(2, 1), Pair(9, 1)] * 6, calls=4, tolerance=0.02)).startswith("too noisy to tell: a took")


def test_a_note_does_not_spoil_a_ratio():
    found = ratio_of([Pair(2, 1)] * 12, 3, 0.02)
    ratio = with_disturbance(found, Disturbance("another process held the GPU, idle", False))
    assert (ratio.low, ratio.outcome) == (found.low, "measured")
    assert repr(ratio).endswith("; another process held the GPU, idle")


def test_nothing_can_be_claimed_from_a_spoilt_ratio():
    ratio = with_disturbance(
        ratio_of([Pair(2, 1)] * 12, 3, 0.02), Disturbance("another process kept the GPU busy", True)
    )
    assert (ratio.value, ratio.low, ratio.high, ratio.outcome) == (2.0, 0.0, inf, "too noisy to tell")


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_garbage_collector_is_off_and_then_as_it_was(was_enabled):
    before = gc.isenabled()
    try:
        (gc.enable if was_enabled else gc.disable)()
        with pytest.raises(KeyError), no_garbage_collection():
            inside = gc.isenabled()
            raise KeyError
        assert (inside, gc.isenabled()) == (False, was_enabled)
    finally:
        (gc.enable if before else gc.disable)()
