"""Where steps end, from the calls of one or several optimizers."""

from __future__ import annotations

import pytest

from pytest_gpusync.measure.step_boundaries import OptimizerNumbers, boundaries, steps, within_trainings


@pytest.mark.parametrize(
    ("calls", "ends"),
    [
        pytest.param("", [], id="none"),
        pytest.param("A", [0], id="one"),
        pytest.param("AAA", [0, 1, 2], id="one-optimizer"),
        pytest.param("DGDGDG", [1, 3, 5], id="gan-two-per-iteration"),
        pytest.param("DGDG D", [1, 3, 4], id="gan-stopped-halfway"),
        pytest.param("DDDGDDDG", [0, 1, 3, 4, 5, 7], id="several-discriminator-steps"),
        pytest.param("ABCABC", [2, 5], id="one-per-parameter-group"),
        pytest.param("AABB", [0, 1, 2, 3], id="one-training-after-another"),
        pytest.param("ABABCDCD", [1, 3, 5, 7], id="two-trainings-with-two-optimizers"),
        pytest.param("DG", [1], id="gan-of-one-iteration"),
    ],
)
def test_a_step_lasts_until_one_of_its_optimizers_steps_again(calls, ends):
    marks = [(position, ord(name)) for position, name in enumerate(calls.replace(" ", ""))]
    assert boundaries(marks) == ends


@pytest.mark.parametrize(
    ("calls", "starts"),
    [
        pytest.param("AAA", "...", id="one-training"),
        pytest.param("AABB", "..s.", id="two-trainings"),
        pytest.param("AABBCC", "..s.s.", id="three-trainings"),
        pytest.param("DDDGDDDG", "......", id="several-discriminator-steps"),
        pytest.param("AABBAA", "....", id="optimizers-in-turn"),
        pytest.param("ABCD", ".", id="a-new-optimizer-each-time"),
    ],
)
def test_another_training_begins_with_an_optimizer_after_those_that_are_not_called_again(calls, starts):
    marks = [(position, ord(name)) for position, name in enumerate(calls)]
    assert [start for _, start in steps(marks)] == [letter == "s" for letter in starts]


@pytest.mark.parametrize(
    ("starts", "warmup", "counts"),
    [
        pytest.param("....", 1, "++++", id="one-training"),
        pytest.param("...s..", 1, "+++-++", id="the-first-step-of-the-second"),
        pytest.param("...s..", 2, "+++--+", id="as-many-as-warm-up"),
        pytest.param("...s..", 0, "++++++", id="no-warm-up"),
        pytest.param("...ss.", 2, "+++---", id="a-training-of-one-step"),
        pytest.param(".sss", 1, "++++", id="nothing-would-be-left"),
    ],
)
def test_the_first_steps_of_a_later_training_are_its_warm_up(starts, warmup, counts):
    assert within_trainings([letter == "s" for letter in starts], warmup) == [letter == "+" for letter in counts]


def test_the_number_of_an_optimizer_is_not_used_again():
    class Optimizer:
        pass

    numbers, kept = OptimizerNumbers(), Optimizer()
    seen = [numbers.number(Optimizer()) for _ in range(100)]
    assert len(set(seen)) == 100
    assert numbers.number(kept) == numbers.number(kept)
