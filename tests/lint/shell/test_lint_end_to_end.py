"""The real engine behind the real command, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = """\
import torch
from torch import nn

device = "cuda"
model = nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0.0
for step in range(1000):
    x = torch.randn(32, 8, device=device)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total += loss.item()
    if step % 100 == 0:
        print(loss.item())
"""

CLEAN = "import os\n\n\ndef names():\n    return [name for name in os.listdir('.')]\n"

PYTHONPATH = os.pathsep.join(sys.path)


def _gpusync(cwd: Path, *arguments: str, python: tuple[str, ...] = (), **options: Any) -> Any:
    command = [sys.executable, *python, "-m", "pytest_gpusync", *arguments]
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH, "NO_COLOR": "1"}
    environ.pop("FORCE_COLOR", None)
    return subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300, check=False, **options
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "clean.py").write_text(CLEAN)
    return tmp_path


def test_a_read_in_every_step_is_a_warning_and_exit_1(folder: Path) -> None:
    result = _gpusync(folder, "lint")
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("train.py:14:"))
    assert " GS201 [item] " in lines[place]
    assert lines[place + 1] == "    total += loss.item()"
    assert lines[place + 2].strip("^ ") == ""
    assert "Found 1 warning" in result.stdout


def test_a_guarded_read_is_a_note(folder: Path) -> None:
    result = _gpusync(folder, "lint", "--output-format", "json")
    findings = json.loads(result.stdout)["findings"]
    levels = {(one["line"], one["heat"]): one["level"] for one in findings}
    assert levels[14, "step"] == "warning"
    assert levels[16, "guarded"] == "note"


def test_a_clean_file_is_exit_0(folder: Path) -> None:
    result = _gpusync(folder, "lint", "clean.py")
    assert (result.returncode, result.stdout, result.stderr) == (0, "No warnings in 1 file\n", "")


def test_a_file_that_does_not_parse_is_exit_2_and_the_rest_is_reported(folder: Path) -> None:
    (folder / "broken.py").write_text("def f(:\n")
    result = _gpusync(folder, "lint")
    assert result.returncode == 2
    assert result.stderr.startswith("broken.py:1: error: ")
    assert result.stderr.count("\n") == 1
    assert "train.py:14:" in result.stdout


@pytest.mark.parametrize("data", [b"x = 1\x00\n", b"", b"\n\n", b"(" * 3000, b"x = '\xff'\n"])
def test_odd_files_never_end_in_a_traceback(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.py").write_bytes(data)
    result = _gpusync(tmp_path, "lint", "a.py")
    assert result.returncode in (0, 2)
    assert "Traceback" not in result.stderr
    assert "internal error" not in result.stderr


def test_an_allow_comment_is_obeyed(folder: Path) -> None:
    text = TRAIN.replace("    total += loss.item()\n", "    total += loss.item()  # gpusync: allow[item] a test\n")
    (folder / "train.py").write_text(text)
    result = _gpusync(folder, "lint", "--show-suppressed")
    assert result.returncode == 0
    assert "    allowed: a test\n" in result.stdout


def test_standard_input_is_linted(tmp_path: Path) -> None:
    result = _gpusync(tmp_path, "lint", "-", "--stdin-filename", "pkg/train.py", input=TRAIN)
    assert result.returncode == 1
    assert "pkg/train.py:14:" in result.stdout


def test_keys_do_not_change_when_lines_move(folder: Path) -> None:
    def keys() -> list[str]:
        return [one["key"] for one in json.loads(_gpusync(folder, "lint", "--output-format=json").stdout)["findings"]]

    before = keys()
    (folder / "train.py").write_text(TRAIN.replace("import torch\n", "import torch\n\n# moved\n\n", 1))
    assert keys() == before
    assert before
    assert len(set(before)) == len(before)


def _imported(result: Any) -> set[str]:
    lines = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip().partition(".")[0] for line in lines}


def test_linting_imports_neither_torch_nor_pytest(folder: Path) -> None:
    result = _gpusync(folder, "lint", "train.py", python=("-X", "importtime"))
    assert result.returncode == 1
    assert _imported(result) & {"torch", "numpy", "pytest", "_pytest", "pynvml"} == set()


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ([], False),
        (["--statistics"], False),
        (["--output-format=github"], False),
        (["--output-format=gitlab"], False),
        (["--output-format=junit"], False),
        (["--output-format=json"], True),
        (["--output-format=sarif"], True),
        (["--diff"], True),
        (["--fix"], True),
        (["--add-ignores", "known"], True),
    ],
)
def test_libcst_is_imported_only_where_an_edit_is_asked_for(folder: Path, options: list[str], needed: bool) -> None:
    for name, text in (("fixable.py", FIXABLE), ("spread.py", FIXABLE.replace("32, 8", "32,\n        8"))):
        (folder / name).write_text(text)
    result = _gpusync(folder, "lint", "fixable.py", "spread.py", *options, python=("-X", "importtime"))
    assert ("libcst" in _imported(result)) is needed


def test_libcst_is_not_imported_where_there_is_nothing_to_fix(folder: Path) -> None:
    (folder / "clean.py").write_text("import torch\n")
    result = _gpusync(folder, "lint", "clean.py", "--fix", "--output-format=json", python=("-X", "importtime"))
    assert "libcst" not in _imported(result)


FIXABLE = """\
import torch

