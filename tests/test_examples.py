"""The examples as a user runs them: in a session of their own, since the simulated device is on for a whole session."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(find_spec("torch") is None, reason="the examples need torch")
def test_the_examples_keep_their_budgets_or_break_them_as_expected(tmp_path):
    installed = any(point.value == "pytest_gpusync.plugin" for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "pytest_gpusync.plugin"]
    command = [sys.executable, "-m", "pytest", *plugin, "--gpu-sync-budget=5", "-p", "no:cacheprovider"]
    # From another folder: what is tested is the installed package, not the one in the working directory.
    finished = subprocess.run(
        [*command, "-c", str(ROOT / "pyproject.toml"), str(ROOT / "examples")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "10 passed, 2 xfailed" in finished.stdout.splitlines()[-1]
