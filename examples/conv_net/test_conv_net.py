"""The fixed step never waits, the original exceeds its budget, and both reach the same results."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
from pytest_gpusync import BudgetExceeded

STEPS, WARMUP = 16, 2
BATCH = 32
TOO_MANY = f"Training step made 9 syncs, budget 5 (worst of {STEPS - WARMUP} steps after warm-up)"


def batches(script, **options):
    return script.loader(script.images(STEPS * BATCH, seed=0), BATCH, seed=0, **options)


def test_fast_step_never_waits(fast, gpu_train):
    trainer = fast.Trainer("cuda")
    run = gpu_train(trainer.step, batches(fast, pin_memory=True), steps=STEPS, warmup=WARMUP)
    run.assert_syncs(max=0)


@pytest.mark.xfail(strict=True, raises=BudgetExceeded, reason=TOO_MANY)
def test_slow_step_keeps_the_budget(slow, gpu_train):
    trainer = slow.Trainer("cuda")
    run = gpu_train(trainer.step, batches(slow), steps=STEPS, warmup=WARMUP)
    run.assert_syncs(max=5)


@pytest.mark.gpu_sync_budget(max=1)
def test_fast_training_waits_once_an_epoch(fast):
    fast.train(epochs=2, device="cuda", count=8 * BATCH, batch_size=BATCH)


def test_both_reach_the_same_results(slow, fast, gpu_sync):
    with gpu_sync.record(), gpu_sync.allow("the slow training is the baseline"):
        one = slow.train(epochs=2, device="cuda", count=8 * BATCH, batch_size=BATCH)
        other = fast.train(epochs=2, device="cuda", count=8 * BATCH, batch_size=BATCH)
    assert one[-1]["accuracy"] > 0.5
    for before, after in zip(one, other, strict=True):
        assert after["loss"] == pytest.approx(before["loss"], rel=1e-3)
        # Rounding may change the class of an image or two.
        assert after["accuracy"] == pytest.approx(before["accuracy"], abs=2 / (8 * BATCH))
        assert [sum(row) for row in after["confusion"]] == [sum(row) for row in before["confusion"]]


def test_the_linter_names_the_lines_that_wait_and_no_others(slow, gpu_sync, lint, lines_of_steps):
    with gpu_sync.record() as region, gpu_sync.allow("the syncs are what is compared"):
        slow.train(epochs=1, device="cuda", count=8 * BATCH, batch_size=BATCH)
    assert lint(Path(__file__).parent) == lines_of_steps(region.result())


def test_the_linter_finds_nothing_in_the_fast_script_alone(fast, lint):
    assert lint(fast.__file__) == set()
