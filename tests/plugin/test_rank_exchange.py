"""A pytest per rank: each is held to the budget, rank 0 reports all, one that fails fails the run, and none hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pytest_gpusync.distributed.rank_exchange import RankGroup, join, rank

ROOT = Path(__file__).parents[2]


class Store:
    """A store of ``torch.distributed``'s interface, shared by threads."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value

    def get(self, key):
        return self.values[key]

    def wait(self, keys, timeout):
        until = time.monotonic() + timeout.total_seconds()
        while not all(key in self.values for key in keys):
            if time.monotonic() > until:
                raise RuntimeError("wait timeout")
            time.sleep(0.001)


@pytest.mark.parametrize(
    ("told", "size", "expected"),
    [("", "", None), ("0", "1", None), ("0", "2", 0), ("3", "8", 3), ("x", "2", None), ("1", "", None)],
)
def test_a_rank_is_what_the_launcher_says(monkeypatch, told, size, expected):
    monkeypatch.setenv("RANK", told)
    monkeypatch.setenv("WORLD_SIZE", size)
    assert rank() == expected


def test_ranks_get_each_others_documents_in_order():
    store, found = Store(), {}

    def run(number):
        found[number] = RankGroup(number, 3, store).exchange({"from": number}, seconds=20)

    threads = [threading.Thread(target=run, args=(number,)) for number in (2, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(found.values()) == [[{"from": 0}, {"from": 1}, {"from": 2}]] * 3


def test_a_rank_that_does_not_come_is_not_waited_for_longer_than_asked():
    began = time.monotonic()
    assert RankGroup(0, 2, Store()).exchange({"from": 0}, seconds=0.05) == [{"from": 0}, None]
    assert time.monotonic() - began < 20  # by default it would be 30 s or more


def test_nobody_stays_for_a_rank_that_does_not_leave():
    began = time.monotonic()
    RankGroup(0, 2, Store()).leave(seconds=0.05)
    assert time.monotonic() - began < 20  # by default it would be 30 s or more


def test_leaving_survives_a_store_that_is_gone():
    class Gone(Store):
        def set(self, key, value):
            raise RuntimeError("connection closed")

    RankGroup(0, 2, Gone()).leave(seconds=0.05)


def test_without_torchruns_store_ranks_are_on_their_own(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    assert join() is None


def test_a_rank_on_its_own_writes_a_report_of_its_own(run, no_gpu, pytester, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    run(
        "--gpu-device=simulated",
        "--gpu-sync-budget=1",
        "--gpu-sync-report=run.json",
        test_a="import torch\ndef test_a():\n    torch.ones(1, device='cuda').item()\n",
    )
    assert json.loads((pytester.path / "run-rank1.json").read_text())["rank"] == 1
    assert not (pytester.path / "run.json").exists()


def test_in_a_distributed_run_a_broken_budget_fails_the_test_at_its_end(run, no_gpu, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = run(
        "--gpu-device=simulated",
        "-rP",
        test_a="""
            import torch

            def test_a(gpu_sync):
                value = torch.ones(1, device="cuda")
                with gpu_sync.budget(max=0):
                    value.item()
                print("where the other ranks wait")
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Region made 1 sync, budget 0*", "*where the other ranks wait*"])


@pytest.fixture
def torchrun(tmp_path, plugin):
    """Return a function that runs a test file with a pytest per rank, on the simulated device."""
    pytest.importorskip("torch.distributed.run")

    def run(source):
        (tmp_path / "test_ranks.py").write_text(source)
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command = ["-m", "pytest", "-p", "no:cacheprovider", *plugin]
        options = ["--gpu-device=simulated", "--gpu-sync-budget=1", "--gpu-sync-report=run.json"]
        done = subprocess.run(
            [*launch, *command, *options, "test_ranks.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "lint")])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=150,
            check=False,
        )
        report = tmp_path / "run.json"
        return done, json.loads(report.read_text()) if report.exists() else None

    return run


def test_one_rank_over_its_budget_fails_the_run_and_rank_0_reports_it(torchrun):
    done, run = torchrun(
        """
import os
import torch

def test_step():
    value = torch.ones(1, device="cuda")
    for _ in range(3 if os.environ["RANK"] == "1" else 1):
        value.item()
"""
    )
    assert done.returncode != 0
    outcomes = {region["name"]: region["outcome"] for region in run["regions"]}
    assert outcomes == {
        "test_ranks.py::test_step [rank 0]": "passed",
        "test_ranks.py::test_step [rank 1]": "failed",
    }
    assert "rank 1 failed: test_ranks.py::test_step: Test made 3 syncs, budget 1" in done.stdout
    assert "2 tests measured, 1 over budget" in done.stdout


def test_ranks_that_keep_their_budget_pass(torchrun):
    done, run = torchrun("import torch\n\ndef test_step():\n    torch.ones(1, device='cuda').item()\n")
    assert done.returncode == 0, done.stdout
    assert [region["outcome"] for region in run["regions"]] == ["passed", "passed"]
    assert [part["rank"] for part in run["parts"]] == [0, 1]
