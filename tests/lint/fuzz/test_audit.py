"""What is linted is not imported or executed, and a run opens no socket and starts no program.

`sys.addaudithook` sees every import, compilation, execution, socket and process of the interpreter.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

WATCH = """
import json, sys
seen = []
def hook(event, arguments):
    if event in ("import", "exec", "compile") or event.partition(".")[0] in WATCHED:
        seen.append((event, [repr(getattr(one, "co_filename", one)) for one in arguments]))
WATCHED = ("socket", "subprocess", "os", "pty", "ctypes", "urllib", "http", "ftplib", "smtplib", "webbrowser")
STARTED = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "os.fork", "os.forkpty", "os.kill")
NAMES = ("'trap'", "'helper'", "'conftest'", "'sitecustomize'", "'torch'")
import gpusync_lint.cli
sys.addaudithook(hook)
code = gpusync_lint.cli.main(sys.argv[1:])
unwanted = [
    [event, names] for event, names in list(seen)
    if (event == "import" and names[0] in NAMES) or (event == "exec" and "TARGET" in names[0])
    or event in STARTED or (event.partition(".")[0] in WATCHED and not event.startswith("os."))
]
print(json.dumps({"code": code, "events": sorted({event for event, _ in seen}), "unwanted": unwanted}), file=sys.stderr)
"""
TRAP = """import os, sys, torch
open('executed', 'w').close()
model = torch.nn.Linear(3, 3).cuda()
for x in loader:
    loss = model(x.cuda()).sum()
    loss.backward()
    print(loss.item(), torch.zeros(3).to('cuda'))
raise SystemExit('executed')
"""


@pytest.mark.parametrize(
    "options", [[], ["--fix"], ["--diff"], ["--add-ignores", "wanted"], ["--output-format", "sarif"]]
)
def test_nothing_of_the_target_runs(tmp_path: Path, options: list[str]) -> None:
    target = tmp_path / "TARGET"
    target.mkdir()
    for name in ("trap.py", "helper.py", "conftest.py", "sitecustomize.py", "gpusync_lint.py", "libcst.py", "json.py"):
        (target / name).write_text(TRAP)
    cell = {"cell_type": "code", "source": "%run trap.py\n!touch executed\n" + TRAP}
    (target / "n.ipynb").write_text(json.dumps({"nbformat": 4, "metadata": {}, "cells": [cell]}))
    (target / "pyproject.toml").write_text("[tool.gpusync]\nstep-functions = ['trap']\n")
    command = (
        [sys.executable, "-P", "-c", WATCH] if sys.version_info >= (3, 11) else [sys.executable, "-I", "-c", WATCH]
    )
    done = subprocess.run(
        [*command, "--jobs", "1", *options, "."], cwd=target, capture_output=True, text=True, check=False
    )
    seen = json.loads(done.stderr.splitlines()[-1])
    assert "compile" in seen["events"]  # the hook saw that the source was parsed
    assert seen["code"] in (0, 1)
    assert seen["unwanted"] == []
    assert not (target / "executed").exists()
    assert "trap.py" in done.stdout or options == ["--add-ignores", "wanted"]


def test_a_run_starts_its_own_workers_only(tmp_path: Path) -> None:
    target = tmp_path / "TARGET"
    target.mkdir()
    for number in range(4):
        (target / f"trap{number}.py").write_text(TRAP + "# a long comment\n" * 5000)
    command = (
        [sys.executable, "-P", "-c", WATCH] if sys.version_info >= (3, 11) else [sys.executable, "-I", "-c", WATCH]
    )
    done = subprocess.run(
        [*command, "--jobs", "2", "--no-cache", "."], cwd=target, capture_output=True, text=True, check=False
    )
    seen = json.loads(done.stderr.splitlines()[-1])
    assert {event for event, _ in seen["unwanted"]} <= {"os.fork", "os.kill"}
    assert not (target / "executed").exists()
