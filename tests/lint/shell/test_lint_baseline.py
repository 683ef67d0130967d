from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from gpusync_lint.accept import baseline
from gpusync_lint.accept.baseline import BaselineError, Entry
from gpusync_lint.cli import main

Project = Callable[..., Path]
Captured = pytest.CaptureFixture[str]

FILE = "gpusync-lint-baseline.json"
USE = ["--baseline", FILE]
WRITE = ["--write-baseline"]


def _findings(capsys: Captured, *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    main([*arguments, "--output-format", "json"])
    findings: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["findings"]
    return findings


def _keys(path: Path) -> list[str]:
    return [one["key"] for one in json.loads(path.read_text(encoding="utf-8"))[1:]]


def _key(call: str, path: str = "a.py", code: str = "GS201", ordinal: int = 1) -> str:
    return f"{path}::<module>::{code}::{call}()::{ordinal}"


# ---------------------------------------------------------------- the file


def test_the_file_has_an_entry_per_line_sorted_and_alike_wherever_it_stands(project: Project, capsys: Captured) -> None:
    root = project({"b.py": "item()\n", "a.py": "x = tolist()\nitem()\n"})
    assert main(WRITE) == 0
    assert (root / FILE).read_text() == (
        '[{"schema": "gpusync.lint-baseline/1"}\n'
        ',{"key": "a.py::<module>::GS201::item()::1", "code": "GS201", "source": "item()"}\n'
        ',{"key": "a.py::<module>::GS202::tolist()::1", "code": "GS202", "source": "x = tolist()"}\n'
        ',{"key": "b.py::<module>::GS201::item()::1", "code": "GS201", "source": "item()"}\n'
        "]\n"
    )


def test_an_entry_more_is_a_line_more_and_changes_no_other() -> None:
    entries = [Entry(_key("a"), "GS201", "a()"), Entry(_key("b"), "GS201", "b()"), Entry(_key("c"), "GS201", "c()")]
    whole = baseline.render(entries).splitlines()
    for number in range(3):
        fewer = baseline.render(entries[:number] + entries[number + 1 :]).splitlines()
        assert fewer == whole[: number + 1] + whole[number + 2 :]


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    entries = (
        Entry("a.py::f::GS201::x::1", "GS201", 'a("ü\\n") # 😀'),
        Entry("\udcff.py::f::GS201::x::1", "GS201", ""),
    )
    path = tmp_path / FILE
    baseline.write(baseline.empty(path, FILE), entries)
    assert baseline.load(path, FILE).entries == entries


def test_a_long_source_line_is_cut(project: Project) -> None:
    root = project({"a.py": f"item(); x = '{'x' * 500}'\n"})
    main(WRITE)
    (entry,) = json.loads((root / FILE).read_text())[1:]
    assert len(entry["source"]) == 120
    assert entry["source"].endswith("...")


def test_a_new_file_has_the_permissions_of_new_files(project: Project) -> None:
    root = project({"a.py": "item()\n"})
    main(WRITE)
    (root / "other").touch()
    assert (root / FILE).stat().st_mode == (root / "other").stat().st_mode


def test_an_old_file_keeps_its_permissions(project: Project) -> None:
    root = project({"a.py": "item()\n"})
    main(WRITE)
    (root / FILE).chmod(0o640)
    (root / "a.py").write_text("tolist()\n")
    main([*USE, *WRITE])
    assert stat.S_IMODE((root / FILE).stat().st_mode) == 0o640


def test_no_temporary_file_is_left(project: Project) -> None:
    root = project({"a.py": "item()\n"})
    main([*WRITE, "--no-cache"])
    assert sorted(path.name for path in root.iterdir()) == ["a.py", FILE]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "b.json: no such baseline; --write-baseline creates it"),
        ("", "b.json:1: not valid JSON (Expecting value); delete it and use --write-baseline"),
        ('[{"schema": "gpusync.lint-baseline/1"}\n,{"key"', "b.json:2: not valid JSON ("),
        ("[\n<<<<<<< HEAD\n]", "b.json:2: not valid JSON (Expecting value); resolve the merge conflict"),
        ("{}", "b.json: not a gpusync baseline, which is a list that starts with the schema 'gpusync.lint-baseline/1'"),
        ('{"schema": "gpusync.lint/1"}', "b.json: not a gpusync baseline"),
        ("[]", "b.json: not a gpusync baseline"),
        ('["gpusync.lint-baseline/1"]', "b.json: not a gpusync baseline"),
        ('[{"schema": 1}]', "b.json: not a gpusync baseline"),
        (
            '[{"schema": "gpusync.lint-baseline/2"}]',
            "b.json: its schema is 'gpusync.lint-baseline/2', but this version of gpusync ",
        ),
        ('[{"schema": "gpusync.lint-baseline/1"}, 3]', "b.json: entry 1 needs the strings key, code and source"),
        (
            '[{"schema": "gpusync.lint-baseline/1"}, {"key": "a"}]',
            "b.json: entry 1 needs the strings key, code and source",
        ),
        ('[{"schema": "gpusync.test-baseline/1"}]', "b.json: this is a baseline of the pytest plugin; use it with "),
        (b"\xff\xfe", "b.json: not a gpusync baseline: it is not UTF-8"),
        ("[" * 100_000, "b.json: not a gpusync baseline: nested too deeply"),
    ],
)
def test_a_file_that_is_no_baseline_is_one_line_and_exit_2(
    project: Project, capsys: Captured, content: str | bytes | None, message: str
) -> None:
    project({"a.py": "item()\n", **({} if content is None else {"b.json": content})})
    assert main(["--baseline", "b.json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"gpusync lint: error: {message}")
    assert err.count("\n") == 1


def test_a_folder_is_no_baseline(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()\n", "dir/x": ""})
    assert main(["--baseline", "dir"]) == 2
    assert capsys.readouterr().err == "gpusync lint: error: dir: cannot be read: Is a directory\n"


def test_what_is_no_baseline_is_not_overwritten(project: Project) -> None:
    root = project({"a.py": "item()\n", "package.json": "{}"})
    assert main(["--baseline", "package.json", *WRITE]) == 2
    assert (root / "package.json").read_text() == "{}"


def test_a_folder_that_is_not_there_is_one_line(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()\n"})
    assert main(["--baseline", "gone/b.json", *WRITE]) == 2
    message = "gpusync lint: error: gone/b.json: cannot be written: No such file or directory\n"
    assert capsys.readouterr().err == message


def test_a_file_that_another_tool_has_formatted_is_read(project: Project) -> None:
    root = project({"a.py": "item()\n"})
    main(WRITE)
    (root / FILE).write_text(json.dumps(json.loads((root / FILE).read_text()), indent=4))
    assert main(USE) == 0


def test_an_entry_that_a_merge_left_twice_counts_once() -> None:
    entry = Entry(_key("item"), "GS201", "item()")
    assert baseline.render([entry, entry]) == baseline.render([entry])


# ---------------------------------------------------------------- where it lies


def test_it_is_written_beside_the_configuration(
    project: Project, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = project({"pyproject.toml": "[tool.gpusync]\n", "sub/a.py": "item()\n"})
    monkeypatch.chdir(root / "sub")
    assert main(WRITE) == 0
    assert _keys(root / FILE) == [_key("item", "sub/a.py")]
    assert capsys.readouterr().err == (
        f'Wrote 1 warning to {root / FILE}; use it with --baseline, or with baseline = "{FILE}" in [tool.gpusync].\n'
    )


def test_the_configuration_can_name_it(project: Project, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = "[tool.gpusync]\nbaseline = 'ci/known.json'\n"
    root = project({"pyproject.toml": configuration, "sub/a.py": "item()\n", "ci/x": ""})
    assert main([]) == 2
    capsys.readouterr()
    assert main(WRITE) == 0
    assert capsys.readouterr().err == "Wrote 1 warning to ci/known.json.\n"
    assert main([]) == 0
    monkeypatch.chdir(root / "sub")
    assert main([]) == 0


def test_the_command_line_beats_the_configuration(project: Project) -> None:
    project({"pyproject.toml": "[tool.gpusync]\nbaseline = 'gone.json'\n", "a.py": "item()\n"})
    assert main([*USE, *WRITE]) == 0
    assert main(USE) == 0


def test_a_baseline_is_not_used_until_it_is_named(project: Project) -> None:
    project({"a.py": "item()\n"})
    main(WRITE)
    assert main([]) == 1


@pytest.mark.parametrize("value", ["3", "''", "['a']"])
def test_a_configured_baseline_must_be_a_path(project: Project, capsys: Captured, value: str) -> None:
    project({"pyproject.toml": f"[tool.gpusync]\nbaseline = {value}\n"})
    assert main([]) == 2
    assert "tool.gpusync.baseline: must be the path of a file, not " in capsys.readouterr().err


def test_a_diff_writes_no_baseline(project: Project, capsys: Captured) -> None:
    project({})
    assert main(["--diff", *WRITE]) == 2
    assert "--diff changes nothing, so it cannot be combined with --write-baseline" in capsys.readouterr().err


# ---------------------------------------------------------------- what it accepts


def test_what_it_holds_is_accepted_and_what_is_new_is_not(project: Project, capsys: Captured) -> None:
    root = project({"a.py": "item()\n"})
    main(WRITE)
    assert main(USE) == 0
    assert "No warnings in 1 file, 1 in the baseline\n" in capsys.readouterr().out
    (root / "a.py").write_text("item()\ntolist()\n")
    assert [one["code"] for one in _findings(capsys, *USE)] == ["GS202"]


def test_a_second_occurrence_is_new(project: Project, capsys: Captured) -> None:
    root = project({"a.py": "item()\n"})
    main(WRITE)
    (root / "a.py").write_text("item()\nitem()\n")
    assert [one["line"] for one in _findings(capsys, *USE)] == [2]


def test_a_moved_line_is_not_new(project: Project) -> None:
    root = project({"a.py": "item()\n"})
    main(WRITE)
    (root / "a.py").write_text("\n\n# moved\nitem()\n")
    assert main(USE) == 0


def test_the_working_directory_does_not_matter(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    root = project({"sub/a.py": "item()\n"})
    main(WRITE)
    monkeypatch.chdir(root / "sub")
    assert main(["--baseline", f"../{FILE}"]) == 0
    assert main(["--baseline", f"../{FILE}", str(root)]) == 0


def test_warnings_about_allow_comments_can_be_in_it(project: Project) -> None:
    project({"a.py": "x = 1  # gpusync: allow[GS201]\n"})
    main(WRITE)
    assert main(USE) == 0


def test_notes_are_not_written(project: Project) -> None:
    root = project({"a.py": "item_epoch()\n"})
    main(WRITE)
    assert _keys(root / FILE) == []
    assert main([*USE, "--heat", "epoch"]) == 1


def test_fixes_are_applied_first(project: Project) -> None:
    root = project({"a.py": "copy_safe()\nitem()\n"})
    assert main(["--fix", *WRITE]) == 0
    assert (root / "a.py").read_text() == "fixed()\nitem()\n"
    assert _keys(root / FILE) == [_key("item")]


def test_what_it_accepts_is_not_fixed(project: Project) -> None:
    root = project({"a.py": "copy_safe()\n"})
    main(WRITE)
    assert main(["--fix", *USE]) == 0
    assert (root / "a.py").read_text() == "copy_safe()\n"


# ---------------------------------------------------------------- stale entries


def test_a_stale_entry_is_a_warning_at_its_line(project: Project, capsys: Captured) -> None:
    root = project({"a.py": "tolist()\nitem()\n"})
    main(WRITE)
    (root / "a.py").write_text("item()\n")
    capsys.readouterr()
    assert main(USE) == 1
    assert capsys.readouterr().out.startswith(
        f"{FILE}:3:1: GS905 [stale-baseline-entry] GS202 in a.py (`tolist()`) is in the baseline but no longer in "
        "the code\n"
    )
    assert main([*USE, *WRITE]) == 0
    assert _keys(root / FILE) == [_key("item")]
    assert main(USE) == 0


def test_entries_of_a_file_that_is_gone_are_stale(project: Project, capsys: Captured) -> None:
    root = project({"a.py": "item()\n", "b.py": "item()\n"})
    main(WRITE)
    (root / "b.py").unlink()
    assert [one["code"] for one in _findings(capsys, *USE)] == ["GS905"]


def test_an_entry_that_an_allow_comment_makes_needless_is_stale(project: Project, capsys: Captured) -> None:
    root = project({"a.py": "item()\n"})
    main(WRITE)
    (root / "a.py").write_text("item()  # gpusync: allow[GS201] why\n")
    assert [one["code"] for one in _findings(capsys, *USE)] == ["GS905"]


@pytest.mark.parametrize(
    ("after", "arguments"),
    [
        ({"a.py": "item_low()\n"}, ["b.py"]),
        ({"a.py": "x = 1\n"}, ["--select", "GS5,GS905"]),
        ({"a.py": "x = 1\n"}, ["a.py"]),
        ({"a.py": "syntax_error()\n"}, ["."]),
        ({"a.py": "x = 1\n"}, ["--ignore", "GS905"]),
        ({}, ["--heat", "step"]),
    ],
    ids=["another file", "another code", "a file given by name", "does not parse", "ignored", "now a note"],
)
def test_what_the_run_cannot_judge_is_not_called_stale(
    project: Project, capsys: Captured, after: dict[str, str], arguments: list[str]
) -> None:
    project({"a.py": "item_epoch()\n", "b.py": "x = 1\n"})
    main(["--heat", "epoch", *WRITE])
    project(after)
    capsys.readouterr()
    assert [one["code"] for one in _findings(capsys, *USE, *arguments) if one["level"] == "warning"] == []


def test_a_file_given_by_name_has_stale_entries_of_low_confidence(project: Project, capsys: Captured) -> None:
    root = project({"a.py": "item()\n"})
    main(WRITE)
    (root / "a.py").write_text("x = 1\n")
    assert [one["code"] for one in _findings(capsys, *USE, "a.py", "--confidence", "low")] == ["GS905"]


def test_a_baseline_that_nothing_is_said_about_is_no_clean_file(project: Project, capsys: Captured) -> None:
    root = project({"a.py": "item()\n"})
    main(WRITE)
    (root / "a.py").write_text("x = 1\n")
    capsys.readouterr()
    main([*USE, "a.py", "--output-format", "junit"])
    cases = ElementTree.fromstring(capsys.readouterr().out).iter("testcase")
    assert [case.get("classname") for case in cases] == ["a.py"]


@pytest.mark.parametrize("arguments", [["b.py"], ["--select", "GS202"]])
def test_writing_keeps_what_the_run_did_not_judge(project: Project, arguments: list[str]) -> None:
    root = project({"a.py": "item()\n", "b.py": "tolist()\n"})
    main(WRITE)
    main([*USE, *WRITE, *arguments])
    assert _keys(root / FILE) == [_key("item"), _key("tolist", "b.py", "GS202")]


def test_writing_keeps_the_entries_of_a_file_that_does_not_parse(project: Project) -> None:
    root = project({"a.py": "item()\n"})
    main(WRITE)
    (root / "a.py").write_text("syntax_error()\n")
    assert main([*USE, *WRITE]) == 2
    assert _keys(root / FILE) == [_key("item")]


def test_a_run_with_other_thresholds_keeps_the_entries_that_are_still_found(project: Project) -> None:
    root = project({"a.py": "item_epoch()\n"})
    main(["--heat", "epoch", *WRITE])
    main([*USE, *WRITE])
    assert _keys(root / FILE) == [_key("item_epoch")]


# ---------------------------------------------------------------- in the outputs


@pytest.fixture
def known(project: Project, capsys: Captured) -> list[str]:
    """A project with a warning in the baseline and a new one; the arguments that show both."""
    root = project({"a.py": "item()\n"})
    main(WRITE)
    (root / "a.py").write_text("item()\ntolist()\n")
    capsys.readouterr()
    return [*USE, "--show-suppressed", "--output-format"]


def test_text_shows_what_is_accepted_on_request(known: list[str], capsys: Captured) -> None:
    main([*known, "text"])
    assert "    remedy: keep it on the device\n    in the baseline\n" in capsys.readouterr().out


def test_json_shows_what_is_accepted_on_request(known: list[str], capsys: Captured) -> None:
    main([*known, "json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [(one["code"], one["baselined"]) for one in findings] == [("GS201", True), ("GS202", False)]


def test_sarif_states_what_is_new(known: list[str], capsys: Captured) -> None:
    import sarif_shape

    main([*known, "sarif"])
    document = json.loads(capsys.readouterr().out)
    sarif_shape.check(document)
    results = document["runs"][0]["results"]
    assert [one["baselineState"] for one in results] == ["unchanged", "new"]
    assert [[each["kind"] for each in one["suppressions"]] for one in results] == [["external"], []]


def test_sarif_states_nothing_without_a_baseline(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()\n"})
    main(["--output-format", "sarif"])
    (result,) = json.loads(capsys.readouterr().out)["runs"][0]["results"]
    assert "baselineState" not in result


def test_github_and_gitlab_and_junit_show_what_is_accepted_on_request(known: list[str], capsys: Captured) -> None:
    main([*known, "github"])
    assert "::notice file=a.py,line=1," in capsys.readouterr().out
    main([*known, "gitlab"])
    assert [one["severity"] for one in json.loads(capsys.readouterr().out)] == ["info", "minor"]
    main([*known, "junit"])
    skipped = ElementTree.fromstring(capsys.readouterr().out).find(".//skipped")
    assert skipped is not None
    assert skipped.get("message") == "in the baseline"


def test_a_baseline_that_cannot_be_written_is_one_line(
    project: Project, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    project({"a.py": "item()\n"})
    monkeypatch.setattr(baseline, "replace_file", fail)
    with pytest.raises(BaselineError, match="b: cannot be written: No space left on device"):
        baseline.write(baseline.empty(Path.cwd() / "b", "b"), [Entry("k", "GS201", "")])


def test_an_allowed_line_that_comes_or_goes_leaves_the_entry_alone(project: Project) -> None:
    root = project({"a.py": "item()\n"})
    assert main(["--write-baseline"]) == 0
    project({"a.py": "item()  # gpusync: allow[GS201] wanted\nitem()\n"})
    assert main(["--baseline", FILE]) == 0
    assert _keys(root / FILE) == [_key("item")]
