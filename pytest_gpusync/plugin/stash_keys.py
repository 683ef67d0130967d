"""Where the plugin keeps its objects on pytest's configuration and items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpusync.plugin.baseline_check import BaselineResult
    from pytest_gpusync.plugin.measured_test import MeasuredTest
    from pytest_gpusync.plugin.session import GpuSession
    from pytest_gpusync.source.line_coverage import LineCoverage

SESSION: pytest.StashKey[GpuSession] = pytest.StashKey()
MEASURED_TEST: pytest.StashKey[MeasuredTest] = pytest.StashKey()
PREPARED: pytest.StashKey[bool] = pytest.StashKey()
DESELECTED: pytest.StashKey[bool] = pytest.StashKey()
BASELINE_RESULT: pytest.StashKey[BaselineResult] = pytest.StashKey()
LINE_COVERAGE: pytest.StashKey[LineCoverage] = pytest.StashKey()
