"""What ``gpusync lint --verify`` keeps and refuses, each shown by real runs on the simulated device.

Each run is a process of its own, forked from one that has imported torch: that takes most of the time of a run.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pytest_gpusync.commands import verify_run
from pytest_gpusync.commands.lint import main

_SERVER = """
import json, os, random, sys
import torch
import gpusync_lint.run.engine, pytest_gpusync.commands.trace, pytest_gpusync.simulated.device
import pytest_gpusync.reporting.run_file
from gpusync_lint.rules import all_rules
from pytest_gpusync.commands.cli import main

all_rules()
path = sys.path[1:]
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()
        for number, name in enumerate((os.devnull, job["stdout"], job["stderr"])):
            os.dup2(os.open(name, os.O_WRONLY if number else os.O_RDONLY), number)
        os.chdir(job["folder"])
        os.environ.clear()
        os.environ.update(job["environment"])
        sys.path[1:] = [*job["environment"].get("PYTHONPATH", "").split(os.pathsep), *path]
        torch.seed()
        random.seed()
        code = main(job["arguments"])
        sys.stdout.flush()
        os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

HEAD = """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
xs = torch.randn(5, 16, 8).cuda()


def step(x):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


"""

LISTED = """\
seen = []
for x in xs:
    seen.append(step(x).item())
print(seen)
"""
"""Its fix gives the same numbers."""

SUMMED = """\
total = 0.0
for x in xs:
    total += step(x).item()
print(repr(total))
"""
"""Its fix adds up in 32 bits, so the last digits change."""

ONCE = """\
for name in ("only",):
    losses = []
    for x in xs[:1]:
        losses.append(step(x).item())
    print(name, losses)
"""
"""Its loop has one pass, so the fix saves nothing."""

COMPARED = """\
first, second = 0.0, 0.0
for x in xs:
    loss = step(x)
    first += loss.item()
    second += loss.item()
print(first - second)
"""
"""Both sums are equal if both are rounded, or neither."""

RACE = {
    "copies.py": "def fetch(host, value):\n    host.copy_(value, non_blocking=True)\n",
    "train.py": HEAD
    + """\
from copies import fetch

host = torch.zeros(()).pin_memory()
side = torch.cuda.Stream()
for x in xs:
    loss = step(x).detach()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        fetch(host, loss)
    side.synchronize()
    print(float(host))
""",
}
"""The wait of its fix orders the streams, and not the host, which reads the copy."""


