"""The fixed script keeps its budget, the original exceeds it, and both learn the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
from pytest_gpusync import BudgetExceeded

STEPS = 20
TOO_MANY = "Training step made 10 syncs, budget 5 (worst of 19 steps after warm-up)"


@pytest.mark.gpu_sync_budget(max=1)
def test_fast_training_waits_at_most_once_a_step(fast):
    fast.train(STEPS, "cuda")


@pytest.mark.xfail(strict=True, raises=BudgetExceeded, reason=TOO_MANY)
@pytest.mark.gpu_sync_budget(max=5)
def test_slow_training_keeps_the_budget(slow):
    slow.train(STEPS, "cuda")


@pytest.mark.gpu_sync_budget(exact=10)
def test_the_reason_given_for_the_slow_training_is_exact(slow, gpu_sync):
    with pytest.raises(BudgetExceeded, match=re.escape(TOO_MANY)), gpu_sync.budget(max=5):
        slow.train(STEPS, "cuda")


def test_both_learn_the_same_to_rounding(slow, fast, gpu_sync):
    with gpu_sync.record(), gpu_sync.allow("the slow training is the baseline"):
        one, other = slow.train(STEPS, "cuda"), fast.train(STEPS, "cuda")
    assert one["loss"][-1] < one["loss"][0]
    for name, values in one.items():
        assert other[name] == pytest.approx(values, rel=1e-3, abs=1e-4), name


def test_the_linter_names_the_lines_that_wait_and_no_others(slow, gpu_sync, lint, lines_of_steps):
    with gpu_sync.record() as region, gpu_sync.allow("the syncs are what is compared"):
        slow.train(STEPS, "cuda")
    assert lint(Path(__file__).parent) == lines_of_steps(region.result())


def test_the_linter_finds_nothing_in_the_fast_script_alone(fast, lint):
    assert lint(fast.__file__) == set()
