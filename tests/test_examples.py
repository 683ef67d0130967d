"""The examples as a user runs them: in a session of their own, since the simulated device is on for a whole session."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="the examples need torch")


def run(folder, *arguments, status=0, **environment):
    """Run pytest over parts of examples/ from another folder: what is tested is the installed package, not this one."""
    installed = any(point.value == "pytest_gpusync.plugin" for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "pytest_gpusync.plugin"]
    command = [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    everything = {**os.environ, **environment}
    finished = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, env=everything)
    assert finished.returncode == status, finished.stdout + finished.stderr
    return finished.stdout.splitlines()


def test_the_trainings_keep_their_budgets_or_break_them_as_expected(tmp_path):
    trainings = [str(ROOT / "examples" / name) for name in ("char_gpt", "conv_net")]
    assert "10 passed, 2 xfailed" in run(tmp_path, "--gpu-sync-budget=5", *trainings)[-1]


def test_a_loss_is_read_a_step_later_and_one_that_has_not_arrived_is_a_race(tmp_path):
    report = run(tmp_path, "--gpu-device=simulated", "-rx", str(ROOT / "examples" / "deferred_read"))
    assert "1 passed, 1 xfailed" in report[-1]


SIMULATED = ("--gpu-device=simulated", "--gpu-simulated-devices=2")
EXPERIMENTS = (*SIMULATED, "-k", "not ray", str(ROOT / "examples" / "experiments"))


def test_the_experiments_that_count_hold_without_a_gpu(tmp_path):
    assert "37 passed, 28 skipped" in run(tmp_path, *EXPERIMENTS)[-1]


def test_each_experiment_fails_where_its_hazard_is_planted(tmp_path):
    assert "37 failed, 28 skipped" in run(tmp_path, *EXPERIMENTS, status=1, PLANT_HAZARDS="1")[-1]
