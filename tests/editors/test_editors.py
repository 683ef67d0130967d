"""Editors that speak the Language Server Protocol, without a screen, with a real `gpusync server`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
VSCODE = HERE.parents[1] / "editors" / "vscode"
TRAIN = """import torch

def train(model, loader, opt):
    for x in loader:
        loss = model(torch.zeros(3).to("cuda")).sum()
        loss.backward()
        opt.step()
        print(loss.item())
"""


def shown(program: str, arguments: list[str], folder: Path) -> dict[str, Any]:
    """What an editor shows of TRAIN, as its script has written it."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    (folder / "train.py").write_text(TRAIN)
    (folder / "pyproject.toml").write_text("")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (folder / ".emacs.d").mkdir()
    result = folder / "result.json"
    server = [sys.executable, "-m", "pytest_gpusync", "server"]
    environment = {**os.environ, "HOME": str(folder), "GPUSYNC": json.dumps(server), "GPUSYNC_OUT": str(result)}
    done = subprocess.run(
        [found, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.exists(), done.stdout + done.stderr
    seen: dict[str, Any] = json.loads(result.read_text())
    assert "problem" not in seen, seen
    return seen


def check(seen: dict[str, Any]) -> None:
    assert sorted(seen["opened"]) == ["GS201:8", "GS503:5"]
    assert "GS503" in seen["hover"]
    assert seen["actions"] == 1
    assert seen["fixed"] == '        loss = model(torch.zeros(3, device="cuda")).sum()'
    assert seen["after"] == ["GS201:8"]


def test_neovim(tmp_path):
    seen = shown("nvim", ["--headless", "-u", "NONE", "-S", str(HERE / "neovim.lua")], tmp_path)
    check(seen)
    assert seen["lenses"] == ["every step: 2 waits"]


def test_emacs(tmp_path):
    if shutil.which("emacs") is not None:
        asked = ["emacs", "--batch", "--eval", "(progn (package-initialize) (require 'eglot))"]
        if subprocess.run(asked, capture_output=True, check=False).returncode:
            pytest.skip("Emacs has no Eglot")
    check(shown("emacs", ["--batch", "--load", str(HERE / "emacs.el")], tmp_path))


def npm(*arguments: str) -> str:
    """Run npm in the folder of the extension. Returns what it printed."""
    program = shutil.which("npm")
    if program is None:
        pytest.skip("npm is not installed")
    if not (VSCODE / "node_modules").exists():
        pytest.skip("the packages of the extension are not installed: npm ci in editors/vscode")
    environment = {"PYTHON": sys.executable, **os.environ}
    done = subprocess.run(
        [program, *arguments], cwd=VSCODE, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_extension_of_vs_code_compiles_and_passes_its_tests():
    assert "# fail 0" in npm("test")


@pytest.mark.long
def test_the_extension_in_vs_code():
    if "CODE_SERVER" not in os.environ:
        pytest.skip("CODE_SERVER does not say where code-server is: see editors/vscode/README.md")
    assert "ok the restart command starts a new server" in npm("run", "test:vscode")
