"""What ``pytest_gpusync`` itself exports."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pytest_gpusync


@pytest.mark.parametrize("name", pytest_gpusync.__all__)
def test_every_public_name_can_be_imported(name):
    assert getattr(pytest_gpusync, name) is not None


def test_another_name_is_refused():
    with pytest.raises(AttributeError, match="has no attribute 'recrod'"):
        pytest_gpusync.recrod  # noqa: B018


@pytest.mark.parametrize("name", sorted({*pytest_gpusync.__all__} - {"simulated_cuda"}))
def test_no_public_name_loads_torch_or_pytest(name):
    program = f"import sys; from pytest_gpusync import {name}; sys.exit(bool({{'torch', 'pytest'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], timeout=300, check=False).returncode == 0


def test_a_region_of_the_public_record_is_drawn_in_a_notebook():
    program = (
        "import sys; from pytest_gpusync import record; from pytest_gpusync.measure import region; "
        "sys.exit(region.notebook_renderer is None)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=300, check=False).returncode == 0
