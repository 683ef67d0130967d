"""For the experiments: what each measured, printed at the end of the session, and the device it runs on.

Every experiment holds code to what it is about, and fails where the code has the hazard that it is about. To see that,
plant the hazards: ``PLANT_HAZARDS=1 pytest examples/experiments``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

FIGURES: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave a budget for every test aside: what waits cost is what these measure."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("gpu_sync_budget") is None:
            item.add_marker(pytest.mark.gpu_sync_budget(max=None))


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[object], None]:
    """Keep a figure of this experiment for the end of the session: ``figure(f"{ratio}")``."""

    def keep(text: object) -> None:
        request.config.stash.setdefault(FIGURES, []).append(f"{request.node.name}: {text}")

    return keep


@pytest.fixture
def simulated() -> bool:
    """Whether the experiment runs on the simulated device, where work takes the CPU and small sizes do."""
    from pytest_gpusync.simulated import is_on

    return is_on()


@pytest.fixture
def planted() -> bool:
    """Whether the code under test is to have the hazard that the test is about."""
    return os.environ.get("PLANT_HAZARDS", "0") not in ("", "0")


@pytest.fixture
def two_gpus() -> None:
    """Skip where there are not two GPUs."""
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures."""
    found = terminalreporter.config.stash.get(FIGURES, [])
    if found:
        terminalreporter.section("figures")
        for line in found:
            terminalreporter.write_line(line)
