"""The baseline file and the ratchet: what fails, what asks to tighten, what is left alone, and how it is merged."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from measurements import stepped, sync, whole
from test_run_file import SCHEMA, violations

from pytest_gpusync.machine import devices
from pytest_gpusync.machine.devices import Device
from pytest_gpusync.model.site_key import Key
from pytest_gpusync.reporting.baseline_file import (
    Baseline,
    BaselineError,
    Change,
    Folders,
    count,
    decreases,
    increases,
    read_baseline,
    to_text,
)

KEY = Key("train.py", "step", "stream", "loss.item()")
OTHER = Key("train.py", "step", "stream", "acc.item()")

TWO = """
    import torch
    def test_reads():
        x = torch.ones(3, device="cuda")
        for _ in range(2):
            x.sum().item()
    """
THREE = TWO.replace("range(2)", "range(3)")
ONE = TWO.replace("range(2)", "range(1)")
NONE = TWO.replace("range(2)", "range(0)")
BASELINE = "--gpu-sync-baseline=base.json"
UPDATE = "--gpu-sync-update-baseline"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch, request):
    if "run" in request.fixturenames or "run_apart" in request.fixturenames:
        pytest.importorskip("torch")
        if devices.detect().kind == "cuda":
            pytest.skip("the simulated device needs a machine without a GPU, or CUDA_VISIBLE_DEVICES= (empty)")
        monkeypatch.setattr(devices, "detect", lambda: Device("none", reason="this machine has none"))


@pytest.fixture
def kept(run, pytester):
    """Write a baseline of the given files, and return its text."""

    def keep(**files):
        run(BASELINE, UPDATE, **files)
        return (pytester.path / "base.json").read_text()

    return keep


def entries(pytester):
    rows = json.loads((pytester.path / "base.json").read_text())[1:]
    return {(row["test"], row["source"]): row["syncs_per_step"] for row in rows}


def test_a_baseline_is_read_as_it_was_written(tmp_path):
    baseline = Baseline({"test_a.py::test_b": {KEY: 2, OTHER: 1}, "test_a.py::test_a": {KEY: 1}}, "simulated")
    (tmp_path / "base.json").write_text(to_text(baseline))
    assert read_baseline(tmp_path / "base.json") == baseline


def test_the_file_has_one_entry_per_line_sorted_by_test_and_line():
    text = to_text(Baseline({"b": {KEY: 1}, "a": {KEY: 1, OTHER: 1}}, None))
    found = [(row["test"], row["source"]) for row in map(json.loads, (line[1:] for line in text.splitlines()[1:-1]))]
    assert found == [("a", "acc.item()"), ("a", "loss.item()"), ("b", "loss.item()")]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("{}", "is not a baseline of this version"),
        ("[]", "is not a baseline of this version"),
        ('[{"schema": "gpusync.test-baseline/2"}]', "is not a baseline of this version"),
        ('{"schema": "gpusync.run/1"}', "is not a baseline of this version"),
        (
            '[{"schema": "gpusync.test-baseline/1"}, 3]',
            "entry 1: Expected `object`, got `int`; delete the file to write it again",
        ),
        ('[{"schema": "gpusync.test-baseline/1"}, {"test": "a"}]', "entry 1: Object missing required field `path`"),
        ('[{"schema": "gpusync.lint-baseline/1"}]', "is a baseline of the linter; use it with gpusync lint --baseline"),
        ("<<<<<<< HEAD\n[]", "has conflict markers"),
        (b"\xff\xfe\xff", "cannot be read: it is not text"),
    ],
)
def test_what_is_no_baseline_is_refused_in_one_line(tmp_path, content, complaint):
    path = tmp_path / "base.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BaselineError) as refusal:
        read_baseline(path)
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_each_half_recognizes_the_schema_of_the_other():
    from gpusync_lint.accept import baseline as of_linter

    from pytest_gpusync.reporting import baseline_file

    assert of_linter.SCHEMA.startswith(baseline_file.LINTER_SCHEMA)
    assert baseline_file.SCHEMA.startswith(of_linter.PLUGIN_SCHEMA)
    assert of_linter.DEFAULT_NAME != baseline_file.USUAL_NAME


def test_of_an_entry_that_a_merge_doubled_the_stricter_counts(tmp_path):
    texts = [to_text(Baseline({"a": {KEY: syncs}}, None)).splitlines()[1] for syncs in (3, 2)]
    (tmp_path / "base.json").write_text('[{"schema": "gpusync.test-baseline/1"}\n' + "\n".join(texts) + "\n]")
    assert read_baseline(tmp_path / "base.json").tests == {"a": {KEY: 2}}


@pytest.mark.parametrize(
    ("before", "now", "more", "fewer"),
    [
        ({KEY: 2}, {KEY: 2}, [], []),
        ({KEY: 2}, {KEY: 3}, [Change(KEY, 2, 3)], []),
        ({KEY: 2}, {KEY: 1}, [], [Change(KEY, 2, 1)]),
        ({KEY: 2}, {}, [], [Change(KEY, 2, 0)]),
        ({}, {KEY: 1}, [Change(KEY, 0, 1)], []),
        ({KEY: 2}, {OTHER: 2}, [Change(OTHER, 0, 2)], [Change(KEY, 2, 0)]),
    ],
)
def test_lines_are_compared_one_by_one(before, now, more, fewer):
    assert (increases(before, now), decreases(before, now)) == (more, fewer)


def folders(path):
    return Folders(path, path)


def test_what_a_baseline_counts_is_the_worst_step_after_warm_up(tmp_path):
    [(_, syncs)] = count([stepped([9, 1, 3, 2])], folders(tmp_path)).items()
    assert syncs == 3


def test_allowed_and_background_syncs_are_not_in_a_baseline(tmp_path):
    excused = whole(sync(allowed="meant"), sync(background=True, thread="loader"))
    assert count([excused], folders(tmp_path)) == {}


def test_lines_that_read_the_same_in_one_function_are_one_entry(tmp_path):
    (tmp_path / "train.py").write_text("x.item()\n  x.item()  # again\n")
    [(key, syncs)] = count([whole(sync(line=1), sync(line=2))], folders(tmp_path)).items()
    assert (key.source, syncs) == ("x.item()", 2)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("{root}/src/train.py", "src/train.py"),
        ("/elsewhere/train.py", "/elsewhere/train.py"),
        ("/venv/lib/python3.12/site-packages/lib/a.py", "site-packages/lib/a.py"),
        ("<string>", "<string>"),
    ],
)
def test_paths_hold_on_other_machines_where_they_can(tmp_path, path, shown):
    [key] = count([whole(sync(path=path.format(root=tmp_path)))], folders(tmp_path))
    assert key.path == shown


def test_the_baseline_is_written_on_request(kept, pytester):
    kept(test_a=TWO)
    assert entries(pytester) == {("test_a.py::test_reads", "x.sum().item()"): 2}


@pytest.mark.parametrize(("now", "outcome"), [(TWO, {"passed": 1}), (THREE, {"failed": 1}), (ONE, {"passed": 1})])
def test_a_test_may_make_as_many_syncs_as_its_baseline(kept, run, now, outcome):
    kept(test_a=TWO)
    run(BASELINE, test_a=now).assert_outcomes(**outcome)


def test_the_failure_has_the_sentence_and_the_line(kept, run):
    kept(test_a=TWO)
    run(BASELINE, test_a=THREE).stdout.fnmatch_lines(
        [
            "Test made 3 syncs on 1 line, baseline 2",
            "  test_a.py:5  x.sum().item()*3 per step, baseline 2*",
            "  simulated CUDA device, recorder simulated, coverage simulated, baseline base.json",
            "FAILED test_a.py::test_reads - Test made 3 syncs on 1 line, baseline 2",
        ]
    )


def test_a_new_line_fails_though_an_old_one_went(kept, run):
    kept(test_a=TWO)
    result = run(BASELINE, test_a=TWO.replace("x.sum().item()", "x.max().item()"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Test made 2 syncs on 1 line, baseline 0"])


def test_lines_may_move(kept, run):
    kept(test_a=TWO)
    result = run(BASELINE, test_a="    # a comment above\n" + TWO)
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK


def test_fewer_syncs_pass_and_ask_to_tighten(kept, run):
    kept(test_a=TWO)
    result = run(BASELINE, test_a=ONE)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["base.json can be tightened (*", "  2 -> 1 per step  test_a.py in test_reads: *"])


def test_a_line_that_no_longer_waits_fails_the_session(kept, run):
    kept(test_a=TWO)
    result = run(BASELINE, test_a=NONE)
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["base.json: test_a.py::test_reads no longer waits at test_a.py in test_reads: x.sum().item()"]
    )


@pytest.mark.parametrize("text", ["def test_other(): pass", None])
def test_a_test_that_is_gone_fails_the_session(kept, run, pytester, text):
    kept(test_a=TWO, test_b="def test_it(): pass")
    (pytester.path / "test_a.py").unlink()
    result = run(BASELINE, **({"test_a": text} if text else {"test_c": "def test_it(): pass"}))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["base.json: test_a.py::test_reads no longer exists"])


@pytest.mark.parametrize(
    "selection", [("-k", "other"), ("test_a.py::test_other",), ("test_b.py",), ("--deselect=test_a.py::test_reads",)]
)
def test_tests_that_were_not_selected_are_left_alone(kept, run, pytester, selection):
    before = kept(test_a=TWO + "\n    def test_other(): pass", test_b="def test_other(): pass")
    assert run(BASELINE, *selection).ret == pytest.ExitCode.OK
    run(BASELINE, UPDATE, *selection)
    assert (pytester.path / "base.json").read_text() == before


def test_a_test_that_fails_by_itself_keeps_its_entries(kept, run, pytester):
    before = kept(test_a=TWO)
    broken = TWO.replace("for _", "assert False\n        for _")
    run(BASELINE, test_a=broken).stdout.no_fnmatch_line("*no longer waits*")
    run(BASELINE, UPDATE)
    assert (pytester.path / "base.json").read_text() == before


def test_an_update_drops_what_is_stale(kept, pytester):
    kept(test_a=TWO, test_b=TWO)
    (pytester.path / "test_b.py").unlink()
    kept(test_a=NONE)
    assert entries(pytester) == {}


def test_a_test_over_its_budget_is_written_to_the_baseline(run, pytester):
    run(BASELINE, UPDATE, "--gpu-sync-budget=1", test_a=TWO).assert_outcomes(failed=1)
    assert list(entries(pytester).values()) == [2]


def test_a_test_that_touches_no_gpu_needs_no_entries(kept, run):
    kept(test_a="def test_it(): pass")
    assert run(BASELINE).ret == pytest.ExitCode.OK


def test_an_expected_failure_may_name_the_baseline(kept, run):
    kept(test_a=TWO)
    marked = THREE.replace(
        "def test",
        "import pytest\n    from pytest_gpusync import BudgetExceeded\n"
        "    @pytest.mark.xfail(raises=BudgetExceeded, strict=True)\n    def test",
    )
    run(BASELINE, test_a=marked).assert_outcomes(xfailed=1)


def test_the_broken_baseline_stands_in_the_reports(kept, run, pytester):
    kept(test_a=TWO)
    run(BASELINE, "--gpu-sync-report=run.json", test_a=THREE)
    document = json.loads((pytester.path / "run.json").read_text())
    assert violations(document, SCHEMA) == []
    [region] = document["regions"]
    [verdict] = region["verdicts"]
    assert (region["outcome"], verdict["quantity"], verdict["max"], verdict["measured"]) == ("failed", "baseline", 2, 3)


def test_the_steps_of_gpu_train_are_what_is_counted(kept, pytester):
    kept(
        test_a="""
        import torch
        def test_train(gpu_train):
            x = torch.ones(3, device="cuda")
            gpu_train(lambda: x.sum().item(), steps=5, warmup=2)
        """
    )
    assert list(entries(pytester).values()) == [1]


def test_a_baseline_of_another_coverage_is_pointed_out(kept, run, pytester):
    text = kept(test_a=TWO)
    (pytester.path / "base.json").write_text(text.replace('"simulated"', '"driver"'))
    run(BASELINE).stdout.fnmatch_lines(["base.json was written with coverage driver, this session has simulated: *"])


def test_the_ini_file_may_name_the_baseline(kept, run, pytester):
    kept(test_a=TWO)
    pytester.makeini("[pytest]\ngpu_sync_baseline = base.json\n")
    run(test_a=THREE).assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((BASELINE,), "*base.json does not exist; --gpu-sync-update-baseline creates it"),
        ((UPDATE,), "*--gpu-sync-update-baseline needs the file: add --gpu-sync-baseline=PATH"),
        (("--gpu-sync-baseline=.",), "*--gpu-sync-baseline: . is a folder"),
    ],
)
def test_what_cannot_be_held_to_is_a_usage_error(run, arguments, complaint):
    result = run(*arguments, test_a=TWO)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {complaint}"])


def test_a_corrupt_baseline_is_a_usage_error_even_for_an_update(run, pytester):
    (pytester.path / "base.json").write_text("{")
    assert run(BASELINE, UPDATE, test_a=TWO).ret == pytest.ExitCode.USAGE_ERROR
    assert (pytester.path / "base.json").read_text() == "{"


def test_workers_judge_and_the_controller_settles(run_apart, pytester):
    pytest.importorskip("xdist")
    gone = TWO.replace("test_reads", "test_gone")
    arguments = ("-n2", "--gpu-device=simulated", BASELINE)
    run_apart(*arguments, UPDATE, test_a=TWO, test_b=TWO, test_c=TWO + gone)
    result = run_apart(*arguments, test_a=THREE, test_b=NONE, test_c=TWO)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["Test made 3 syncs on 1 line, baseline 2"])
    result.stdout.fnmatch_lines(
        [
            "base.json: test_c.py::test_gone no longer exists",
            "base.json: test_b.py::test_reads no longer waits at test_b.py in test_reads: x.sum().item()",
        ]
    )


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_branches_that_add_entries_merge(tmp_path):
    def git(*arguments):
        name = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *name, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def commit(tests):
        (tmp_path / "base.json").write_text(to_text(Baseline({test: {KEY: 1} for test in tests}, None)))
        git("commit", "-qam", "baseline")

    git("init", "-q", "-b", "main")
    (tmp_path / ".gitattributes").write_text("base.json merge=union\n")
    (tmp_path / "base.json").touch()
    git("add", ".")
    commit(["m"])
    git("checkout", "-qb", "one")
    commit(["a", "m", "n"])
    git("checkout", "-q", "main")
    commit(["b", "m", "o"])
    git("merge", "one")
    assert sorted(read_baseline(tmp_path / "base.json").tests) == ["a", "b", "m", "n", "o"]
