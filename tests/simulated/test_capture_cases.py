"""All offenders of the thirty functions of benchmarks/capture_cases.py are found, with the linter and on the device."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from pytest_gpusync.simulated import simulated_cuda

ROOT = Path(__file__).parents[2]


def _benchmark():
    spec = importlib.util.spec_from_file_location("captures", ROOT / "benchmarks" / "captures.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CAPTURES = _benchmark()
NAMES = [one.name for one in CAPTURES.functions()]


@pytest.fixture(scope="module")
def found():
    every = CAPTURES.functions()
    CAPTURES.lint(every)
    with pytest.warns(UserWarning, match="requires_grad"), simulated_cuda():  # `float(loss)`, on purpose
        CAPTURES.simulate(every)
    return {one.name: one for one in every}


def test_half_of_them_have_one_to_three_offenders():
    counts = [len(one.offenders) for one in CAPTURES.functions()]
    assert len(counts) == 30
    assert counts[:15] == [0] * 15
    assert all(1 <= count <= 3 for count in counts[15:])


@pytest.mark.parametrize("name", NAMES)
def test_the_linter_finds_all_offenders_and_nothing_else(found, name):
    one = found[name]
    assert (one.missed(one.static), one.extra(one.static)) == ([], [])


@pytest.mark.parametrize("name", NAMES)
def test_the_simulated_device_finds_all_offenders_and_nothing_else(found, name):
    one = found[name]
    assert (one.missed(one.simulated), one.extra(one.simulated)) == ([], [])
