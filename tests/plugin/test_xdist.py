"""pytest-xdist: workers measure, the controller reports, and the result is that of one process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

from pytest_gpusync.machine import devices

pytest.importorskip("torch")
pytest.importorskip("xdist")

READS = """
    import torch
    def test_reads():
        x = torch.ones(3, device="cuda")
        for _ in range({}):
            x.sum().item()
    """

TRAINS = """
    import torch
    def test_train(gpu_train):
        x = torch.ones(3, device="cuda")
        gpu_train(lambda: x.sum().item(), steps=5, warmup=2).assert_syncs(max=1)
    def test_cpu():
        assert torch.ones(3).sum().item() == 3
    """

ARGUMENTS = ("--gpu-device=simulated", "--gpu-sync-budget=2")

COUNT_WRITES = """
    import os
    import pytest_gpusync.reporting.files as files
    write = files.write_report
    def counted(document, path):
        with open("writes", "a") as log:
            log.write(f"{path.name} {'worker' if 'PYTEST_XDIST_WORKER' in os.environ else 'controller'}\\n")
        write(document, path)
    files.write_report = counted
    """


@pytest.fixture(autouse=True)
def no_gpu():
    if devices.detect().kind == "cuda":
        pytest.skip("the simulated device needs a machine without a GPU, or CUDA_VISIBLE_DEVICES= (empty)")


@pytest.fixture(scope="module")
def sessions(tmp_path_factory, plugin):
    """The folder of two sessions over the same tests, in one process and in two workers, and what each printed."""
    folder = tmp_path_factory.mktemp("sessions")
    files = {"conftest": COUNT_WRITES, "test_a": READS.format(3), "test_b": READS.format(1), "test_c": TRAINS}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    environment = {**os.environ, "COLUMNS": "160", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    printed = {}
    for name, options in (("serial", ()), ("parallel", ("-n2",))):
        reports = [f"--gpu-sync-report={name}{ending}" for ending in (".json", ".md", ".html")]
        command = [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", *ARGUMENTS, "--gpu-sync-lines"]
        done = subprocess.run(
            [*command, *options, *reports], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        printed[name] = done.stdout
    return folder, printed


def run_file(folder, name="run.json"):
    document = json.loads((folder / name).read_text())
    document["regions"].sort(key=lambda region: region["name"])
    del document["origin"]  # the command and the time differ
    for region in document["regions"]:
        if region["memory"]:
            del region["memory"]["host"]  # the resident set of a process is its own
    return document


def test_two_workers_report_what_one_process_does(sessions):
    folder, printed = sessions
    assert run_file(folder, "serial.json") == run_file(folder, "parallel.json")
    for text in printed.values():
        assert pytest.RunResult.parse_summary_nouns(text.splitlines()) == {"passed": 3, "failed": 1}
        assert "\nTest made 3 syncs, budget 2\n" in text
        assert "\n3 tests measured, 1 over budget" in text


def test_the_lines_that_ran_come_home_from_every_worker(sessions):
    lines = run_file(sessions[0], "parallel.json")["lines"]
    assert (lines["test_a.py"], lines["test_b.py"]) == ([[2, 6]], [[2, 6]])
    assert {"test_c.py"} <= lines.keys()


def test_every_report_is_written_once_and_by_the_controller(sessions):
    folder, printed = sessions
    writes = sorted((folder / "writes").read_text().splitlines())
    assert [line for line in writes if line.startswith("parallel")] == [
        "parallel.html controller",
        "parallel.json controller",
        "parallel.md controller",
    ]
    assert re.search(r"^gpusync: .*, budget 2 syncs per step, 2 workers$", printed["parallel"], re.MULTILINE)


@pytest.mark.parametrize("arguments", [(), ("-n1",)], ids=["one process", "a worker"])
def test_a_broken_budget_is_drawn_alike_wherever_the_test_ran(run_apart, pytester, monkeypatch, arguments):
    monkeypatch.setenv("COLUMNS", "60")
    result = run_apart(*ARGUMENTS, *arguments, "--junitxml=junit.xml", "--color=yes", test_a=READS.format(3))
    printed = result.stdout.str()
    assert "\x1b[31m\x1b[1mTest made 3 syncs, budget 2\x1b[0m" in printed
    assert "\n      device (`.detach()`) and read it once after the loop,\n" in printed
    assert 'message="Test made 3 syncs, budget 2"' in (pytester.path / "junit.xml").read_text()


def test_a_worker_that_dies_takes_no_other_result_with_it(run_apart, pytester):
    result = run_apart(
        *ARGUMENTS,
        "-n2",
        "--max-worker-restart=1",
        "--gpu-sync-report=run.json",
        test_a=READS.format(1),
        test_b="import os, signal\ndef test_dies(): os.kill(os.getpid(), signal.SIGKILL)",
        test_c=READS.format(2),
    )
    result.assert_outcomes(passed=2, failed=1)
    regions = {region["name"]: region for region in run_file(pytester.path)["regions"]}
    assert {name: region["syncs"] for name, region in regions.items()} == {
        "test_a.py::test_reads": 1,
        "test_b.py::test_dies": None,
        "test_c.py::test_reads": 2,
    }
    assert regions["test_b.py::test_dies"]["problem"] == "the worker crashed while it ran this test"


LOSES = """
def pytest_runtest_protocol(item):
    return True if item.name == "test_lost" else None  # as a worker that died without a crash item
"""


def test_a_test_that_has_no_result_fails_the_session_and_is_in_the_report(run_apart, pytester):
    pytester.makeconftest(LOSES)
    files = {"test_a": READS.format(1), "test_b": "def test_lost(): pass"}
    result = run_apart("--gpu-sync-budget=1", "-n1", "--gpu-sync-report=run.json", **files)
    result.assert_outcomes(passed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["test_b.py::test_lost: pytest-xdist collected the test and has no result of it*"])
    outcomes = {region["name"]: region["outcome"] for region in run_file(pytester.path)["regions"]}
    assert outcomes == {"test_a.py::test_reads": "passed", "test_b.py::test_lost": "not_measured"}