class _Server:
    """The process that runs are forked from."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )

    def run(self, job, timeout):
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        child = int(self.process.stdout.readline())
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            os.killpg(child, signal.SIGKILL)
            self.process.stdout.readline()
            return None
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def server():
    found = _Server()
    yield found
    found.process.stdin.close()
    found.process.wait()


@pytest.fixture
def verify(tmp_path, tmp_path_factory, monkeypatch, capfd, server):
    """A function that writes files and verifies their fixes; it returns the exit status, the JSON and the notes."""

    class Forked(verify_run.Project):
        def _execute(self, argv, stdout, stderr):
            assert argv[1:3] == ["-m", "pytest_gpusync"]
            job = {"arguments": argv[3:], "folder": str(self._work), "environment": self._environment()}
            return server.run(job | {"stdout": stdout.name, "stderr": stderr.name}, self._timeout)

    copies = tmp_path_factory.mktemp("copies")
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    monkeypatch.setattr(verify_run, "Project", Forked)
    monkeypatch.chdir(tmp_path)

    def run(files, *options, command="train.py"):
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        common = ["--fix", "--unsafe-fixes", "--no-cache", "--verify-device", "simulated", "--output-format", "json"]
        code = main([*common, "--verify", command, *options, "."])
        assert not list(copies.iterdir())
        out, err = capfd.readouterr()
        return code, json.loads(out) if out else None, err

    return run


def results(document):
    return [(fix["line"], fix["kept"], fix["reason"]) for fix in document["fixes"]]


def test_of_two_fixes_in_a_file_the_one_that_changes_results_is_refused(verify, tmp_path):
    text = HEAD + LISTED + SUMMED
    code, document, _ = verify({"train.py": text})
    (_, kept, _), (_, other, reason) = results(document)
    assert (kept, other) == (True, False)
    assert reason.startswith("it printed '") and "instead of '" in reason
    written = (tmp_path / "train.py").read_text()
    assert written == text.replace("step(x).item())", "step(x).detach())").replace(
        "print(seen)", "seen = torch.stack(seen).tolist() if seen else []\nprint(seen)"
    )
    assert code == 1
    assert document["syncs"]["before"] - document["syncs"]["after"] == 4


@pytest.mark.long
def test_a_tolerance_keeps_a_sum_that_is_rounded(verify):
    _, document, _ = verify({"train.py": HEAD + SUMMED}, "--verify-tolerance", "1e-5")
    assert [kept for _, kept, _ in results(document)] == [True]


@pytest.mark.long
def test_a_fix_after_which_the_command_fails_is_refused(verify, tmp_path):
    text = HEAD + LISTED.replace("seen = []", "seen = []\nrestart()") + "restart()\n"
    text = text.replace(
        "def step", "def restart():\n    torch.manual_seed(0)\n    model.reset_parameters()\n\n\ndef step"
    )
    text += SUMMED.replace("print(repr(total))", "assert total == sum(seen)")
    _, document, _ = verify({"train.py": text})
    assert [kept for _, kept, _ in results(document)] == [True, False]
    assert results(document)[1][2] == "exit status 1 instead of 0 ('AssertionError')"


def test_a_fix_that_introduces_a_race_is_refused(verify, tmp_path):
    _, document, _ = verify(RACE)
    ((_, kept, reason),) = [one for one in results(document) if "Let the" in document["fixes"][0]["title"]]
    assert not kept
    assert reason.startswith("a data race: ")
    assert (tmp_path / "train.py").read_text() == RACE["train.py"]


@pytest.mark.long
def test_a_fix_that_saves_no_sync_is_refused(verify):
    _, document, _ = verify({"train.py": HEAD + ONCE})
    ((_, kept, reason),) = results(document)
    assert not kept
    before, after = document["fixes"][0]["syncs"].values()
    assert reason == f"syncs did not fall: {before} before, {after} after"


@pytest.mark.long
def test_fixes_that_need_each_other_are_kept_together(verify):
    _, document, _ = verify({"train.py": HEAD + COMPARED + ONCE})
    assert [kept for _, kept, _ in results(document)] == [True, True, False]
    assert [fix["tried_together"] for fix in document["fixes"]] == [2, 2, 1]


@pytest.mark.long
def test_a_fix_with_which_the_command_hangs_is_refused(verify):
    waits = "import pathlib, time\nif 'detach' in pathlib.Path(__file__).read_text():\n    time.sleep(600)\n"
    _, document, _ = verify(
        {"train.py": waits.replace("detach", "det' + 'ach") + HEAD + LISTED}, "--verify-timeout", "30"
    )
    ((_, kept, reason),) = results(document)
    assert not kept
    assert reason == "the command ran longer than 30 s (--verify-timeout)"


@pytest.mark.long
def test_a_command_that_is_random_says_how_it_differs(verify, tmp_path):
    text = HEAD.replace("torch.manual_seed(0)\n", "") + LISTED
    code, document, err = verify({"train.py": text})
    assert (code, document) == (2, None)
    assert "the command differs from itself without any fix: it printed '[" in err
    assert "seed it" in err
    assert (tmp_path / "train.py").read_text() == text


@pytest.mark.long
def test_a_command_that_fails_says_why(verify):
    code, document, err = verify({"train.py": HEAD + LISTED + "raise ValueError('no data')\n"})
    assert (code, document) == (2, None)
    assert err.endswith("the command fails before any fix: status 1 ('ValueError: no data')\n")


@pytest.mark.long
def test_a_command_without_the_device_says_so(verify):
    code, _, err = verify({"train.py": "print(1)\n"})
    assert code == 2
    assert "nothing was measured: the command used no device" in err


@pytest.mark.long
def test_fixes_in_notebooks_are_listed_and_not_tried(verify, tmp_path):
    cell = {"cell_type": "code", "metadata": {}, "source": HEAD + LISTED, "outputs": [], "execution_count": None}
    notebook = json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    _, document, _ = verify({"train.py": HEAD + LISTED, "look.ipynb": notebook})
    assert {fix["path"]: fix["reason"] for fix in document["fixes"]} == {
        "look.ipynb": "it is in a notebook, which no command runs",
        "train.py": None,
    }
    assert (tmp_path / "look.ipynb").read_text() == notebook


@pytest.mark.long
def test_changes_that_are_not_committed_stay(verify, tmp_path):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(tmp_path)]
    (tmp_path / "train.py").write_text(HEAD + LISTED)
    (tmp_path / "settings.py").write_text("scale = 1\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a"]):
        subprocess.run([*git, *command], check=True)
    (tmp_path / "settings.py").write_text("scale = 2\n")
    files = {"train.py": "import settings, untracked\n" + HEAD + LISTED + "print(settings.scale)\n", "untracked.py": ""}
    _, document, _ = verify(files)
    assert document["syncs"]["after"] < document["syncs"]["before"]
    status = subprocess.run([*git, "status", "--short"], check=True, capture_output=True, text=True).stdout
    assert status == " M settings.py\n M train.py\n?? untracked.py\n"
    assert (tmp_path / "settings.py").read_text() == "scale = 2\n"
    assert "print(settings.scale)" in (tmp_path / "train.py").read_text()


@pytest.mark.long
def test_a_command_that_prints_nothing_is_named(verify):
    _, document, err = verify({"train.py": HEAD + LISTED.replace("print(seen)", "del seen")})
    assert document is not None
    assert "the command prints nothing, so of its results only the exit status is compared" in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_nothing_behind(tmp_path, tmp_path_factory, number, code):
    copies = tmp_path_factory.mktemp("copies")
    text = "import time\ntime.sleep(60)\n" + HEAD + LISTED
    (tmp_path / "train.py").write_text(text)
    argv = ["--fix", "--unsafe-fixes", "--no-cache", "--verify", "train.py", "train.py"]
    paths = [str(Path(verify_run.__file__).parents[2]), *filter(None, sys.path)]
    environment = {**os.environ, "TMPDIR": str(copies), "PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(
        [sys.executable, "-m", "pytest_gpusync", "lint", *argv],
        cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr.readline() == "gpusync lint: running the command without fixes\n"
        deadline = time.monotonic() + 20
        while not list(copies.glob("*/stdout")) and time.monotonic() < deadline:
            time.sleep(0.02)  # the command starts
        process.send_signal(number)
        assert process.wait(20) == code
        assert "Traceback" not in process.stderr.read()
    assert not list(copies.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    assert (tmp_path / "train.py").read_text() == text
