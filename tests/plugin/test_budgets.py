"""Verdicts over hand-made measurements; no torch, no pytest run."""

from __future__ import annotations

import pytest
from measurements import stepped, sync, whole

from pytest_gpusync.model.budgets import Budget, LineGroup, Over, judge


@pytest.mark.parametrize(("syncs", "outcome"), [(4, "passed"), (5, "passed"), (6, "failed")])
def test_max_admits_up_to_and_including_the_limit(syncs, outcome):
    assert judge(stepped([0, syncs]), Budget(max=5)).outcome == outcome


@pytest.mark.parametrize(("syncs", "outcome"), [(0, "failed"), (1, "passed"), (2, "failed")])
def test_exact_admits_only_the_number_itself(syncs, outcome):
    assert judge(stepped([0, syncs]), Budget(exact=1)).outcome == outcome


@pytest.mark.parametrize(("syncs", "outcome"), [(0, "passed"), (1, "failed")])
def test_a_budget_of_zero_is_a_budget(syncs, outcome):
    assert judge(whole(*[sync()] * syncs), Budget(max=0)).outcome == outcome


def test_the_worst_measured_step_decides():
    verdict = judge(stepped([0, 1, 7, 2]), Budget(max=5))
    assert (verdict.outcome, verdict.syncs, verdict.step) == ("failed", 7, 2)


def test_an_exact_budget_fails_on_the_step_farthest_from_it_in_either_direction():
    assert judge(stepped([0, 3, 0, 4]), Budget(exact=3)).syncs == 0


def test_warm_up_steps_are_left_out():
    assert judge(stepped([90, 80, 1, 1], warmup=2), Budget(max=1)).outcome == "passed"


def test_syncs_after_the_last_step_are_left_out():
    assert judge(stepped([0, 1, 1], extra=(sync(None),)), Budget(max=1)).outcome == "passed"


@pytest.mark.parametrize("excuse", [{"allowed": "early stop"}, {"background": True}])
def test_allowed_and_background_syncs_are_excused_and_listed(excuse):
    verdict = judge(whole(sync(line=3, **excuse)), Budget(max=0))
    assert (verdict.outcome, [line.line for line in verdict.uncounted]) == ("passed", [3])


@pytest.mark.parametrize(
    ("measurement", "reason"),
    [
        pytest.param(whole(problem="the recorder saw 0 of 1 planted sync"), "planted", id="a problem"),
        pytest.param(whole(complete=False), "before the region ended", id="incomplete"),
        pytest.param(stepped([1, 1], warmup=3), "warm-up takes 3", id="all warm-up"),
    ],
)
def test_what_was_not_measured_keeps_no_budget(measurement, reason):
    verdict = judge(measurement, Budget(max=100))
    assert (verdict.outcome, verdict.syncs) == ("not_measured", None)
    assert reason in verdict.sentence


@pytest.mark.parametrize(
    ("measurement", "budget", "sentence"),
    [
        pytest.param(
            stepped([0, *[7] * 18]),
            Budget(max=5),
            "Training step made 7 syncs, budget 5 (worst of 18 steps after warm-up)",
            id="steps",
        ),
        pytest.param(
            stepped([7, 7], warmup=0),
            Budget(max=5),
            "Training step made 7 syncs, budget 5 (worst of 2 steps)",
            id="no warm-up",
        ),
        pytest.param(
            stepped([0, 7]),
            Budget(max=5),
            "Training step made 7 syncs, budget 5 (1 step after warm-up)",
            id="one step",
        ),
        pytest.param(
            stepped([0, 0, 0, 2, 2, 1, 2], warmup=3),
            Budget(exact=2),
            "Training step made 1 sync, expected exactly 2 "
            "(worst of 4 steps after warm-up: step 6 of 7; 1 step made 1, 3 steps made 2)",
            id="varying",
        ),
        pytest.param(
            stepped([0, *range(9)]),
            Budget(max=5),
            "Training step made 8 syncs, budget 5 "
            "(worst of 9 steps after warm-up: step 10 of 10; the steps made 0 to 8, median 4)",
            id="varying much",
        ),
        pytest.param(
            stepped([0, *[0, 0, 0, 0, 1] * 2]),
            Budget(max=0, percentile=90),
            "Percentile 90 of the syncs of a training step was 1, budget 0 at percentile 90 "
            "(10 steps after warm-up: 8 steps made 0, 2 steps made 1)",
            id="percentile",
        ),
        pytest.param(
            stepped([0, *[0, 0, 0, 0, 1, 1] * 2]),
            Budget(max=0, over=Over(1, 5)),
            "2 of 5 consecutive training steps made more than 0 syncs, budget 0 but for 1 in 5 steps "
            "(steps 3 to 7 of 13; 12 steps after warm-up: 8 steps made 0, 4 steps made 1)",
            id="some steps",
        ),
        pytest.param(whole(*[sync()] * 7), Budget(max=5), "Test made 7 syncs, budget 5", id="whole test"),
        pytest.param(whole(sync()), Budget(max=0), "Test made 1 sync, budget 0", id="singular"),
        pytest.param(whole(), Budget(exact=1), "Test made 0 syncs, expected exactly 1", id="exact"),
    ],
)
def test_the_verdict_is_one_sentence(measurement, budget, sentence):
    assert judge(measurement, budget, subject="Test").sentence == sentence


