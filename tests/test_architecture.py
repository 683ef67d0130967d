"""The floors of docs/architecture.md, as the contracts of pyproject.toml state them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("importlinter", reason="import-linter needs Python 3.11")

ROOT = Path(__file__).resolve().parent.parent
LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the packages and of the contracts."""
    for package in ("pytest_gpusync", "lint/gpusync_lint"):
        shutil.copytree(ROOT / package, tmp_path / Path(package).name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", LINT], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def add(path: Path, line: str) -> None:
    path.write_text(f"{path.read_text(encoding='utf-8')}\n{line}\n", encoding="utf-8")


def test_the_contracts_are_kept() -> None:
    result = check(ROOT)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("importing", "imported", "contract"),
    [
        ("pytest_gpusync.model.sizes", "pytest_gpusync.plugin.options", "Floors of the runtime"),
        ("gpusync_lint.domain.values", "gpusync_lint.rules.text", "Floors of the linter"),
        ("gpusync_lint.heat.frequency", "gpusync_lint.inference.fixpoint", "Floors of the linter"),
    ],
    ids=["of the runtime", "of the linter", "between neighbours of the linter"],
)
def test_an_upward_import_breaks_the_contract(copy: Path, importing: str, imported: str, contract: str) -> None:
    add(copy / f"{importing.replace('.', '/')}.py", f"import {imported}")
    result = check(copy)
    assert result.returncode == 1
    assert f"{contract} BROKEN" in result.stdout
    assert f"{importing} -> {imported}" in result.stdout


@pytest.mark.parametrize(
    "planted",
    [
        "def late():\n    from pytest_gpusync.reporting import files",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pytest_gpusync.reporting import files",
    ],
    ids=["in a function", "for type checkers"],
)
def test_imports_that_do_not_run_at_import_time_count(copy: Path, planted: str) -> None:
    add(copy / "pytest_gpusync/measure/phases.py", planted)
    result = check(copy)
    assert "Floors of the runtime BROKEN" in result.stdout


def test_the_simulated_device_has_floors_of_its_own(copy: Path) -> None:
    add(copy / "pytest_gpusync/simulated/base/state.py", "from pytest_gpusync.simulated.tensors import memory")
    result = check(copy)
    assert "Floors of the simulated device BROKEN" in result.stdout


@pytest.mark.parametrize(
    ("module", "planted"),
    [
        ("pytest_gpusync/elapsed/paired.py", "from pytest_gpusync.elapsed import overlap"),
        ("gpusync_lint/domain/values.py", "from gpusync_lint.domain import lattice"),
    ],
    ids=["of the runtime", "of the linter"],
)
def test_a_circle_within_a_package_breaks_the_contract(copy: Path, module: str, planted: str) -> None:
    add(copy / module, planted)
    result = check(copy)
    assert "No circles within a package BROKEN" in result.stdout


@pytest.mark.parametrize("package", ["pytest_gpusync", "gpusync_lint"])
def test_no_module_is_part_of_a_circle_not_even_with_the_package_it_is_in(package: str) -> None:
    command = [sys.executable, ROOT / "benchmarks/import_graph.py", package]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "circles of rooms: 0, of modules: 0" in result.stdout, result.stdout


def test_a_new_package_must_be_given_a_floor(copy: Path) -> None:
    (copy / "pytest_gpusync/attic").mkdir()
    (copy / "pytest_gpusync/attic/__init__.py").write_text("", encoding="utf-8")
    result = check(copy)
    assert result.returncode == 1
    assert "pytest_gpusync.attic" in result.stdout
