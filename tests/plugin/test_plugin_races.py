"""Races under pytest: which tests they fail, and where they are reported."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

torch = pytest.importorskip("torch")

RACE = """
import pytest
import torch

def race():
    x = torch.ones(1024, device="cuda")
    host = x.to("cpu", non_blocking=True)
    return host.sum()
"""


@pytest.fixture
def run(run, no_gpu):
    return lambda test, *arguments: run("--gpu-device=simulated", *arguments, test_it=RACE + test)


PLAIN = "def test_it():\n    race()\n"


def test_a_race_fails_a_test_under_a_budget_that_it_keeps(run):
    result = run(PLAIN, "--gpu-sync-budget=0")
    result.assert_outcomes(failed=1)
    said = "test_it.py:7 reads host (?1024?, 4 KiB) on the host; the copy that fills it was queued at test_it.py:6"
    result.stdout.fnmatch_lines([f"*A race: {said}*"])


def test_a_race_fails_no_test_without_a_budget(run):
    run(PLAIN, "--gpu-sync-report=run.json").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("@pytest.mark.gpu_sync_budget(max=0)\ndef test_it():\n    race()\n", {"failed": 1}),
        ("@pytest.mark.gpu_sync_budget(max=None)\ndef test_it():\n    race()\n", {"passed": 1}),
        ("def test_it(gpu_sync):\n    with gpu_sync.budget(max=0):\n        race()\n", {"failed": 1}),
        ("def test_it(gpu_sync):\n    with gpu_sync.record():\n        race()\n", {"passed": 1}),
        ("def test_it(gpu_train):\n    gpu_train(race, steps=5).assert_syncs(max=0)\n", {"failed": 1}),
        ("def test_it(gpu_train):\n    gpu_train(race, steps=5)\n", {"passed": 1}),
    ],
)
def test_every_kind_of_budget_comes_with_races(run, test, outcome):
    run(test).assert_outcomes(**outcome)


@pytest.mark.parametrize("mode", ["report", "ignore"])
def test_races_fail_nothing_where_they_are_only_reported_or_ignored(run, mode):
    run(PLAIN, "--gpu-sync-budget=0", f"--gpu-races={mode}").assert_outcomes(passed=1)


def test_the_ini_file_sets_what_a_race_does(run):
    run(PLAIN, "--gpu-sync-budget=0", "-o", "gpu_races=report").assert_outcomes(passed=1)


def test_an_unknown_mode_is_a_usage_error(run):
    result = run(PLAIN, "--gpu-races=maybe")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--gpu-races takes fail, report or ignore, not 'maybe'*"])


MARKED = "@pytest.mark.gpu_races({})\n" + PLAIN


def test_a_marker_with_a_reason_excuses_the_races_of_a_test(run):
    run(MARKED.format('ignore="the sum is thrown away"'), "--gpu-sync-budget=0").assert_outcomes(passed=1)


@pytest.mark.parametrize("arguments", ["", "ignore=''", "ignore=True", "'reason'", "fail='x'"])
def test_a_marker_without_a_reason_is_an_error(run, arguments):
    result = run(MARKED.format(arguments), "--gpu-sync-budget=0")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the marker gpu_races takes one argument, ignore, with the reason*"])


def test_the_json_report_has_the_races_of_each_region(run, pytester):
    run(PLAIN, "--gpu-sync-report=run.json")
    (region,) = json.loads((pytester.path / "run.json").read_text(encoding="utf-8"))["regions"]
    (race,) = region["races"]
    assert (race["kind"], race["path"], race["line"], race["tensor"], race["bytes"]) == (
        "host-read",
        "test_it.py",
        7,
        "host",
        4096,
    )
    assert race["other"] == {"path": "test_it.py", "line": 6, "function": "race", "stream": "default stream"}


def test_races_that_were_ignored_were_not_checked(run, pytester):
    run(PLAIN, "--gpu-sync-report=run.json", "--gpu-races=ignore")
    (region,) = json.loads((pytester.path / "run.json").read_text(encoding="utf-8"))["regions"]
    assert region["races"] is None


@pytest.mark.parametrize("ending", ["html", "md"])
def test_pages_show_both_lines(run, pytester, ending):
    run(PLAIN, f"--gpu-sync-report=run.{ending}")
    page = (pytester.path / f"run.{ending}").read_text(encoding="utf-8").replace("\\", "")
    assert "test_it.py:7 reads host" in page
    assert "was queued at test_it.py:6" in page


def test_a_junit_file_has_the_race_of_a_test(run, pytester):
    run(PLAIN, "--gpu-sync-budget=0", "--junitxml=junit.xml")
    properties = ElementTree.parse(pytester.path / "junit.xml").iter("property")
    messages = [found.get("value") for found in properties if found.get("name") == "gpusync.race"]
    assert [message.startswith("test_it.py:7 reads host") for message in messages] == [True]


def test_a_github_job_gets_an_annotation_at_the_later_line(run, monkeypatch, pytester):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(pytester.path))
    result = run(PLAIN, "--gpu-sync-budget=0")
    result.stdout.fnmatch_lines(["::error file=test_it.py,line=7,*::A race: test_it.py:7 *also test_it.py:6*"])


def test_the_summary_lists_races(run):
    run(PLAIN, "--gpu-sync-report=run.json").stdout.fnmatch_lines(["races:", "  test_it.py:7 reads host*"])


IN_A_PROCESS = """
import multiprocessing
import worker

def start(method):
    process = multiprocessing.get_context(method).Process(target=worker.race)
    process.start()
    process.join()

def test_it():
    start("{method}")
"""


@pytest.mark.parametrize(("method", "name"), [("spawn", "SpawnProcess-1"), ("fork", "ForkProcess-1")])
def test_a_race_in_a_process_fails_the_test_that_started_it(run_apart, pytester, method, name):
    test = IN_A_PROCESS.format(method=method)
    options = ("--gpu-device=simulated", "--gpu-sync-budget=0", "--gpu-sync-report=run.json")
    result = run_apart(*options, test_it=test, worker=RACE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{name}: A race: worker.py:7 reads host*queued at worker.py:6*"])
    regions = json.loads((pytester.path / "run.json").read_text())["regions"]
    assert [len(region["races"]) for region in regions] == [0, 1]


def test_races_in_a_process_are_left_alone_where_they_are_ignored(run_apart):
    test = IN_A_PROCESS.format(method="spawn")
    options = ("--gpu-device=simulated", "--gpu-sync-budget=0", "--gpu-races=ignore")
    run_apart(*options, test_it=test, worker=RACE).assert_outcomes(passed=1)