def test_offenders_are_the_lines_of_the_worst_step_with_the_most_syncs_first():
    measurement = stepped(
        [0, 1, 1],
        extra=(sync(1, line=8), sync(2, line=9), sync(2, line=9), sync(2, line=10)),
    )
    verdict = judge(measurement, Budget(max=0))
    assert [line.line for line in verdict.offenders] == [9, 1, 10]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "neither"),
        ({"max": 1, "exact": 1}, "both"),
        ({"max": -1}, "-1"),
        ({"max": True}, "True"),
        ({"exact": 1.5}, "1.5"),
        ({"exact": 1, "percentile": 90}, "go with max"),
        ({"max": 1, "percentile": 0}, "above 0 and up to 100, not 0"),
        ({"max": 1, "percentile": 101}, "not 101"),
        ({"max": 1, "percentile": 90, "over": Over(1, 2)}, "either percentile or over"),
    ],
)
def test_a_budget_that_means_nothing_is_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        Budget(**arguments)


@pytest.mark.parametrize(("percentile", "outcome"), [(80, "passed"), (90, "failed"), (100, "failed")])
def test_a_percentile_leaves_out_the_worst_steps(percentile, outcome):
    measurement = stepped([0, *[0, 0, 0, 0, 1] * 2])
    assert judge(measurement, Budget(max=0, percentile=percentile)).outcome == outcome


@pytest.mark.parametrize(
    ("per_step", "outcome"),
    [
        ([0, 0, 1, 0, 0, 1], "passed"),
        ([0, 0, 1, 0, 1, 0], "failed"),
        ([1, 0, 0, 1, 0, 0, 1], "passed"),
        ([1], "passed"),
        ([1, 1], "failed"),
    ],
)
def test_some_steps_of_any_consecutive_ones_may_exceed_the_limit(per_step, outcome):
    assert judge(stepped([0, *per_step]), Budget(max=0, over=Over.parse("1 in 3"))).outcome == outcome


@pytest.mark.parametrize("text", ["", "1", "0 in 5", "5 in 5", "1/5", 3])
def test_a_share_of_the_steps_that_means_nothing_is_refused(text):
    with pytest.raises(ValueError, match="such as"):
        Over.parse(text)


@pytest.mark.parametrize(
    ("within", "syncs"),
    [
        ("train.py", 3),
        ("*.py", 4),
        ("models/*", 1),
        ("train.py:5", 1),
        ("train.py:1-5", 2),
        ("train.py::step", 2),
        ("train.py::Trainer.step", 1),
        ("other.py", 0),
    ],
)
def test_a_group_of_lines_has_a_budget_of_its_own(within, syncs):
    measurement = whole(
        sync(line=1, function="step"),
        sync(line=5, function="Trainer.step"),
        sync(line=9, function="log"),
        sync(path="models/net.py", function="forward"),
    )
    verdict = judge(measurement, Budget(max=0, within=LineGroup.parse(within)), subject="Test")
    assert verdict.syncs == syncs
    assert verdict.sentence == f"Test made {syncs} {'sync' if syncs == 1 else 'syncs'} in {within}, budget 0"
    assert len(verdict.offenders) == syncs


@pytest.mark.parametrize("text", ["", 3, None])
def test_a_group_of_lines_that_means_nothing_is_refused(text):
    with pytest.raises(ValueError, match="such as"):
        LineGroup.parse(text)
