"""Tracing the ranks that a launcher starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pytest_gpusync.commands import trace_launcher
from pytest_gpusync.machine import devices

ROOT = Path(__file__).parents[2]

LAUNCHER = """
    import os, subprocess, sys
    size = 2
    codes = [
        subprocess.Popen(
            [sys.executable, "-u", *sys.argv[1:]], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size)}
        )
        for rank in range(size)
    ]
    sys.exit(max(abs(process.wait()) for process in codes))
    """


@pytest.mark.parametrize(
    ("target", "arguments", "is_module", "is_one"),
    [
        ("torch.distributed.run", (), True, True),
        ("accelerate.commands.launch", (), True, True),
        ("train", (), True, False),
        ("/venv/bin/torchrun", ("train.py",), False, True),
        ("/venv/bin/accelerate", ("launch", "train.py"), False, True),
        ("/venv/bin/accelerate", ("config",), False, False),
        ("torchrun/train.py", (), False, False),
    ],
)
def test_a_launcher_is_known_by_its_name(target, arguments, is_module, is_one):
    assert trace_launcher.is_launcher(target, arguments, is_module=is_module) is is_one


def test_the_interpreter_is_replaced_only_while_the_launcher_runs(monkeypatch):
    monkeypatch.setenv("PYTHON_EXEC", "/mine")
    before = sys.executable
    seen = []
    trace_launcher.run(lambda: seen.append((sys.executable, os.environ.get("PYTHON_EXEC"))) or 0, [])
    [(during, told)] = seen
    assert (Path(during).name, told) == ("python", None)
    assert (sys.executable, os.environ["PYTHON_EXEC"], trace_launcher.OPTIONS in os.environ) == (
        before,
        "/mine",
        False,
    )


def launched(command):
    """Return a launch that runs the replaced interpreter with arguments."""

    def launch():
        path = os.pathsep.join([str(ROOT), str(ROOT / "lint"), os.environ.get("PYTHONPATH", "")])
        return subprocess.run(
            [sys.executable, *command], env={**os.environ, "PYTHONPATH": path}, timeout=300
        ).returncode

    return launch


def test_what_is_no_program_runs_as_it_would_have(capfd):
    runs = trace_launcher.run(launched(["-c", "import sys; print(sys.argv, sys.executable); sys.exit(3)"]), [])
    assert (runs.code, runs.document, runs.lost) == (3, None, [])
    assert capfd.readouterr().out == f"['-c'] {sys.executable}\n"


def test_a_launcher_that_starts_nobody_leaves_no_run():
    assert trace_launcher.run(lambda: 7, []) == trace_launcher.Runs(7, None, [])


@pytest.fixture
def trace(tmp_path):
    """Trace a program under a launcher of two ranks; return what came of it and its run file."""
    pytest.importorskip("torch")
    if devices.detect().kind == "cuda":
        pytest.skip("the simulated device needs a machine without a GPU, or CUDA_VISIBLE_DEVICES= (empty)")
    path = os.pathsep.join([str(ROOT), str(ROOT / "lint"), os.environ.get("PYTHONPATH", "")])

    def trace(source, *command):
        (tmp_path / "train.py").write_text(textwrap.dedent(source))
        (tmp_path / "torchrun").write_text(textwrap.dedent(LAUNCHER))
        done = subprocess.run(
            [sys.executable, "-m", *command, "train.py", "--lr", "1"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
        )
        written = {file.name: json.loads(file.read_text()) for file in tmp_path.glob("*.json")}
        return done, written

    return trace


TRAIN = """
    import os, sys, torch
    x = torch.ones(3, device="cuda")
    for _ in range(int(os.environ["RANK"]) + 1):
        x.sum().item()
    assert sys.argv == ["train.py", "--lr", "1"]
    """
SIMULATED = ("--device", "simulated", "--json", "run.json")


def test_the_runs_of_all_ranks_become_one(trace):
    done, written = trace(TRAIN, "pytest_gpusync", "trace", *SIMULATED, "torchrun")
    assert done.returncode == 0, done.stderr
    assert {region["name"]: region["syncs"] for region in written["run.json"]["regions"]} == {
        "train.py [rank 0]": 1,
        "train.py [rank 1]": 2,
    }
    assert "2 regions measured" in done.stdout


def test_a_rank_that_was_killed_is_named(trace):
    source = TRAIN + "\n    os.environ['RANK'] == '1' and os.kill(os.getpid(), 9)"
    done, written = trace(source, "pytest_gpusync", "trace", *SIMULATED, "torchrun")
    assert done.returncode != 0
    assert "gpusync: rank 1 was started but wrote no run: it was killed" in done.stderr
    assert [part["syncs"] for part in written["run.json"]["regions"]] == [1]


def test_ranks_that_trace_themselves_write_a_file_each_and_the_first_speaks(trace):
    done, written = trace(
        TRAIN, "torch.distributed.run", "--nproc-per-node=2", "-m", "pytest_gpusync", "trace", *SIMULATED
    )
    assert done.returncode == 0, done.stderr
    assert {name: run["rank"] for name, run in written.items()} == {"run-rank0.json": 0, "run-rank1.json": 1}
    assert done.stdout.count("coverage simulated") == 1
