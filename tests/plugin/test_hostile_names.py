"""Names, reasons and messages with control characters and commands of a CI's log, in every output of the plugin."""

from __future__ import annotations

import json
import re
import unicodedata
from xml.etree import ElementTree

import pytest

HOSTILE = "x\x1b[31mRED\x1b]0;title\x07\n::error title=pwned::pwned\r\u202e\u2028\x85%0A::error::<b>|`*_\udcff"
"""ANSI colors, a title for the terminal, commands of GitHub and Azure, text that runs backwards, markup, no UTF-8."""

STEP = "def read(x):\n    return x.sum().item()\n"
FILE_NAME = "step\x1b[31m\n::error title=pwned::pwned\u202e.py"

TESTS = """
import importlib.util, pathlib, threading
import pytest, torch

HOSTILE = {hostile!r}

spec = importlib.util.spec_from_file_location("step", pathlib.Path(__file__).with_name({file_name!r}))
step = importlib.util.module_from_spec(spec)
spec.loader.exec_module(step)


@pytest.mark.gpu_sync_budget(max=0)
def test_reads_in_a_file_with_a_hostile_name():
    step.read(torch.ones(2, device="cuda"))


def test_a_hostile_reason_and_name(gpu_sync):
    x = torch.ones(2, device="cuda")
    with gpu_sync.budget(max=0, name=HOSTILE):
        with gpu_sync.allow(HOSTILE):
            x.sum().item()
        step.read(x)


def test_a_hostile_thread(gpu_sync):
    x = torch.ones(2, device="cuda")
    with gpu_sync.budget(max=0, name="##[error]" + HOSTILE):
        thread = threading.Thread(target=step.read, args=(x,), name=HOSTILE)
        thread.start()
        thread.join()
        step.read(x)


@pytest.mark.gpu_sync_budget(max=0)
def test_a_hostile_phase():
    x = torch.ones(2, device="cuda")
    with torch.profiler.record_function(HOSTILE.rstrip("\\udcff")):
        step.read(x)


@pytest.mark.gpu_sync_budget(max=HOSTILE)
def test_a_hostile_limit():
    pass


@pytest.mark.gpu_sync_budget(max=1, step_on=HOSTILE)
def test_a_hostile_end_of_steps():
    step.read(torch.ones(2, device="cuda"))


@pytest.mark.gpu_sync_budget(max=1)
def test_nothing_runs_after_a_hostile_failure(gpu_sync):
    from pytest_gpusync import NotMeasured
    raise NotMeasured("Not measured: " + HOSTILE)
"""


@pytest.fixture
def run_hostile(run, no_gpu, pytester):
    """Run the tests above."""
    pytester.path.joinpath(FILE_NAME).write_text(STEP)
    source = TESTS.format(hostile=HOSTILE, file_name=FILE_NAME)
    return lambda *arguments: run("--color=no", *arguments, test_hostile=source)


def assert_harmless(text, *, allowed=""):
    """Check that a terminal and the log of a CI job take text for text."""
    for line in text.split("\n"):
        found = {char for char in line if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - set(allowed)
        assert not found, (found, line)
        assert not line.lstrip().startswith("::error title=pwned"), line
        assert not re.match(r"\s*::(?!error file=)", line), line
        assert "##[" not in line, line


def written(result):
    return "\n".join((*result.outlines, *result.errlines))


@pytest.mark.parametrize("arguments", [("-q",), ("-v", "-n", "1")])
def test_the_terminal(run_hostile, monkeypatch, arguments):
    if "-n" in arguments:
        pytest.importorskip("xdist")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    result = run_hostile(*arguments, "--gpu-device=simulated")
    text = written(result)
    assert "RED" in text
    assert re.search("^::error file=", text, re.MULTILINE)
    assert_harmless(text)
    result.assert_outcomes(failed=6, errors=1)


def test_reports(run_hostile, pytester):
    names = ["run.json", "run.md", "run.html", "run.trace.json"]
    run_hostile("--gpu-device=simulated", "--junitxml=junit.xml", *(f"--gpu-sync-report={name}" for name in names))
    for name in names:
        text = (pytester.path / name).read_text()
        assert "RED" in text, name
        if name.endswith("json"):
            assert "\x1b" not in text
            json.loads(text)
        elif name.endswith("md"):
            assert_harmless(text, allowed="\u200b")
            assert "<b>" not in re.sub(r"(`+).*?\1", "", text)
        else:  # a page is no terminal
            assert "<b>|" not in text
    tree = ElementTree.parse(pytester.path / "junit.xml")
    properties = [element.get("value") for element in tree.iter("property")]
    assert any("RED" in value for value in properties)
    for value in properties:
        assert_harmless(value)
    messages = [failure.get("message") for failure in tree.iter("failure")]
    assert any("RED" in message for message in messages)
    for message in messages:
        assert_harmless(message)


def test_a_baseline_with_hostile_names(run_hostile, pytester):
    run_hostile("--gpu-device=simulated", "--gpu-sync-baseline=base.json", "--gpu-sync-update-baseline", "-k", "phase")
    baseline = pytester.path / "base.json"
    written_by_us = baseline.read_text()
    for name in ("test_hostile.py", "read"):
        assert name in written_by_us
        baseline.write_text(written_by_us.replace(name, json.dumps(HOSTILE)[1:-1]))
        result = run_hostile("--gpu-device=simulated", "--gpu-sync-baseline=base.json", "-k", "phase")
        assert_harmless(written(result))
        assert result.ret != 0


@pytest.mark.parametrize(
    "key", ["gpu_sync_budget", "gpu_device", "gpu_memory_growth", "gpu_sync_report", "gpu_sync_baseline"]
)
def test_an_ini_file_with_a_hostile_value(run_hostile, pytester, key):
    pytester.path.joinpath("pytest.ini").write_text(
        f"[pytest]\n{key} = x\x1b[31m\n  ::error title=pwned::pwned\n", encoding="utf-8"
    )
    result = run_hostile("-k", "phase")
    assert result.ret != 0
    assert_harmless(written(result))
