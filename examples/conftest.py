"""Fixtures for the tests of each example: its two scripts as modules, and the linter's findings in them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from pytest_gpusync import Measurement


@pytest.fixture
def slow(request: pytest.FixtureRequest) -> ModuleType:
    """``train_slow.py`` of the example that the test belongs to."""
    return _script(request.path.with_name("train_slow.py"))


@pytest.fixture
def fast(request: pytest.FixtureRequest) -> ModuleType:
    """``train_fast.py`` of the example that the test belongs to."""
    return _script(request.path.with_name("train_fast.py"))


@pytest.fixture
def lint() -> Callable[..., set[tuple[str, int]]]:
    """Return a function that lints files or folders and returns the file name and line of each warning."""

    def run(*paths: str | Path) -> set[tuple[str, int]]:
        command = [sys.executable, "-m", "pytest_gpusync", "lint", "--output-format=json", "--exit-zero"]
        finished = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
        report = json.loads(finished.stdout)
        assert report["errors"] == []
        hot = [finding for finding in report["findings"] if finding["level"] == "warning"]
        return {(Path(finding["path"]).name, finding["line"]) for finding in hot}

    return run


@pytest.fixture
def lines_of_steps() -> Callable[[Measurement], set[tuple[str, int]]]:
    """Return a function that returns the file name and line of each sync in a measured step, in the form of `lint`."""

    def lines(seen: Measurement) -> set[tuple[str, int]]:
        in_steps = [sync for sync in seen.all_syncs if sync.step is not None and sync.step >= seen.warmup]
        return {(Path(sync.site.path).name, sync.site.line) for sync in in_steps}

    return lines


def _script(path: Path) -> ModuleType:
    # Every example has a train_slow and a train_fast, so the module names include the example's name.
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
