"""benchmarks/truth makes runs of programs on the simulated device, and holds the linter against them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FACTORY = Path(__file__).parents[1] / "benchmarks" / "truth"

TRAIN = """\
import torch

model = torch.nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    loss = model(torch.randn(2, 4, device="cuda")).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
    if step % 4 == 0:
        print(loss.tolist())
"""


def factory(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FACTORY / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of the factory with one repository, and its environment: the interpreter of the tests."""
    clone = tmp_path / "clones" / "owner+tiny"
    clone.mkdir(parents=True)
    (clone / "train.py").write_text(TRAIN)
    git(clone, "init", "--quiet")
    git(clone, "add", ".")
    git(clone, "commit", "--quiet", "--message", "first")
    python = tmp_path / "environments" / "here" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (tmp_path / "environments" / "here" / ".requirements.txt").write_text("torch\n")
    (tmp_path / "list.toml").write_text(
        f"""
[environments.here]
requirements = ["torch"]

[[repository]]
name = "owner/tiny"
commit = "{git(clone, "rev-parse", "HEAD")}"
environment = "here"
[[repository.run]]
name = "missing"
script = "absent.py"
[[repository.run]]
name = "trains"
script = "train.py"
"""
    )
    return tmp_path


def test_a_run_is_made_and_scored_beside_one_that_fails(folder: Path) -> None:
    listed = ["--repositories", folder / "list.toml", "--folder", folder]
    made = factory("make.py", *listed)
    assert made.returncode == 1, made.stdout + made.stderr
    assert "missing (scored): FAILED" in made.stdout
    truth = json.loads((folder / "runs" / "scored" / "trains.json").read_text())
    assert truth["steps"] == 7  # eight, of which the first is warm-up
    item = TRAIN.splitlines().index("    print(loss.item())") + 1
    waits = {row["line"]: row for row in truth["waits"]}
    assert waits[item] == {"file": "owner+tiny/train.py", "line": item, "syncs": 8, "steps": 7, "via": None}
    assert waits[item + 2]["steps"] == 2
    assert truth["executed"]["owner+tiny/train.py"][str(item)] == 8

    again = factory("make.py", *listed, "trains")
    assert again.returncode == 0
    assert "1 of 1 runs are there" in again.stdout

    scored = factory("score.py", "--half", "scored", "--folder", folder)
    assert scored.returncode == 0, scored.stderr
    assert "own code: 1 statements that wait in half of the steps: default 100.0 %" in scored.stdout
    assert "precision of warnings: 100.0 % of 1 findings" in scored.stdout


def test_misses_of_the_scored_half_are_not_written(tmp_path: Path) -> None:
    refused = factory("score.py", "--half", "scored", "--misses", tmp_path / "misses.md", "--folder", tmp_path)
    assert refused.returncode == 2
    assert "use --half learn" in refused.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("commit = ", "commit = 'x' # "), "commit must be the 40 digits of a commit"),
        (('script = "train.py"', 'scripts = "train.py"'), "unknown key 'scripts'"),
        (('name = "trains"', 'name = "missing"'), "two runs are named 'missing'"),
    ],
)
def test_a_wrong_list_is_named_with_its_place(folder: Path, change: tuple[str, str], message: str) -> None:
    path = folder / "list.toml"
    path.write_text(path.read_text().replace(*change))
    refused = factory("make.py", "--repositories", path, "--folder", folder, "--list")
    assert refused.returncode == 2
    assert message in refused.stderr
    assert str(path) in refused.stderr


def test_the_list_of_the_project_can_be_read() -> None:
    listed = factory("make.py", "--list")
    assert listed.returncode == 0, listed.stderr
    assert {"learn", "scored"} <= set(listed.stdout.split())
