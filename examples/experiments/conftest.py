"""Fixtures of the experiments: results printed at the end of the session, and the device that they run on.

Each experiment fails if the code under test has the hazard that the experiment is about. To see it fail, plant the
hazards: ``PLANT_HAZARDS=1 pytest examples/experiments``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Exempt the experiments from a budget for all tests: they measure what waits cost."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("gpu_sync_budget") is None:
            item.add_marker(pytest.mark.gpu_sync_budget(max=None))


@pytest.fixture
def report_result(request: pytest.FixtureRequest) -> Callable[[object], None]:
    """Return a function that stores a result to be printed at the end of the session: ``report_result(ratio)``."""

    def store(text: object) -> None:
        request.config.stash.setdefault(RESULTS, []).append(f"{request.node.name}: {text}")
        request.node.user_properties.append(("result", str(text)))

    return store


@pytest.fixture
def simulated() -> bool:
    """Whether the experiment runs on the simulated device, where kernels use CPU time and small sizes are enough."""
    from pytest_gpusync.simulated import is_on

    return is_on()


@pytest.fixture
def planted() -> bool:
    """Whether the code under test has the hazard that the test is about."""
    return os.environ.get("PLANT_HAZARDS", "0") not in ("", "0")


@pytest.fixture
def two_gpus() -> None:
    """Skip the test unless there are two GPUs."""
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs; --gpu-simulated-devices=2 simulates them for tests that only count")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the results."""
    results = terminalreporter.config.stash.get(RESULTS, [])
    if results:
        terminalreporter.section("results")
        for line in results:
            terminalreporter.write_line(line)
