from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gpusync_lint import cli
from gpusync_lint.cli import main, terminal

if TYPE_CHECKING:
    from gpusync_lint.model.findings import Analysis

Project = Callable[..., Path]
Captured = pytest.CaptureFixture[str]


def _json(capsys: Captured, *arguments: str) -> dict[str, object]:
    main([*arguments, "--output-format", "json"])
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def _codes(capsys: Captured, *arguments: str) -> list[str]:
    findings = _json(capsys, *arguments)["findings"]
    assert isinstance(findings, list)
    return [one["code"] for one in findings]


@pytest.mark.parametrize(
    ("text", "arguments", "code"),
    [
        ("x = 1\n", [], 0),
        ("item()\n", [], 1),
        ("item()\n", ["--exit-zero"], 0),
        ("item_medium()\n", [], 1),
        ("item_guarded()\n", [], 0),
        ("item_guarded()\n", ["--heat", "guarded"], 1),
        ("item_epoch()\n", ["--heat", "guarded"], 0),
        ("item_epoch()\n", ["--heat", "epoch"], 1),
        ("item_once()\n", ["--heat", "once"], 1),
        ("item_low()\n", [], 0),
        ("item_low()\n", ["--confidence", "low"], 1),
        ("item()  # gpusync: allow[GS201] why\n", [], 0),
        ("item()  # gpusync: allow[GS201] why\n", ["--show-suppressed"], 0),
        ("item()\n", ["--select", "GS5"], 0),
        ("item()\n", ["--ignore", "item-read"], 0),
        ("item()\n", ["--statistics"], 1),
        ("x = 1  # gpusync: allow[GS201]\n", [], 1),
        ("x = 1  # gpusync: allow[GS201]\n", ["--ignore", "GS9"], 0),
        ("syntax_error()\n", [], 2),
        ("syntax_error()\n", ["--exit-zero"], 2),
        ("boom()\n", [], 2),
    ],
)
@pytest.mark.parametrize("output", ["text", "json", "sarif", "github", "junit"])
def test_exit_codes(project: Project, text: str, arguments: list[str], code: int, output: str) -> None:
    project({"a.py": text})
    assert main([*arguments, "--output-format", output]) == code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--select", "GS200"], "no rule has the code or name 'GS200'; did you mean "),
        (["--ignore", "item-reed"], "no rule has the code or name 'item-reed'; did you mean item-read?"),
        (["--slect", "GS2"], "unknown option --slect; did you mean --select?"),
        (["--sel", "GS2"], "unknown option --sel"),
        (["--heat", "hot"], "argument --heat: invalid choice: 'hot' (choose from "),
        (["--output-format", "xml"], "argument --output-format: invalid choice: 'xml' (choose from "),
        (["--output-format", "gitlab", "--statistics"], "--statistics: the format gitlab cannot contain counts"),
        (["--select"], "argument --select: expected one argument"),
        (["--unsafe-fixes"], "--unsafe-fixes needs --fix or --diff"),
        (["--diff", "--output-format", "json"], "--diff prints a diff, so it cannot be combined with --output-format"),
        (["--stdin-filename", "a.py"], "--stdin-filename is the name of standard input, so - must be among the paths"),
        (["--config", "gone.toml"], "gone.toml: cannot be read: No such file or directory"),
        (["--config", "bad.toml"], "bad.toml: tool.gpusync.heat: must be one of "),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    project: Project, capsys: Captured, arguments: list[str], message: str
) -> None:
    project({"a.py": "item()\n", "bad.toml": "[tool.gpusync]\nheat = 1\n"})
    try:
        code: object = main(arguments)
    except SystemExit as exit_:
        code = exit_.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith(f"gpusync lint: error: {message}")
    assert err.count("\n") == 1


