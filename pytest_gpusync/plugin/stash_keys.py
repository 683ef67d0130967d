"""Where the plugin keeps its objects on pytest's configuration and items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpusync.plugin.baseline_check import TestRatchet
    from pytest_gpusync.plugin.measured_test import TestRun
    from pytest_gpusync.plugin.session import GpuSession
    from pytest_gpusync.source.line_coverage import LinesRan

SESSION: pytest.StashKey[GpuSession] = pytest.StashKey()
RUN: pytest.StashKey[TestRun] = pytest.StashKey()
DESELECTED: pytest.StashKey[bool] = pytest.StashKey()
RATCHET: pytest.StashKey[TestRatchet] = pytest.StashKey()
LINES: pytest.StashKey[LinesRan] = pytest.StashKey()
