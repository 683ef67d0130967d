"""The recorder cannot hang a process by the GIL under the allocator's lock; and a callback that took it there would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpusync.recorders import gate

pytestmark = [
    pytest.mark.skipif(not gate.is_available(), reason="there is no native gate"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="the allocator is a few lines of C, and there is no gcc"),
]

HERE = Path(__file__).parent


def hazard(*arguments):
    return subprocess.run(
        [sys.executable, str(HERE / "hazard.py"), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


def test_threads_that_free_under_the_allocators_lock_are_counted_and_hang_nobody():
    done = hazard("3")
    assert done.returncode == 0, done.stdout


def test_a_callback_that_took_the_gil_there_would_hang():
    for _ in range(3):  # whether the threads meet is chance, and less likely on a busy machine
        done = hazard("5", "--into-python")
        if "Timeout" in done.stdout:
            break
    assert done.returncode != 0
    assert "Timeout" in done.stdout