device = torch.device("cuda")
model = torch.nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    x = torch.zeros(32, 8).to(device)
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
"""


def test_fixing_twice_is_fixing_once(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(FIXABLE.replace("\n", "\r\n").encode())
    first = _gpusync(tmp_path, "lint", "--fix", "--unsafe-fixes")
    fixed = path.read_bytes()
    assert fixed != FIXABLE.replace("\n", "\r\n").encode(), first.stdout
    assert fixed.count(b"\n") == fixed.count(b"\r\n")
    second = _gpusync(tmp_path, "lint", "--fix", "--unsafe-fixes")
    assert path.read_bytes() == fixed
    assert second.stdout.startswith("Fixed 0 warnings.\n")


FUNCTIONS = """\
import torch


def train(model: torch.nn.Module, optimizer, batches):
    for batch in batches:
        loss = model(batch.cuda(non_blocking=True)).sum()
        loss.backward()
        optimizer.step()
        print(loss.item())
"""


def test_a_function_that_moves_stays_in_the_baseline_and_a_second_read_in_it_is_new(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FUNCTIONS)
    _gpusync(tmp_path, "lint", "--write-baseline")
    use = ("lint", "--baseline", "gpusync-lint-baseline.json", "--output-format", "json")
    script.write_text(FUNCTIONS.replace("\n\ndef", "\n\ndef first():\n    pass\n\n\ndef"))
    moved = _gpusync(tmp_path, *use)
    script.write_text(FUNCTIONS + "        print(loss.item())\n")
    second = _gpusync(tmp_path, *use)
    assert (moved.returncode, json.loads(moved.stdout)["findings"]) == (0, [])
    assert [(one["code"], one["line"]) for one in json.loads(second.stdout)["findings"]] == [("GS201", 10)]


def test_a_run_after_adding_ignores_is_clean(folder: Path) -> None:
    added = _gpusync(folder, "lint", "--add-ignores", "a test")
    again = _gpusync(folder, "lint")
    assert (added.returncode, again.returncode) == (0, 0)
    assert "    total += loss.item()  # gpusync: allow[GS201] a test\n" in (folder / "train.py").read_text()


def test_a_barrier_of_the_project_is_reported_allowed_and_explained(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(
        '[[tool.gpusync.barriers]]\ncall = "ourlib.to_host"\n'
        'message = "`{call}` copies to the host"\nremedy = "Batch it"\n'
    )
    (folder / "ourlib.py").write_text("def to_host(t):\n    return t\n")
    (folder / "train.py").write_text(
        "import torch\nfrom ourlib import to_host\nx = torch.rand(4, device='cuda')\n"
        "for step in range(9):\n    x.sum().backward()\n    to_host(x)\n"
        "    to_host(x)  # gpusync: allow[project-barrier] the host needs it\n"
    )
    result = _gpusync(folder, "lint", "--output-format", "json")
    (finding,) = json.loads(result.stdout)["findings"]
    assert (finding["code"], finding["line"], finding["framework"]) == ("GS699", 6, "project")
    assert (finding["message"], finding["remedy"]) == ("`to_host()` copies to the host", "Batch it")
    assert "GS699 project-barrier" in _gpusync(folder, "rule", "GS699").stdout
