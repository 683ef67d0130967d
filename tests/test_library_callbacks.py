"""The methods that libraries call in every step: what the generator reads out of a small package, and what the linter
does with the table that it made.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest
from gpusync_lint.catalogue.library_callbacks import per_step
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.model.levels import Heat
from gpusync_lint.run import engine

ROOT = Path(__file__).parents[1]
PACKAGE = """
class Loop:
    def fit(self):
        self.prepare()
        for epoch in range(self.epochs):
            self.start_epoch()
            for batch in self.batches:
                self.step(batch)
                self.handler.on_step(batch)
                if self.count % 10 == 0:
                    self.save()
                if self.control.should_log:
                    self.log()
    def prepare(self): ...
    def start_epoch(self): ...
    def step(self, batch):
        if batch is None:
            raise ValueError(self.describe(batch))
        self.call_hook("after_step", "kind")
        return self.loss(batch)
    def loss(self, batch): ...
    def save(self): ...
    def log(self): ...
    def describe(self, batch): ...
class Callback:
    def on_step(self, batch): ...
    def on_epoch(self): ...
class Module:
    def after_step(self): ...
    def kind_of(self): ...
class Special(Loop):
    def loss(self, batch):
        return self.extra(batch)
    def extra(self, batch): ...
"""


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("library_callbacks", ROOT / "benchmarks" / "library_callbacks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_generator_follows_the_calls_of_the_innermost_loop(generator):
    library = generator.Library(
        "small",
        ("small/",),
        (generator.Entry("Loop", "fit", in_loop=True),),
        ("Loop", "Callback", "Module"),
        {"handler": "Callback"},
        ("Module",),
    )
    assert generator.per_step(library, [ast.parse(PACKAGE)]) == {
        "classes": {"Loop": ["loss", "step"], "Callback": ["on_step"], "Module": ["after_step"]},
        "derived": {"Special": "Loop"},
    }


def test_the_loops_in_the_outermost_one_belong_to_a_step(generator):
    library = generator.Library("small", ("",), (generator.Entry("Loop", "fit", in_outer_loop=True),), ("Loop",))
    assert generator.per_step(library, [ast.parse(PACKAGE)])["classes"] == {"Loop": ["loss", "start_epoch", "step"]}


@pytest.mark.parametrize(("default", "found"), [(1, ["advance"]), (50, [])])
def test_what_runs_every_so_many_steps_runs_in_every_step_if_the_number_is_1_by_default(generator, default, found):
    package = (
        f"class Config:\n    frequency: int = {default}\n"
        "class Loop:\n    def step(self, config):\n"
        "        if self.count % config.frequency == 0:\n            self.advance()\n"
        "    def advance(self): ...\n"
    )
    library = generator.Library("small", ("",), (generator.Entry("Loop", "step"),), ("Loop",))
    assert generator.per_step(library, [ast.parse(package)])["classes"] == {"Loop": [*found, "step"]}


def test_a_class_derived_from_one_in_the_list_has_methods_of_its_own(generator):
    library = generator.Library("small", ("",), (generator.Entry("Special", "step"),), ("Loop", "Special"))
    assert generator.per_step(library, [ast.parse(PACKAGE)])["classes"] == {
        "Loop": [],
        "Special": ["extra", "loss", "step"],
    }


@pytest.mark.parametrize(
    ("base", "method"),
    [
        ("Trainer", "_prepare_inputs"),
        ("Seq2SeqTrainer", "prediction_step"),
        ("GRPOTrainer", "_generate_and_score_completions"),
        ("TrainerCallback", "on_optimizer_step"),
        ("LightningModule", "optimizer_step"),
        ("LightningModule", "on_before_zero_grad"),
        ("Callback", "on_before_backward"),
        ("BaseCallback", "_on_step"),
        ("ActorCriticPolicy", "evaluate_actions"),
        ("PPO", "collect_rollouts"),
        ("ReplayBuffer", "sample"),
        ("VecEnvWrapper", "step_wait"),
        ("ObservationWrapper", "observation"),
        ("DDIMScheduler", "step"),
        ("Trainer", "get_batch_samples"),
        ("LightningModule", "lr_scheduler_step"),
        ("LightningModule", "optimizer_zero_grad"),
        ("LightningModule", "on_before_batch_transfer"),
        ("CPOTrainer", "concatenated_forward"),
        ("Accuracy", "update"),
        ("OptimizerParamsHandler", "__call__"),
        ("GeneralTracker", "log"),
    ],
)
def test_the_table_has_what_a_library_calls_in_every_step(base, method):
    assert method in per_step(base)


@pytest.mark.parametrize(
    ("base", "method"),
    [
        ("Trainer", "save_model"),
        ("Trainer", "evaluate"),
        ("Callback", "on_train_epoch_end"),
        ("BaseAlgorithm", "save"),
        ("Env", "reset"),
        ("SchedulerMixin", "set_timesteps"),
    ],
)
def test_the_table_lacks_what_runs_seldom(base, method):
    assert method not in per_step(base)


def test_an_override_runs_in_every_step():
    code = (
        "import torch\nfrom stable_baselines3 import PPO\nclass Mine(PPO):\n"
        "    def collect_rollouts(self, *args):\n"
        "        x = torch.zeros(3, device='cuda')\n        print(x.sum().item())\n"
        "    def save(self, path):\n        print(torch.zeros(3, device='cuda').sum().item())\n"
    )
    findings = engine.analyze([Source("mine.py", code)], EngineSettings()).findings
    assert [one.span.line for one in findings if one.heat is Heat.STEP] == [6]
