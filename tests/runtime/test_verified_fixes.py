"""``gpusync lint --verify``: only fixes that a command confirms are kept."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from gpusync_lint.cli import requested

from pytest_gpusync.commands.lint import command_parser, main
from pytest_gpusync.commands.verify_fixes import (
    Verifier,
    check_deterministic,
    difference,
    joined_times,
    refusal,
    slower,
)
from pytest_gpusync.commands.verify_run import (
    Command,
    CommandError,
    Project,
    RunResult,
    masked_times,
    parse_command,
    step_times,
)

PROGRAM = """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
xs = torch.randn(4, 16, 8).cuda()


def train():
    total = 0.0
    for x in xs:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total


def unused():
    total = 0.0
    for x in xs:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total
"""
DONE = RunResult(0, ("loss 0.5",), {("train.py", 8): 10}, (), "simulated")
READ = "total += loss.item()"


def loops(count):
    """A program with that many loops, each with a read that can be fixed; and the lines of the reads."""
    text = "import torch\n\nmodel = torch.nn.Linear(8, 4).cuda()\n"
    text += "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nxs = torch.randn(4, 16, 8).cuda()\n"
    for number in range(count):
        text += (
            f"\n\ndef train{number}():\n    total = 0.0\n    for x in xs:\n        loss = model(x).square().mean()\n"
        )
        text += f"        loss.backward()\n        optimizer.step()\n        {READ}\n    return total\n"
    return text


def verified(folder, text, run, *, tolerance=0.0):
    (folder / "train.py").write_text(text)
    found, request = requested(command_parser().parse(["--fix", "--unsafe-fixes", "--verify", "train.py", "train.py"]))
    verifier = Verifier(found.files, request, run, lambda message: None, tolerance)
    return verifier.verify()


def waits(text, result=DONE, unused=()):
    """What a program does that waits ten times at each read of a loss, unless its function is unused."""
    reads = [number for number, line in enumerate(text.split("\n"), 1) if READ in line]
    functions = {number: re.findall(r"def (\w+)", "\n".join(text.split("\n")[:number]))[-1] for number in reads}
    return replace(result, syncs={("train.py", line): 10 for line in reads if functions[line] not in unused})


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("pytest -q tests", Command(True, ("-q", "tests"))),
        ("python -m pytest tests", Command(True, ("tests",))),
        ("/usr/bin/python3.11 train.py --steps '2 0'", Command(False, ("train.py", "--steps", "2 0"))),
        ("python -m package.train", Command(False, ("-m", "package.train"))),
        ("train.py --steps 2", Command(False, ("train.py", "--steps", "2"))),
        ("test_it.py::test_step", Command(True, ("test_it.py::test_step",))),
    ],
)
def test_a_command_is_a_program_or_a_target_of_pytest(text, command):
    for name in ("train.py", "test_it.py"):
        Path(name).touch()
    assert parse_command(text) == command


@pytest.mark.parametrize(
    "text",
    [
        "",
        "make all",
        "gone.py",
        "python -c 'x'",
        "torchrun train.py",
        "./train.sh",
        "look.ipynb",
        "'open",
        "gone.py::x",
    ],
)
def test_another_command_is_refused_in_one_line(text):
    with pytest.raises(CommandError) as error:
        parse_command(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("step 3 took 0.52s", "step 3 took 1.2s"),
        ("12:04:59 INFO loss 0.5", "12:05:01 INFO loss 0.5"),
        ("2026-01-02 10:11:12,345 start", "2026-01-03 10:11:13,001 start"),
        ("loss 0.5 | time: 12.5 | 31.2 it/s", "loss 0.5 | time: 13 | 29.9 it/s"),
        ("<Model object at 0x7f0012abcd>", "<Model object at 0x7f9912abcd>"),
        ("tok/sec: 12345.6", "tok/sec: 999.1"),
        ("time: 0.513 (0.52)  data: 1.095  max mem: 3", "time: 0.6 (0.53)  data: 1.2  max mem: 3"),
        ("lr 0.1 | ms/batch 246.31 | loss 9", "lr 0.1 | ms/batch 241.4 | loss 9"),
        ("log-2026-11-23-08-09-41-863469", "log-2026-11-23-08-10-02-120111"),
        ("Time  0.521 ( 0.610)\tData  0.02 ( 0.03)\tLoss 1", "Time  1.5 (1.6)\tData  0.1 ( 0.2)\tLoss 1"),
    ],
)
def test_times_are_masked(one, other):
    assert masked_times(one) == masked_times(other)


@pytest.mark.parametrize(
    ("one", "other"), [("loss 0.5", "loss 0.6"), ("step 3", "step 4"), ("acc 97.1%", "acc 97.2%"), ("data 3", "data 4")]
)
def test_values_are_not_masked(one, other):
    assert masked_times(one) != masked_times(other)


def test_of_a_long_line_the_part_that_differs_is_shown():
    text = "a" * 200
    why = difference(replace(DONE, output=(f"{text} 1",)), replace(DONE, output=(f"{text} 2",)))
    assert why == f"it printed '{'a' * 29} 2' instead of '{'a' * 29} 1'"


FEWER = replace(DONE, syncs={("train.py", 8): 1})


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (FEWER, None),
        (DONE, "syncs did not fall: 10 before, 10 after"),
        (replace(FEWER, status=1, last_error="ValueError: x"), "exit status 1 instead of 0 ('ValueError: x')"),
        (replace(FEWER, output=("loss 0.6",)), "it printed 'loss 0.6' instead of 'loss 0.5'"),
        (replace(FEWER, output=("loss 0.5", "more")), "it printed 2 lines instead of 1"),
        (replace(FEWER, races=("train.py:8 reads x",)), "a data race: 'train.py:8 reads x'"),
        (replace(FEWER, races=None), "races were not looked for with it"),
        (replace(FEWER, problem="the command ran longer than 5 s"), "the command ran longer than 5 s"),
    ],
)
def test_a_fix_is_kept_only_if_all_conditions_hold(after, why):
    assert refusal(DONE, DONE, after) == why


def test_a_race_that_was_there_before_does_not_count_where_its_line_moved():
    before = replace(DONE, races=("train.py:8 reads x",))
    assert refusal(before, before, replace(FEWER, races=("train.py:9 reads x",))) is None


def test_printed_numbers_are_equal_up_to_the_tolerance():
    after = replace(FEWER, output=("loss 0.5000001",))
    assert refusal(DONE, DONE, after) is not None
    assert refusal(DONE, DONE, after, 1e-6) is None
    assert refusal(DONE, DONE, replace(FEWER, output=("cost 0.5000001",)), 1e-6) is not None


MEASURED = Path(__file__).parents[2] / "benchmarks/results/2026-11-21-surfaces/h200"
"""Run files of an H200: a training with ten syncs a step, the same with one, and the ranks of another."""


def measured_times(name):
    return step_times((MEASURED / name).read_bytes())


def test_the_time_of_a_step_is_read_from_a_run_on_a_gpu():
    slow, fast = measured_times("files-run.json").values()
    assert (slow.low, slow.high, fast.low, fast.high) == pytest.approx((5.872, 6.806, 5.174, 5.8), abs=1e-3)


def test_what_takes_longer_than_its_interval_is_slower():
    slow, fast = measured_times("files-run.json").values()
    assert slower({"step": slow}, {"step": fast}) is None
    assert slower({"step": slow}, {"step": slow}) is None
    why = "slower: a step of step takes 6.32 (5.87–6.81) ms instead of 5.44 (5.17–5.8) ms"
    assert slower({"step": fast}, {"step": slow}) == why


def test_intervals_of_one_run_and_another_that_overlap_are_equal():
    slow, fast = measured_times("files-run.json").values()
    assert slower(joined_times({"step": fast}, {"step": slow}), {"step": slow}) is None


def test_what_has_too_few_steps_has_no_time():
    assert measured_times("../../2026-11-22-experiments/h200-two-gpus.json") == {}


@pytest.mark.parametrize(("again", "kept"), [("slow", False), ("fast", True)])
def test_a_fix_that_is_slower_in_both_of_two_runs_is_refused(tmp_path, again, kept):
    times = dict(zip(("slow", "fast"), measured_times("files-run.json").values(), strict=True))
    calls = []

    def run(files):
        text = files.get("train.py", PROGRAM.encode()).decode()
        fixed = text.count(READ) == 1
        calls.append(fixed)
        time = times["fast" if not fixed else "slow" if calls.count(True) == 1 else again]
        return replace(waits(text, unused={"unused"}), device="cuda", step_times={"train.py": time})

    result = verified(tmp_path, PROGRAM, run)
    trial = result.trials[1]
    assert calls == [False, False, True, False, True]
    assert trial.kept is kept
    assert kept or trial.reason.startswith("slower: a step of train.py takes 6.32 ")


def test_a_fix_is_not_tried_again_after_another_one_was_kept(tmp_path):
    text = loops(1).replace(READ, READ + "\n        other += loss.item()").replace("0.0\n", "0.0\n    other = 0.0\n", 1)
    tried = []

    def run(files):
        now = files.get("train.py", text.encode()).decode()
        tried.append(now)
        found = {("train.py", line): 10 for line, each in enumerate(now.split("\n"), 1) if ".item()" in each}
        return replace(DONE, syncs=found, output=("same" if "other += loss.item()" in now else "not the same",))

    result = verified(tmp_path, text, run)
    assert [(trial.kept, trial.tried) for trial in result.trials] == [(True, True), (False, True)]
    assert len(tried) == result.runs == 4


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (replace(DONE, output=("loss 0.7",)), "differs from itself without any fix: it printed 'loss 0.7'"),
        (replace(DONE, syncs={("train.py", 9): 10}), "train.py:8 made 10 syncs, then 0"),
        (replace(DONE, status=3), "the command fails before any fix: status 3"),
        (replace(DONE, problem="nothing was measured: x"), "nothing was measured: x"),
    ],
)
def test_a_command_that_cannot_be_compared_is_refused(second, why):
    check_deterministic(DONE, DONE)
    with pytest.raises(CommandError, match=re.escape(why)):
        check_deterministic(DONE, second)


def test_what_the_command_does_not_reach_is_not_tried(tmp_path):
    def run(files):
        return waits(files.get("train.py", PROGRAM.encode()).decode(), unused={"unused"})

    result = verified(tmp_path, PROGRAM, run)
    assert [(trial.kept, trial.tried) for trial in result.trials] == [(False, False), (True, True)]
    assert result.raws["train.py"].count(READ) == 1
    assert (result.first.total, result.last.total, result.runs) == (10, 0, 3)
    assert (tmp_path / "train.py").read_text() == PROGRAM


def test_of_many_fixes_exactly_those_that_change_results_are_refused(tmp_path):
    text = loops(12)

    def run(files):
        now = files.get("train.py", text.encode()).decode()
        spoiled = [number for number in (3, 4) if READ not in now.split(f"def train{number}():")[1].split("return")[0]]
        return waits(now, replace(DONE, output=(f"loss {spoiled}",)))

    result = verified(tmp_path, text, run)
    refused = {trial.fix.key.split("::")[1] for trial in result.trials if not trial.kept}
    assert refused == {"train3", "train4"}
    assert (sum(trial.kept for trial in result.trials), result.last.total) == (10, 20)
    assert result.runs < 2 + 12


def test_verify_options_are_checked(tmp_path, capsys):
    (tmp_path / "train.py").write_text("x = 1\n")
    assert main(["--verify", "train.py"]) == 2
    assert main(["--fix", "--add-ignores", "because of it", "--verify", "train.py"]) == 2
    with pytest.raises(SystemExit):
        main(["--fix", "--verify-timeout", "5"])
    with pytest.raises(SystemExit):
        main(["--fix", "--verify", "train.py", "--verify-mask", "("])
    errors = capsys.readouterr().err
    assert "--verify needs --fix or --diff" in errors
    assert "--verify-timeout needs --verify COMMAND" in errors
    assert len(errors.splitlines()) == 4


def test_the_configuration_of_the_linted_tree_cannot_name_a_command(tmp_path, capsys):
    (tmp_path / "train.py").write_text("x = 1\n")
    (tmp_path / "pyproject.toml").write_text("[tool.gpusync]\nverify = 'train.py'\n")
    assert main(["--fix", "--no-cache", "."]) == 2
    assert "verify" in capsys.readouterr().err


@pytest.fixture
def temporary(tmp_path_factory, monkeypatch):
    """The folder of temporary files, used by this test alone."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_command_that_takes_too_long_is_stopped_and_the_copy_removed(tmp_path, temporary):
    (tmp_path / "train.py").write_text("import time\ntime.sleep(60)\n")
    project = Project(tmp_path, timeout=0.3)
    try:
        project.copy()
        result = project.run(Command(False, ("train.py",)), {})
    finally:
        project.remove()
    assert result.problem == "the command ran longer than 0.3 s (--verify-timeout)"
    assert not list(temporary.iterdir())


