"""The calibration is data: every entry names operators that torch has, a condition that exists, and its evidence."""

from __future__ import annotations

import sys
from importlib import resources

import pytest
import torch

from pytest_gpusync.simulated.kernels import calibration

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = resources.files("pytest_gpusync.simulated.kernels") / "calibration.toml"
TABLES = tomllib.loads(FILE.read_text(encoding="utf-8"))
ENTRIES = TABLES["operator"]


def test_the_source_says_which_hardware_and_version():
    assert set(TABLES["source"]) == {"gpu", "cuda", "torch", "method"}
    assert all(isinstance(value, str) and value for value in TABLES["source"].values())


def test_no_operator_has_two_entries():
    names = [name for entry in ENTRIES for name in entry["names"]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["names"][0])
def test_an_entry_can_be_read(entry):
    read = calibration.entries()[entry["names"][0]]
    assert isinstance(read.syncs, int)
    assert isinstance(read.per_matrix, int)
    assert read.syncs + read.per_matrix > 0
    assert read.when is None or read.when in calibration.CONDITIONS
    assert read.direction in (None, "H2D", "D2H")
    assert read.evidence


@pytest.mark.parametrize("name", [name for entry in ENTRIES for name in entry["names"] if name.startswith("aten::")])
def test_an_entry_names_an_operator_of_torch(name):
    base, _, overload = name.removeprefix("aten::").partition(".")
    assert hasattr(getattr(torch.ops.aten, base), overload or "default")


@pytest.mark.parametrize(("scale", "syncs"), [(1e-3, 3), (10.0, 6)])
def test_a_matrix_exponential_waits_more_for_a_large_matrix(cuda, kinds, scale, syncs):
    x = scale * torch.eye(4, device=cuda)
    with kinds() as counted:
        torch.linalg.matrix_exp(x)
    assert counted == {"stream": syncs}
