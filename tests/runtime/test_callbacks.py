"""Callbacks in other people's training loops: what is a step, what counts, and what becomes of a broken budget."""

from __future__ import annotations

import json
import sys
import types
import warnings
from types import SimpleNamespace

import pytest

from pytest_gpusync.callbacks.guard import TrainingGuard
from pytest_gpusync.machine import devices
from pytest_gpusync.model.budgets import BudgetExceeded, NotMeasured

torch = pytest.importorskip("torch")


def guard(max=None, exact=None, *, steps=5, warmup=1, action="raise", require=False, report=None):
    return TrainingGuard(
        max, exact, steps=steps, warmup=warmup, action=action, require=require, report=report, source="step"
    )


def train(held, scripted, syncs):
    held.begin("training")
    for made in syncs:
        for _ in range(made):
            scripted.sync()
        held.end_step()
    held.end()


@pytest.mark.parametrize(("most", "outcome"), [(1, "failed"), (2, "passed"), (3, "passed")])
def test_the_worst_step_after_warm_up_is_held_to_the_budget(scripted, most, outcome):
    held = guard(most, action="warn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(held, scripted, [9, 1, 2, 1])
    assert held.verdict.outcome == outcome


def test_a_broken_budget_ends_the_training_with_the_lines(scripted):
    with pytest.raises(BudgetExceeded, match=r"Training step made 2 syncs, budget 1[\s\S]*test_callbacks\.py:"):
        train(guard(1), scripted, [0, 2, 2])


def test_a_broken_budget_can_be_a_warning(scripted):
    with pytest.warns(RuntimeWarning, match="Training step made 2 syncs, budget 1"):
        train(guard(1, action="warn"), scripted, [0, 2, 2])


def test_the_measurement_ends_with_the_last_step_that_is_wanted(scripted):
    held = guard(1, steps=2)
    held.begin("training")
    for _ in range(3):
        held.end_step()
    assert held.verdict.outcome == "passed"
    assert scripted.running == 0
    scripted.sync()
    held.end_step()
    held.end()
    assert held.measurement.steps == 3


def test_what_is_excused_does_not_count(scripted):
    held = guard(0)
    held.begin("training")
    for _ in range(3):
        held.end_step()
        held.allow("validation")
        scripted.sync()
        held.resume()
    held.end()
    assert held.verdict.outcome == "passed"
    assert {sync.allowed for sync in held.measurement.all_syncs} == {"validation"}


def test_without_a_budget_the_training_is_measured_only(scripted):
    held = guard()
    train(held, scripted, [1, 1, 1])
    assert (held.verdict, held.measurement.steps) == (None, 3)


@pytest.mark.parametrize(("require", "outcome"), [(False, pytest.warns), (True, pytest.raises)])
def test_where_nothing_can_be_measured_the_training_goes_on_unless_it_is_required(monkeypatch, require, outcome):
    monkeypatch.setattr(devices, "detect", lambda: devices.Device("none", reason="no driver"))
    held = guard(1, require=require)
    with outcome(NotMeasured if require else RuntimeWarning, match="Not measured: no GPU to measure: no driver"):
        held.begin("training")


def test_a_training_without_the_device_keeps_no_budget(scripted, monkeypatch):
    scripted.idle = True
    with pytest.raises(NotMeasured, match="nothing of the training ran on the GPU"):
        train(guard(1, require=True), scripted, [0, 0, 0])


@pytest.mark.parametrize(("ranks", "name"), [({}, "run.json"), ({"RANK": "3", "WORLD_SIZE": "4"}, "run-rank3.json")])
def test_each_rank_writes_a_report_of_its_own(scripted, monkeypatch, tmp_path, ranks, name):
    for key, value in ranks.items():
        monkeypatch.setenv(key, value)
    train(guard(2, report=tmp_path / "run.json"), scripted, [1, 1, 1])
    [region] = json.loads((tmp_path / name).read_text())["regions"]
    assert (region["name"], region["outcome"], region["steps"]) == ("training", "passed", 3)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [({"action": "explode"}, "action"), ({"steps": 0}, "steps"), ({"warmup": -1}, "warmup"), ({"exact": 1}, "both")],
)
def test_what_makes_no_sense_is_refused_at_once(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        guard(1, **options)


@pytest.fixture
def stand_in(monkeypatch):
    """Put a made-up module in the place of a framework, and forget the callback that was made of it."""

    def stand_in(name, **names):
        module = types.ModuleType(name)
        vars(module).update(names)
        parts = name.split(".")
        for end in range(1, len(parts)):
            parent = types.ModuleType(".".join(parts[:end]))
            parent.__path__ = []
            monkeypatch.setitem(sys.modules, parent.__name__, parent)
        monkeypatch.setitem(sys.modules, name, module)
        for framework in ("lightning", "transformers"):
            monkeypatch.delitem(sys.modules, f"pytest_gpusync.callbacks.{framework}", raising=False)

    return stand_in


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def lightning(request, stand_in, monkeypatch):
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    base = type("Callback", (), {})
    stand_in(f"{request.param}.callbacks", Callback=base)
    from pytest_gpusync.callbacks.lightning import SyncBudget

    assert issubclass(SyncBudget, base)
    return SyncBudget


def test_a_batch_of_lightning_is_a_step_and_validation_is_excused(lightning, scripted):
    callback = lightning(max=1, warmup=0)
    callback.on_train_start(None, object())
    for number in range(4):
        scripted.sync()
        callback.on_train_batch_end(None, None, None, None, number)
        callback.on_validation_start(None, None)
        scripted.sync()
        callback.on_validation_end(None, None)
    callback.on_train_end(None, None)
    assert callback.measurement.steps == 4
    assert callback.verdict.outcome == "passed"


def test_a_lightning_training_that_failed_is_not_judged(lightning, scripted):
    callback = lightning(max=0)
    callback.on_train_start(None, object())
    scripted.sync()
    callback.on_exception(None, None, ValueError())
    assert (callback.verdict, scripted.running) == (None, 0)


@pytest.fixture
def trainer_callback(stand_in):
    stand_in("transformers", TrainerCallback=type("TrainerCallback", (), {}))
    from pytest_gpusync.callbacks.transformers import SyncBudget

    return SyncBudget


@pytest.mark.parametrize("logs", [False, True])
def test_a_trainers_step_counts_with_its_logging_and_without_evaluation(trainer_callback, scripted, logs):
    callback = trainer_callback(max=1 + logs, warmup=0)
    control = SimpleNamespace(should_log=logs, should_evaluate=True, should_save=False)
    callback.on_train_begin(None, None, control, model=object())
    for _ in range(3):
        callback.on_step_begin(None, None, control)
        scripted.sync()
        callback.on_step_end(None, None, control)
        if logs:
            scripted.sync()
            callback.on_log(None, None, control)
        for _ in range(5):
            scripted.sync()
    callback.on_train_end(None, None, control)
    assert callback.verdict.outcome == "passed"
    assert callback.verdict.syncs == 1 + logs


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_a_real_lightning_training_is_held_to_its_budget(package, run_program):
    pytest.importorskip(package.partition(".")[0])
    run_program(f"""
        import {package} as L, torch
        from pytest_gpusync import simulated_cuda
        from pytest_gpusync import BudgetExceeded
        from pytest_gpusync.callbacks.lightning import SyncBudget

        class Model(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)
            def training_step(self, batch, number):
                loss = self.layer(batch.to("cuda")).sum()
                loss.item(), loss.item()
                return loss
            def validation_step(self, batch, number):
                for _ in range(9):
                    self.layer(batch.to("cuda")).sum().item()
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        class OnCuda(L.Callback):
            def on_train_start(self, trainer, module):
                module.cuda()
            def on_validation_start(self, trainer, module):
                module.cuda()

        def fit(callback):
            trainer = L.Trainer(
                max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False, callbacks=[OnCuda(), callback],
            )
            data = torch.utils.data.DataLoader(torch.ones(8, 4))
            trainer.fit(Model(), data, data)
            return callback

        with simulated_cuda():
            kept = fit(SyncBudget(max=9))
            assert kept.verdict.outcome == "passed", kept.verdict
            assert kept.measurement.steps == 16, kept.measurement.steps
            assert kept.verdict.syncs < 9, kept.verdict
            try:
                fit(SyncBudget(max=1))
            except BudgetExceeded as error:
                print("broken:", error)
        """)


def test_a_real_training_of_transformers_is_held_to_its_budget(run_program):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    run_program("""
        import torch
        from transformers import Trainer, TrainingArguments
        from pytest_gpusync import simulated_cuda
        from pytest_gpusync import BudgetExceeded
        from pytest_gpusync.callbacks.transformers import SyncBudget

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)
            def forward(self, x):
                loss = self.layer(x).sum()
                loss.item(), loss.item()
                return {"loss": loss}

        def train(callback):
            arguments = TrainingArguments(
                output_dir="out", max_steps=8, report_to=[], logging_steps=4, save_strategy="no",
                eval_strategy="steps", eval_steps=2, disable_tqdm=True, per_device_train_batch_size=1,
            )
            data = [{"x": torch.ones(4)}] * 16
            Trainer(model=Model(), args=arguments, train_dataset=data, eval_dataset=data, callbacks=[callback]).train()
            return callback

        with simulated_cuda():
            kept = train(SyncBudget(max=20))
            assert kept.verdict.outcome == "passed", kept.verdict
            assert kept.measurement.steps == 8
            try:
                train(SyncBudget(max=1))
            except BudgetExceeded as error:
                print("broken:", error)
        """)


@pytest.fixture
def run_program(tmp_path, monkeypatch):
    """Run a program that breaks a budget, in a process of its own."""
    import os
    import subprocess
    import textwrap
    from pathlib import Path

    if devices.detect().kind == "cuda":
        pytest.skip("the simulated device needs a machine without a GPU, or CUDA_VISIBLE_DEVICES= (empty)")
    root = Path(__file__).parents[2]

    def run(source):
        (tmp_path / "program.py").write_text(textwrap.dedent(source))
        paths = [str(root), str(root / "lint"), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [sys.executable, "program.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        assert "broken: Training step made" in done.stdout
        assert "program.py:" in done.stdout

    return run
