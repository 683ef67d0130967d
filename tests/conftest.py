"""The tests of this project start with the simulated device off, whatever the session that runs them does."""

from __future__ import annotations

import sys

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def simulated_device_off():
    """Take the session's own simulated device away for one test: the examples, run beside these tests, switch it on."""
    simulated = sys.modules.get("pytest_gpusync.simulated")
    held = simulated._users if simulated is not None else 0
    for _ in range(held):
        simulated._leave()
    yield
    for _ in range(held):
        simulated._enter(1)
