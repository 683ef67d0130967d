"""The outputs of shards as one, through ``gpusync report merge``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from gpusync_lint import cli, output

from pytest_gpusync.commands import report

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEP = (
    "import torch\n\ndef train(loader, model):\n    for batch in loader:\n        print(model(batch.cuda()).item())\n"
)
FILES = {"a.py": STEP, "b.py": STEP, "c.py": "x = 1\n"}


@pytest.fixture
def lint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Lint files of a project into a file in the format of its ending; return its name."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)

    def lint(out: str, *arguments: str) -> str:
        form = out.rpartition(".")[2]
        cli.main([*arguments, "--output-format", form])
        (tmp_path / out).write_text(capsys.readouterr().out)
        return out

    return lint


def load(path: Path | str) -> dict:
    with open(path) as stream:
        return json.load(stream)


MERGEABLE = ["gitlab", "json", "sarif"]


@pytest.mark.parametrize("ending", MERGEABLE)
def test_a_file_is_recognized_by_its_own_format_alone(lint, ending):
    document = load(lint(f"a.{ending}", "a.py"))
    recognizing = [each for each in output.mergeable() if each.recognizes(document)]
    assert [type(each) for each in recognizing] == [type(output.named(ending))]


@pytest.mark.parametrize(
    ("ending", "options"),
    [*((ending, ()) for ending in MERGEABLE), ("json", ("--statistics",)), ("sarif", ("--statistics",))],
)
def test_merged_shards_are_the_run_over_all_files(lint, ending, options):
    whole = lint(f"whole.{ending}", "a.py", "b.py", "c.py", *options)
    shards = [lint(f"{name}.{ending}", f"{name}.py", *options) for name in "abc"]
    assert report.main(["merge", f"all.{ending}", *shards]) == 0
    merged, expected = load(f"all.{ending}"), load(whole)
    if ending == "sarif":
        # Not merged: how often each code was reported.
        expected["runs"][0]["properties"] = {"files": 3}
    assert merged == expected


@pytest.mark.parametrize("ending", MERGEABLE)
def test_the_order_of_the_shards_does_not_matter(lint, tmp_path, ending):
    shards = [lint(f"{name}.{ending}", f"{name}.py") for name in "abc"]
    report.main(["merge", f"one.{ending}", *shards])
    report.main(["merge", f"two.{ending}", *reversed(shards)])
    assert (tmp_path / f"one.{ending}").read_text() == (tmp_path / f"two.{ending}").read_text()


@pytest.mark.parametrize("ending", MERGEABLE)
def test_a_finding_of_two_shards_is_one(lint, ending):
    shards = [lint(f"{n}.{ending}", "a.py") for n in range(2)]
    report.main(["merge", f"all.{ending}", *shards])
    merged, single = load(f"all.{ending}"), load(shards[0])
    if ending == "gitlab":
        assert merged == single
    elif ending == "json":
        assert merged["findings"] == single["findings"]
    else:
        assert merged["runs"][0]["results"] == single["runs"][0]["results"]


def test_where_shards_differ_the_hotter_finding_stays(lint):
    hot, cool = load(lint("hot.json", "a.py")), load(lint("cool.json", "a.py"))
    for finding in cool["findings"]:
        finding.update(heat="epoch", level="note")
    with open("cool.json", "w") as stream:
        json.dump(cool, stream)
    report.main(["merge", "all.json", "cool.json", "hot.json"])
    assert load("all.json")["findings"] == hot["findings"]


@pytest.mark.parametrize("ending", MERGEABLE)
def test_errors_of_every_shard_are_kept(lint, tmp_path, ending):
    (tmp_path / "bad.py").write_text("def (:\n")
    report.main(["merge", f"all.{ending}", lint(f"a.{ending}", "a.py"), lint(f"b.{ending}", "bad.py")])
    merged = load(f"all.{ending}")
    if ending == "gitlab":
        assert (merged[0]["severity"], merged[0]["location"]["path"]) == ("critical", "bad.py")
    elif ending == "json":
        assert [error["path"] for error in merged["errors"]] == ["bad.py"]
    else:
        (invocation,) = merged["runs"][0]["invocations"]
        assert not invocation["executionSuccessful"]
        assert len(invocation["toolExecutionNotifications"]) == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda driver: driver.update(version="0.0.1"), "lint every shard with the same version"),
        (lambda driver: driver.update(name="other"), "written by other, not by gpusync lint"),
        (lambda driver: driver.clear(), "not SARIF as gpusync lint writes it"),
    ],
)
def test_sarif_of_another_tool_or_version_is_refused(lint, capsys, change, complaint):
    a, b = lint("a.sarif", "a.py"), load(lint("b.sarif", "b.py"))
    change(b["runs"][0]["tool"]["driver"])
    with open("b.sarif", "w") as stream:
        json.dump(b, stream)
    assert report.main(["merge", "all.sarif", a, "b.sarif"]) == 2
    assert complaint in capsys.readouterr().err


def test_findings_that_break_their_schema_are_refused(lint, tmp_path, capsys):
    (tmp_path / "b.json").write_text('{"schema": "gpusync.lint/1", "findings": [{}], "errors": [], "files": 1}')
    assert report.main(["merge", "all.json", lint("a.json", "a.py"), "b.json"]) == 2
    assert "b.json: not findings as gpusync.lint/1 describes them" in capsys.readouterr().err


def test_issues_that_are_not_the_linters_are_refused(lint, tmp_path, capsys):
    (tmp_path / "b.gitlab").write_text('[{"fingerprint": "1"}]')
    assert report.main(["merge", "all.gitlab", lint("a.gitlab", "a.py"), "b.gitlab"]) == 2
    assert "b.gitlab: not issues as gpusync lint writes them" in capsys.readouterr().err
