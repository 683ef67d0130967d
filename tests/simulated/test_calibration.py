"""The calibration is data: every entry names operators that torch has, a condition that exists, and its evidence."""

from __future__ import annotations

import sys
from importlib import resources

import pytest
import torch

from pytest_gpusync.simulated.kernels import calibration, sized_calls

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
    assert (read.syncs > 0) != (read.counted_by in sized_calls.COUNTS)
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


@pytest.mark.parametrize(
    ("statement", "syncs"),
    [
        ("torch.linalg.svd(torch.randn(8, 8, device=d))", 2),
        ("torch.linalg.svd(torch.randn(4, 32, 32, device=d))", 2),
        ("torch.linalg.svdvals(torch.randn(1000, 64, device=d))", 11),
        ("torch.linalg.eigh(torch.eye(1, device=d))", 1),
        ("torch.linalg.eigh(torch.eye(31, device=d))", 2),
        ("torch.linalg.eigvalsh(torch.eye(64, device=d))", 10),
        ("torch.linalg.eigh(torch.eye(64, device=d, dtype=torch.float64))", 2),
        ("torch.linalg.eigvalsh(torch.eye(1024, device=d))", 2),
        ("torch.linalg.eigh(torch.eye(8, device=d).expand(4, 8, 8))", 1),
        ("torch.linalg.eigh(torch.eye(256, device=d).expand(4, 256, 256))", 45),
        ("torch.linalg.eig(torch.eye(16, device=d))", 28),
        ("torch.linalg.eigvals(torch.eye(16, device=d))", 22),
        ("torch.ones(8, 4, device=d).to_sparse(1)", 4),
        ("torch.ones(4, 4, 4, device=d).to_sparse(3)", 1),
        ("torch.ones(8, 8, device=d).to_sparse(layout=torch.sparse_csr)", 2),
        ("torch.ones(3, 8, 8, device=d).to_sparse_csc()", 3),
        ("torch.ones(3, 8, 8, device=d).to_sparse_csr(dense_dim=1)", 2),
        ("torch.ones(8, 8, device=d).to_sparse_bsr((2, 2))", 2),
        ("coo.to_sparse_csc()", 5),
        ("csr.to_sparse_csc()", 1),
        ("csr.to_sparse_coo()", 0),
        ("csr.to_sparse_csc().to_sparse_csr()", 2),
        ("csr.to_sparse_csc().to_sparse_coo()", 1),
        ("coo.to_sparse_bsc((2, 2))", 11),
        ("csr.to_sparse_bsc((2, 2))", 7),
        ("dense.to_sparse_bsr((2, 2)).to_sparse_bsc((2, 2))", 3),
        ("dense.to_sparse_bsr((2, 2)).to_sparse_coo()", 3),
        ("torch.ones(3, 8, 8, device=d).to_sparse_bsr((2, 2))", 3),
        ("torch.linalg.eigh(torch.eye(64, device=d, dtype=torch.float64).expand(4, 64, 64))", 5),
        ("torch.linalg.eigh(torch.eye(600, device=d).expand(4, 600, 600))", 13),
        ("torch.linalg.eig(torch.eye(8, device=d).expand(3, 8, 8))", 76),
        ("csr @ csr.to_sparse_csc()", 8),
        ("dense @ csr", 1),
        ("dense @ csr.to_sparse_csc()", 1),
        ("coo @ coo", 7),
        ("coo @ dense", 0),
        ("csr.to_sparse_csc() @ dense", 2),
        ("torch.sparse.softmax(coo, 1)", 7),
    ],
)
def test_a_call_waits_as_often_as_on_a_gpu(cuda, kinds, statement, syncs):
    dense = torch.eye(8, device=cuda)
    names = {
        "torch": torch,
        "d": cuda,
        "dense": dense,
        "coo": dense.to_sparse().coalesce(),
        "csr": dense.to_sparse_csr(),
    }
    with kinds() as counted:
        eval(statement, names)
    assert counted == ({"stream": syncs} if syncs else {})
