"""From a line to the linter's rule."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from gpusync_lint.model.findings import Finding
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.spans import Span

from pytest_gpusync.reporting import rule_names
from pytest_gpusync.reporting.rule_names import rule_for, rules_for

TEXT = """\
for batch in loader:
    total += loss.item()
    call(
        a.item(),
        mask,
    )
"""


def finding(code, span, confidence=Confidence.HIGH, heat=Heat.STEP):
    return Finding(
        code=code,
        name="name",
        path="train.py",
        span=Span(*span),
        message="message",
        remedy=f"remedy of {code}",
        heat=heat,
        confidence=confidence,
        framework="torch",
        key="key",
    )


@pytest.fixture
def lint(tmp_path, monkeypatch):
    """Let the linter find what is given in train.py, and count how often it is asked."""
    asked = []
    (tmp_path / "train.py").write_text(TEXT)
    monkeypatch.chdir(tmp_path)

    def lint(*findings):
        def find(file, shown):
            asked.append(shown)
            return findings

        monkeypatch.setattr(rule_names, "_findings", find)
        return asked

    return lint


def test_a_line_has_the_rule_of_the_finding_on_it(lint):
    lint(finding("GS201", (2, 14, 2, 25)))
    rule = rule_for("train.py", 2)
    assert (rule.code, rule.remedy, rule.end_column) == ("GS201", "remedy of GS201", 25)


def test_a_line_without_finding_has_no_rule(lint):
    lint(finding("GS201", (2, 14, 2, 25)))
    assert rule_for("train.py", 1) is None


def test_the_surer_of_two_findings_names_the_line(lint):
    lint(finding("GS202", (2, 5, 2, 9), Confidence.LOW), finding("GS201", (2, 14, 2, 25)))
    assert rule_for("train.py", 2).code == "GS201"


@pytest.mark.parametrize(("direction", "code"), [("H2D", "GS503"), ("D2H", "GS201"), (None, "GS503")])
def test_of_several_rules_a_sync_has_that_of_its_direction(lint, direction, code):
    lint(finding("GS503", (2, 5, 2, 9)), finding("GS201", (2, 14, 2, 25)))
    assert rule_for("train.py", 2, direction).code == code


@pytest.mark.parametrize(
    ("heat", "confidence", "silent"),
    [
        (Heat.STEP, Confidence.HIGH, None),
        (Heat.STEP, Confidence.MEDIUM, None),
        (Heat.GUARDED, Confidence.HIGH, "runs in few steps"),
        (Heat.EPOCH, Confidence.HIGH, "runs once per epoch"),
        (Heat.ONCE, Confidence.HIGH, "not known to repeat"),
        (Heat.STEP, Confidence.LOW, "not certain enough"),
    ],
)
def test_a_rule_says_why_the_linter_is_silent_about_its_line(lint, heat, confidence, silent):
    lint(finding("GS201", (2, 14, 2, 25), confidence, heat))
    rule = rule_for("train.py", 2)
    assert rule.silent == silent
    said = "remedy of GS201" if silent is None else f"no lint warning ({silent}): remedy of GS201"
    assert rule.advice == said


def test_a_rule_that_warns_comes_before_a_silent_one(lint):
    lint(finding("GS202", (2, 5, 2, 9), heat=Heat.ONCE), finding("GS201", (2, 14, 2, 25), Confidence.MEDIUM))
    assert rule_for("train.py", 2).code == "GS201"


def test_a_line_with_an_allow_comment_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.py").write_text(
        "import torch\n\nx = torch.ones(3, device='cuda')\nfor _ in range(9):\n"
        "    print(x.sum().item())  # gpusync: allow[GS201] it is shown\n"
    )
    assert rule_for("loop.py", 5).silent == "allowed: it is shown"


def test_a_line_has_each_of_its_rules_once(lint):
    lint(finding("GS503", (2, 5, 2, 9)), finding("GS201", (2, 14, 2, 25)), finding("GS201", (2, 1, 2, 3)))
    assert sorted(rule.code for rule in rules_for("train.py", 2)) == ["GS201", "GS503"]


def test_a_finding_over_several_lines_names_those_that_have_none_of_their_own(lint):
    lint(finding("GS401", (3, 5, 6, 6)), finding("GS201", (4, 9, 4, 17)))
    assert [rule_for("train.py", line).code for line in (3, 4, 5)] == ["GS401", "GS201", "GS401"]


def test_a_file_is_linted_once_until_it_changes(lint, tmp_path):
    asked = lint()
    for line in (1, 2, 3):
        rule_for("train.py", line)
    assert asked == ["train.py"]
    os.utime(tmp_path / "train.py", ns=(1, 1))
    rule_for("train.py", 1)
    assert asked == ["train.py"] * 2


def test_a_linter_that_fails_costs_the_name_and_not_the_report(lint, monkeypatch):
    def fail(path, text):
        raise RecursionError("too deep")

    monkeypatch.setattr(rule_names, "_findings", fail)
    assert rule_for("train.py", 2) is None


@pytest.mark.parametrize("path", ["gone.py", "<string>", "<ipython-input-1>"])
def test_what_is_not_a_file_has_no_rules(path):
    assert rule_for(path, 1) is None


def test_the_linter_is_really_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.py").write_text(
        "import torch\n\nx = torch.ones(3, device='cuda')\nfor _ in range(9):\n    print(x.sum().item())\n"
    )
    assert rule_for("loop.py", 5).code == "GS201"


def test_the_linter_is_shown_the_files_beside_and_answers_for_the_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    for name in ("loop.py", "loading.py", "notes.txt"):
        (tmp_path / "pkg" / name).write_text(f"# {name}\n")
    shown = []

    def analyze(sources, settings):
        shown.extend(source.path for source in sources)
        beside = replace(finding("GS202", (1, 1, 1, 2)), path="pkg/loading.py")
        own = replace(finding("GS201", (1, 1, 1, 2)), path="pkg/loop.py")
        return SimpleNamespace(findings=(beside, own))

    monkeypatch.setattr("gpusync_lint.run.engine.analyze", analyze)
    assert [rule.code for rule in rules_for("pkg/loop.py", 1)] == ["GS201"]
    assert shown == ["pkg/loop.py", "pkg/loading.py"]


def test_a_crowded_folder_is_not_linted_whole(tmp_path):
    for number in range(rule_names._NEIGHBORS + 2):
        (tmp_path / f"m{number}.py").touch()
    assert rule_names._neighbors(tmp_path / "m0.py") == []
