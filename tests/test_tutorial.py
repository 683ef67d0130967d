"""The tutorial, followed to the letter: its changes apply, and its commands print what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpusync.machine import devices

pytest.importorskip("torch")

ROOT = Path(__file__).parents[1]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
COMMANDS = {"gpusync": ("-m", "pytest_gpusync"), "pytest": ("-m", "pytest", "-p", "no:cacheprovider", "--color=no")}


@pytest.fixture
def do(tmp_path, plugin_arguments):
    if devices.detect().kind == "cuda":
        pytest.skip("the simulated device needs a machine without a GPU, or CUDA_VISIBLE_DEVICES= (empty)")
    for name, copy in re.findall(r"examples/char_gpt/(\w+\.py)(?: tutorial/(\w+\.py))?", TUTORIAL):
        if "train_fast" not in name:
            shutil.copy(ROOT / "examples" / "char_gpt" / name, tmp_path / (copy or name))
    paths = [str(ROOT), str(ROOT / "lint"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}

    def do(command):
        name, *arguments = command.split()
        more = plugin_arguments if name == "pytest" else []
        done = subprocess.run(
            [sys.executable, *COMMANDS[name], *more, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.stdout + done.stderr

    return do


@pytest.fixture
def plugin_arguments():
    from importlib.metadata import entry_points

    is_installed = any(point.value == "pytest_gpusync.plugin" for point in entry_points(group="pytest11"))
    return [] if is_installed else ["-p", "pytest_gpusync.plugin"]


def without_columns(text):
    """Python tells where in an f-string something stands from 3.12 on only."""
    return re.sub(r"^(\S+\.py:\d+):\d+:", r"\1:", text, flags=re.MULTILINE)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git, to apply the changes")
def test_the_tutorial_does_what_it_says(do, tmp_path):
    printed = ""
    for kind, block in re.findall(r"^```(\w+)\n(.*?)^```$", TUTORIAL, re.MULTILINE | re.DOTALL):
        if kind == "console":
            printed = "".join(do(command) for command in block.splitlines())
        elif kind == "text":
            shown = without_columns(printed)
            assert [line for line in without_columns(block).splitlines() if line.strip() not in shown] == [], printed
        elif kind == "diff":
            subprocess.run(["git", "apply", "--unidiff-zero", "-"], cwd=tmp_path, input=block, text=True, check=True)
        elif kind == "python":
            (tmp_path / "test_training.py").write_text(block)
