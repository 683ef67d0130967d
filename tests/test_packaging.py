"""What the distributions hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent


def test_the_sdist_holds_all_of_the_repository_but_its_own_ci():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is not a checkout of the repository")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = {path.strip("/") for path in settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    tracked = {path.partition("/")[0] for path in listed.stdout.splitlines()}
    # hatchling always adds the last two.
    assert tracked - {".ci"} == included | {".gitignore", "pyproject.toml"}


def test_every_dependency_has_the_lower_bound_that_ci_tests():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    everything = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    unbounded = [one for one in everything if ">=" not in one.partition(";")[0] and not one.startswith(project["name"])]
    assert unbounded == []
    assert "--resolution lowest-direct" in (ROOT / "ci/checks.yml").read_text()