@pytest.mark.long
def test_a_verified_fix_of_a_script_is_written_and_the_patch_applies(tmp_path, temporary, capfd, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    program = PROGRAM + "\n\nimport pathlib\n\nassert not pathlib.Path('left').exists()\npathlib.Path('left').touch()\n"
    program += "print(f'total {train():.4f}')\n"
    (tmp_path / "train.py").write_text(program)
    options = ["--fix", "--unsafe-fixes", "--verify", "train.py", "--verify-device", "simulated", "train.py"]
    assert main([*options, "--verify-patch", "fixes.patch", "--output-format", "json"]) == 1  # `unused` remains
    document = json.loads(capfd.readouterr().out)
    assert [(fix["kept"], fix["tried"]) for fix in document["fixes"]] == [(False, False), (True, True)]
    assert document["syncs"]["before"] - document["syncs"]["after"] == 3
    written = (tmp_path / "train.py").read_text()
    assert written.count(READ) == 1
    assert not (tmp_path / "left").exists()
    assert not list(temporary.iterdir())
    (tmp_path / "train.py").write_text(program)
    subprocess.run(["git", "apply", "fixes.patch"], cwd=tmp_path, check=True, env={**os.environ, "GIT_DIR": "/nowhere"})
    assert (tmp_path / "train.py").read_text() == written


@pytest.mark.long
def test_a_fix_is_verified_with_a_target_of_pytest(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "test_train.py").write_text("def test_it(gpu_sync):\n    import train\n\n    train.train()\n")
    options = ["--diff", "--unsafe-fixes", "--verify", "test_train.py", "--verify-device", "simulated", "train.py"]
    assert main(options) == 1
    out, err = capfd.readouterr()
    assert "+        total += loss.detach()" in out
    assert "1 of 1 tried fixes kept" in err
    assert (tmp_path / "train.py").read_text() == PROGRAM
