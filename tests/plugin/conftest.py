from __future__ import annotations

import os
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.run.engine import analyze

from pytest_gpusync.machine import devices
from pytest_gpusync.machine.devices import Device

if TYPE_CHECKING:
    from collections.abc import Callable

# pytester forgets the modules that an inner session imported. Those that cannot be imported twice, or take long, are
# imported before; the linter loads its own when it first has a barrier to judge, optimizers load torch._dynamo.
with suppress(ImportError):
    import torch._dynamo  # noqa: F401

    import pytest_gpusync.simulated.device
import pytest_gpusync.plugin.measured_test
import pytest_gpusync.plugin.session
import pytest_gpusync.reporting.summary  # noqa: F401

analyze([Source("a.py", "import torch\nprint(torch.ones(3, device='cuda').sum().item())\n")], EngineSettings())


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, on which the simulated device is chosen; skips the test on one that has a GPU."""
    if devices.detect().kind == "cuda":
        pytest.skip("the simulated device needs a machine without a GPU, or CUDA_VISIBLE_DEVICES= (empty)")
    monkeypatch.setattr(devices, "detect", lambda: Device("none", reason="this machine has none"))


@pytest.fixture(scope="session")
def plugin() -> list[str]:
    """Arguments that load the plugin; none where it is installed, and pytest finds it by itself."""
    is_installed = any(point.value == "pytest_gpusync.plugin" for point in entry_points(group="pytest11"))
    return [] if is_installed else ["-p", "pytest_gpusync.plugin"]


@pytest.fixture
def run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, plugin: list[str]
) -> Callable[..., pytest.RunResult]:
    """Run pytest with the plugin over files given as keyword arguments, in this process."""
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: str, **files: str) -> pytest.RunResult:
        if files:
            pytester.makepyfile(**files)
        return pytester.runpytest_inprocess(*plugin, "-p", "no:cacheprovider", *arguments, no_reraise_ctrlc=True)

    return run


@pytest.fixture
def run_apart(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, plugin: list[str]
) -> Callable[..., pytest.RunResult]:
    """Run pytest with the plugin over files given as keyword arguments, in a process of its own."""
    root = Path(__file__).parents[2]
    # Where these tests themselves run in workers, the inner session is no worker.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), str(root / "lint"), os.environ.get("PYTHONPATH", "")]))

    def run(*arguments: str, **files: str) -> pytest.RunResult:
        pytester.makepyfile(**files)
        return pytester.runpytest_subprocess(*plugin, "-p", "no:cacheprovider", *arguments)

    return run
