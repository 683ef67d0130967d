"""Annotations of a GitHub job: where they point, what they say, and which tests have none."""

from __future__ import annotations

import pytest
from measurements import stepped, sync, whole

from pytest_gpusync.machine import devices
from pytest_gpusync.machine.devices import Device
from pytest_gpusync.model.budgets import Budget, judge
from pytest_gpusync.reporting import github
from pytest_gpusync.reporting.github import FailedTest, commands
from pytest_gpusync.reporting.run_file import region_document

READS = """
    import pytest, torch
    def test_reads():
        x = torch.ones(3, device="cuda")
        for _ in range(3):
            x.sum().item()
    """


@pytest.fixture
def annotate(tmp_path):
    """Return the annotations of one failed test whose regions are given."""

    def annotate(*regions, base="", workspace=""):
        test = FailedTest("test_a.py::test_b", str(tmp_path / "test_a.py"), 7)
        return commands([test], {test.nodeid: list(regions)}, base=tmp_path / base, workspace=tmp_path / workspace)

    return annotate


def region(measurement, budget):
    return region_document(measurement, [judge(measurement, budget)])


def test_an_annotation_stands_at_the_line_that_waited_most(annotate):
    measured = whole(sync(line=5), sync(line=9), sync(line=9))
    assert annotate(region(measured, Budget(max=1))) == [
        "::error file=train.py,line=9,title=test_a.py%3A%3Atest_b::Region made 3 syncs, budget 1%0Aalso train.py:5"
    ]


def test_the_path_is_relative_to_the_checkout(annotate):
    [command] = annotate(region(whole(sync()), Budget(max=0)), base="packages/one")
    assert command.startswith("::error file=packages/one/train.py,")


def test_a_line_outside_the_checkout_is_annotated_at_the_test(annotate):
    [command] = annotate(region(whole(sync(path="/usr/lib/lib.py")), Budget(max=0)))
    assert command.startswith("::error file=test_a.py,line=7,")
    assert "also /usr/lib/lib.py:1" in command


def test_fewer_syncs_than_exactly_so_many_are_annotated_at_the_test(annotate):
    [command] = annotate(region(whole(), Budget(exact=1)))
    assert command.startswith("::error file=test_a.py,line=7,")


def test_a_budget_that_was_not_measured_is_annotated_at_the_test(annotate):
    [command] = annotate(region(whole(sync(), problem="CUPTI is taken"), Budget(max=0)))
    assert command.endswith("::Not measured: CUPTI is taken")
    assert command.startswith("::error file=test_a.py,line=7,")


def test_a_kept_budget_is_not_annotated(annotate):
    assert annotate(region(stepped([1, 1]), Budget(max=1))) == []


def test_the_same_failure_is_annotated_once(annotate):
    one = region(whole(sync()), Budget(max=0))
    assert len(annotate(one, one)) == 1


def test_many_lines_are_counted_not_listed(annotate):
    many = whole(*(sync(line=line) for line in range(1, 21)))
    assert "train.py:6 and 14 more" in annotate(region(many, Budget(max=0)))[0]


@pytest.mark.parametrize("text", ["100%", "two\nlines", "a\r\nb"])
def test_a_message_stays_on_one_line_and_keeps_its_per_cents(text):
    escaped = github._escaped(text)
    assert "\n" not in escaped
    assert escaped.replace("%0A", "\n").replace("%25", "%") == text.replace("\r", "")


@pytest.fixture
def job(run, pytester, monkeypatch):
    pytest.importorskip("torch")
    if devices.detect().kind == "cuda":
        pytest.skip("the simulated device needs a machine without a GPU, or CUDA_VISIBLE_DEVICES= (empty)")
    monkeypatch.setattr(devices, "detect", lambda: Device("none", reason="this machine has none"))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(pytester.path))
    return run


@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_a_job_is_annotated(job, quiet):
    result = job("--gpu-sync-budget=2", *quiet, test_a=READS)
    result.stdout.fnmatch_lines(["::error file=test_a.py,line=5,title=*::Test made 3 syncs, budget 2%0AGS201: *"])


def test_a_broken_baseline_is_annotated_at_its_line(job):
    job("--gpu-sync-baseline=base.json", "--gpu-sync-update-baseline", test_a=READS)
    more = READS.replace("x.sum().item()", "x.sum().item(); x.sum()\n        x.max().item()")
    result = job("--gpu-sync-baseline=base.json", test_a=more)
    result.stdout.fnmatch_lines(["::error file=test_a.py,line=*::Test made * baseline 0*"])


def test_an_expected_failure_is_not_annotated(job):
    result = job("--gpu-sync-budget=2", test_a=READS.replace("def test", "@pytest.mark.xfail\n    def test"))
    result.stdout.no_fnmatch_line("::error*")


def test_elsewhere_nothing_is_annotated(job, monkeypatch):
    monkeypatch.delenv("GITHUB_ACTIONS")
    job("--gpu-sync-budget=2", test_a=READS).stdout.no_fnmatch_line("::error*")