def test_the_json_document(project: Project, capsys: Captured) -> None:
    project({"pkg/a.py": "x = 1\nif x: copy_unsafe()\n"})
    assert _json(capsys) == {
        "schema": "gpusync.lint/1",
        "findings": [
            {
                "code": "GS501",
                "name": "blocking-copy",
                "path": "pkg/a.py",
                "cell": None,
                "line": 2,
                "column": 7,
                "end_line": 2,
                "end_column": 20,
                "message": "`copy_unsafe()` waits for the GPU",
                "remedy": "keep it on the device",
                "level": "warning",
                "heat": "step",
                "unit": "step",
                "capture": None,
                "confidence": "high",
                "framework": "torch",
                "fix": {
                    "title": "Use fixed",
                    "safe": False,
                    "hazard": "the copy may race",
                    "edits": [
                        {"cell": None, "line": 2, "column": 7, "end_line": 2, "end_column": 18, "replacement": "fixed"}
                    ],
                },
                "graph_break": None,
                "suppressed": None,
                "baselined": False,
                "observed": None,
                "key": "pkg/a.py::<module>::GS501::copy_unsafe()::1",
            }
        ],
        "errors": [],
        "files": 1,
    }


def test_json_carries_notes_and_leaves_filtering_to_its_reader(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()\nitem_guarded()\nitem_epoch()\nitem_once()\nitem_low()\n"})
    findings = _json(capsys)["findings"]
    assert isinstance(findings, list)
    assert [(one["heat"], one["level"]) for one in findings] == [
        ("step", "warning"),
        ("guarded", "note"),
        ("epoch", "note"),
    ]


def test_json_carries_errors(project: Project, capsys: Captured) -> None:
    project({"a.py": "syntax_error()\n"})
    document = _json(capsys, "a.py", "gone.py")
    assert document["errors"] == [
        {"path": "gone.py", "cell": None, "line": None, "message": "no such file or folder"},
        {"path": "a.py", "cell": None, "line": 3, "message": "invalid syntax"},
    ]


def test_json_carries_suppressed_findings_on_request(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()  # gpusync: allow[GS201] why\n"})
    assert _json(capsys)["findings"] == []
    (finding,) = _json(capsys, "--show-suppressed")["findings"]  # type: ignore[misc]
    assert finding["suppressed"] == "why"


def test_json_carries_statistics_and_fixes_on_request(project: Project, capsys: Captured) -> None:
    project({"a.py": "item(); copy_safe(); item_epoch()\n"})
    document = _json(capsys, "--statistics", "--fix")
    assert (document["statistics"], document["fixed"]) == ({"GS201": 1}, 1)


def test_findings_are_in_path_and_line_order(project: Project, capsys: Captured) -> None:
    project({"b.py": "tolist()\nitem()\n", "a/z.py": "item()\n", "a.py": "item(); item()\n"})
    out = (main([]), capsys.readouterr().out)[1]
    places = [line.split(": ")[0] for line in out.splitlines() if "[item-read]" in line or "[tolist-read]" in line]
    assert places == ["a.py:1:1", "a.py:1:9", "a/z.py:1:1", "b.py:1:1", "b.py:2:1"]


def test_what_cannot_be_linted_is_said_and_the_rest_is_linted(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()\n", "b.py": "syntax_error()\n", "c.py": "item()  # gpusync: allow[GS201]\n'''"})
    assert main(["gone.py", "a.py", "b.py", "c.py"]) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert lines[:2] == ["gone.py: error: no such file or folder", "b.py:3: error: invalid syntax"]
    assert lines[2].startswith("c.py: error: its allow comments cannot be read: ")
    assert "a.py:1:1: GS201" in out


def test_allow_comments_of_a_file_that_does_not_parse_are_not_called_unused(project: Project, capsys: Captured) -> None:
    project({"a.py": "syntax_error()  # gpusync: allow[GS201] why\n"})
    assert _codes(capsys) == []


def test_an_unused_comment_is_told_when_the_folder_is_linted(project: Project, capsys: Captured) -> None:
    project({"a.py": "x = 1  # gpusync: allow[GS201] why\n"})
    assert _codes(capsys, ".") == ["GS903"]
    assert _codes(capsys, "a.py") == []
    assert _codes(capsys, "a.py", "--confidence", "low") == ["GS903"]


def test_an_internal_error_names_the_file_and_the_rest_is_linted(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()\n", "b.py": "boom()\n"})
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert err == (
        "b.py: error: internal error, a bug in gpusync: RuntimeError: boom (--verbose shows the traceback)\n"
    )
    assert "a.py:1:1: GS201" in out


def test_an_internal_error_on_every_file_is_not_repeated_for_each(project: Project, capsys: Captured) -> None:
    project({f"{number:02}.py": "boom()\n" for number in range(20)})
    assert main([]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["00.py", "01.py", "02.py", "03.py", "04.py", "<project>"]
    assert "and in 15 files more" in lines[-1]


def test_internal_errors_hide_no_finding_in_other_files(project: Project, capsys: Captured) -> None:
    project({**{f"{number:02}.py": "boom()\n" for number in range(20)}, "good.py": "item()\n"})
    assert main([]) == 2
    assert "good.py:1:1: GS201" in capsys.readouterr().out


def test_an_internal_error_of_the_files_together_is_said(
    project: Project, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def analyze(sources: list[object], settings: object, context: object = (), around: object = None) -> Analysis:
        if len(sources) > 1:
            raise RuntimeError("together")
        return original(sources, settings)

    original = sys.modules["gpusync_lint.run.engine"].analyze
    monkeypatch.setattr(sys.modules["gpusync_lint.run.engine"], "analyze", analyze)
    project({"a.py": "import b\nitem()\n", "b.py": ""})
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("<project>: error: internal error, a bug in gpusync: RuntimeError: ")
    assert "a.py:2:1: GS201" in out


def test_verbose_shows_the_traceback_of_an_internal_error(project: Project, capsys: Captured) -> None:
    project({"b.py": "boom()\n"})
    assert main(["--verbose"]) == 2
    assert "Traceback (most recent call last):" in capsys.readouterr().err


def test_a_bug_of_the_shell_itself_is_one_line(
    project: Project, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("here")

    monkeypatch.setattr(cli, "_report", fail)
    project({"a.py": "item()\n"})
    assert main([]) == 2
    assert capsys.readouterr().err == (
        "gpusync lint: internal error, a bug in gpusync: KeyError: 'here' (--verbose shows the traceback)\n"
    )


@pytest.mark.parametrize("arguments", [["README.md"], ["README.md", "data.json"]])
def test_no_python_file_among_the_given_ones_is_quiet(project: Project, capsys: Captured, arguments: list[str]) -> None:
    project({"README.md": "# hello\n", "data.json": "{}"})
    assert main(arguments) == 0
    assert capsys.readouterr() == ("", "")


def test_a_folder_without_python_files_is_said(project: Project, capsys: Captured) -> None:
    project({"docs/index.md": ""})
    assert main(["docs"]) == 0
    assert capsys.readouterr() == ("", "gpusync lint: no Python files or notebooks in docs\n")


def test_without_a_path_the_current_folder_is_linted(project: Project, capsys: Captured) -> None:
    project({"pkg/a.py": "item()\n"})
    assert _codes(capsys) == ["GS201"]


CONFIG = """
[tool.gpusync]
ignore = ["GS202"]
exclude = ["vendor"]
[tool.gpusync.per-file-ignores]
"tests/*.py" = ["GS2"]
"""


def test_the_configuration_is_obeyed(project: Project, capsys: Captured) -> None:
    project(
        {
            "pyproject.toml": CONFIG,
            "a.py": "item(); tolist()\n",
            "tests/b.py": "item(); copy_safe()\n",
            "vendor/c.py": "item()\n",
        }
    )
    findings = _json(capsys)["findings"]
    assert isinstance(findings, list)
    assert [(one["path"], one["code"]) for one in findings] == [("a.py", "GS201"), ("tests/b.py", "GS501")]


def test_the_configuration_is_looked_for_above_the_first_path(
    project: Project, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = project({"proj/pyproject.toml": CONFIG, "proj/pkg/a.py": "tolist()\n", "elsewhere/b.py": ""})
    monkeypatch.chdir(root / "elsewhere")
    assert _codes(capsys, "../proj/pkg/a.py") == []
    assert _codes(capsys, "b.py", "../proj/pkg/a.py") == ["GS202"]


def test_a_configuration_can_be_named(project: Project, capsys: Captured) -> None:
    project({"ci/strict.toml": "[tool.gpusync]\nheat = 'epoch'\n", "a.py": "item_epoch()\n"})
    assert main(["--config", "ci/strict.toml"]) == 1


def test_the_command_line_beats_the_configuration(project: Project, capsys: Captured) -> None:
    project({"pyproject.toml": "[tool.gpusync]\nheat = 'epoch'\nselect = ['GS5']\n", "a.py": "item_epoch(); item()\n"})
    assert _codes(capsys, "--select", "GS2", "--heat", "step") == ["GS201", "GS201"]
    assert main(["--select", "GS2", "--heat", "step", "--ignore", "GS201"]) == 0


def test_a_wrong_configuration_exits_2(project: Project, capsys: Captured) -> None:
    root = project({"pyproject.toml": "[tool.gpusync]\nslect = []\n", "a.py": ""})
    assert main([]) == 2
    message = "tool.gpusync.slect: unknown key; did you mean 'select'?"
    assert capsys.readouterr().err == f"gpusync lint: error: {root / 'pyproject.toml'}: {message}\n"


class _Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def test_standard_input_is_linted_under_its_name(
    project: Project, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    project({"proj/pyproject.toml": CONFIG})
    monkeypatch.setattr(sys, "stdin", _Stdin(b"item(); tolist()\n"))
    findings = _json(capsys, "-", "--stdin-filename", "proj/a.py")["findings"]
    assert isinstance(findings, list)
    assert [(one["path"], one["code"]) for one in findings] == [("proj/a.py", "GS201")]


def test_standard_input_comes_out_fixed_and_the_report_goes_to_standard_error(
    project: Project, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    project({})
    monkeypatch.setattr(sys, "stdin", _Stdin(b"\xef\xbb\xbfcopy_safe()\r\nitem()\r\n"))
    assert main(["-", "--fix"]) == 1
    out, err = capfdbinary.readouterr()
    assert out == b"\xef\xbb\xbffixed()\r\nitem()\r\n"
    assert b"Fixed 1 warning in 1 file." in err


def test_standard_input_without_anything_to_fix_comes_out_as_it_was(
    project: Project, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    project({})
    monkeypatch.setattr(sys, "stdin", _Stdin(b"syntax_error()\r\n"))
    assert main(["-", "--fix"]) == 2
    assert capfdbinary.readouterr().out == b"syntax_error()\r\n"


def test_a_terminal_sees_progress_when_it_takes_long(
    project: Project, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    project({"a.py": "x = 1\n"})
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    waits = []

    class Timer:
        """A timer whose time has come when it is started."""

        def __init__(self, seconds: float, function: Callable[[], None]) -> None:
            waits.append(seconds)
            self.start = function
            self.cancel = self.join = lambda: None

    monkeypatch.setattr(threading, "Timer", Timer)
    assert main([]) == 0
    assert capsys.readouterr().err == "Linting 1 file ...\x1b[K\rLinting 1 of 1 file ...\x1b[K\r\x1b[K"
    assert waits == [terminal.PROGRESS_AFTER]


def test_without_a_terminal_there_is_no_progress(project: Project, capsys: Captured) -> None:
    project({"a.py": "x = 1\n"})
    main([])
    assert capsys.readouterr().err == ""


def test_output_that_the_encoding_cannot_hold_is_escaped() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    cli.emit(stream, "f\xfcr \udcff\n")
    assert raw.getvalue() == b"f\\xfcr \\udcff\n"
