"""Options that are known from other linters: output files, watching, what is linted and by which settings."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gpusync_lint.cli import main
from gpusync_lint.cli import watch as watching
from gpusync_lint.settings.options import OPTIONS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Project = Callable[..., Path]
Captured = pytest.CaptureFixture[str]


def _codes(capsys: Captured, *arguments: str) -> list[str]:
    main([*arguments, "--output-format", "json"])
    return [one["code"] for one in json.loads(capsys.readouterr().out)["findings"]]


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version_is_printed(capsys: Captured, option: str) -> None:
    with pytest.raises(SystemExit) as left:
        main([option])
    assert left.value.code == 0
    assert re.fullmatch(r"gpusync \d+\.\d+\.\d+.*\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("settings", "arguments", "codes"),
    [
        ('select = ["GS5"]', [], ["GS501"]),
        ('select = ["GS5"]', ["--extend-select", "GS201"], ["GS201", "GS501"]),
        ('select = ["GS5"]', ["--extend-select", "GS201,tolist-read"], ["GS201", "GS202", "GS501"]),
        ('ignore = ["GS201"]', ["--extend-select", "item-read"], ["GS201", "GS202", "GS501"]),
        ("", ["--select", "GS5", "--extend-select", "GS201"], ["GS201", "GS501"]),
        ("", ["--extend-select", "GS2", "--ignore", "GS201"], ["GS202", "GS501"]),
        ("", ["--extend-select", "GS201", "--ignore", "GS2"], ["GS201", "GS501"]),
    ],
)
def test_extend_select_adds_to_what_is_selected(
    project: Project, capsys: Captured, settings: str, arguments: list[str], codes: list[str]
) -> None:
    project({"pyproject.toml": f"[tool.gpusync]\n{settings}\n", "a.py": "item()\ntolist()\ncopy_safe()\n"})
    assert _codes(capsys, *arguments) == codes


def test_an_unknown_code_to_extend_is_refused(project: Project, capsys: Captured) -> None:
    project({"a.py": ""})
    assert main(["--extend-select", "GS2001"]) == 2
    assert "no rule has the code or name 'GS2001'; did you mean GS201?" in capsys.readouterr().err


def test_show_files_lists_what_would_be_linted_and_reads_nothing(project: Project, capsys: Captured) -> None:
    project({"pkg/b.py": b"\xff", "a.py": "item()\n", "c.txt": "", "gen/d.py": "", "e.ipynb": "no notebook"})
    (Path("pyproject.toml")).write_text('[tool.gpusync]\nexclude = ["gen"]\n')
    assert main(["--show-files"]) == 0
    assert capsys.readouterr().out == "a.py\ne.ipynb\npkg/b.py\n"


def test_show_files_tells_of_a_path_that_does_not_exist(project: Project, capsys: Captured) -> None:
    project({"a.py": ""})
    assert main(["--show-files", "a.py", "gone.py"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("a.py\n", "gone.py: error: no such file or folder\n")


def test_show_settings_says_where_each_comes_from(project: Project, capsys: Captured) -> None:
    root = project({"pyproject.toml": '[tool.gpusync]\nheat = "epoch"\nexclude = ["gen"]\n', "a.py": "item()\n"})
    arguments = ["--show-settings", "--select", "GS2", "--extend-select", "GS5", "--no-respect-gitignore"]
    assert main(arguments) == 0
    lines = [re.sub(r" {2,}", "  ", line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == f"# Configuration: {root / 'pyproject.toml'}"
    for line in (
        'select = ["GS2"]  # --select',
        'exclude = ["gen"]  # configuration',
        'heat = "epoch"  # configuration',
        "respect-gitignore = false  # --no-respect-gitignore",
        "ignore = []  # default",
        '# extend-select = ["GS5"]  # --extend-select',
    ):
        assert line in lines
    assert lines[-1].startswith("# Enabled: 3 of 10 rules, without GS101, GS301, ")


def test_the_settings_that_are_shown_are_a_configuration(project: Project, capsys: Captured, tmp_path: Path) -> None:
    table = """select = ["GS2"]\nper-file-ignores = { "a \\"b\\"*" = ["GS201"] }\nbarriers = [{ call = "a.b" }]\n"""
    project({"pyproject.toml": f"[tool.gpusync]\n{table}\n"})
    assert main(["--show-settings"]) == 0
    shown = tomllib.loads(capsys.readouterr().out)
    defaults = {key: option.default for key, option in OPTIONS.items() if option.default is not None}
    assert shown == {**defaults, **tomllib.loads(table)}


@pytest.mark.parametrize("option", ["-o", "--output-file"])
def test_the_report_is_written_to_a_file_without_colors(
    project: Project, capsys: Captured, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    project({"a.py": "item()\n"})
    main([])
    expected = capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main([option, "report.txt"]) == 1
    assert capsys.readouterr() == ("", "")
    assert Path("report.txt").read_text() == expected


@pytest.mark.skipif(sys.platform == "win32", reason="files have other permissions")
def test_a_report_replaces_the_file_and_keeps_its_permissions(project: Project) -> None:
    project({"a.py": "item()\n", "report.json": "old"})
    Path("report.json").chmod(0o640)
    main(["-o", "report.json", "--output-format", "json"])
    assert json.loads(Path("report.json").read_text())["files"] == 1
    assert stat.S_IMODE(Path("report.json").stat().st_mode) == 0o640
    assert sorted(path.name for path in Path().glob("*report*")) == ["report.json"]


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="files are not devices here")
def test_a_report_can_go_to_a_device(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    project({"a.py": "item()\n"})
    reading, writing = os.pipe()
    assert main(["-o", f"/dev/fd/{writing}", "--output-format", "concise"]) == 1
    os.close(writing)
    with os.fdopen(reading) as stream:
        assert stream.read().startswith("a.py:1:1: GS201 ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "gone/report.txt"], "--output-file gone/report.txt: the folder does not exist; create it first"),
        (["-o", "folder"], "--output-file folder is a folder; name a file"),
        (["-o", "a.txt", "--diff"], "--diff prints to standard output, so it cannot be combined with --output-file"),
        (["--watch", "--fix"], "--watch lints again after each change, so it cannot be combined with an option that"),
        (["--watch", "-"], "--watch watches files, so it cannot read standard input"),
        (["--watch", "--show-files"], "--watch cannot be combined with --show-settings or --show-files"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_linting(
    project: Project, capsys: Captured, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project({"a.py": "item()\n", "folder/b.py": ""})
    monkeypatch.setattr(watching, "watch", lambda lint, watched: lint())
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"gpusync lint: error: {message}")


@pytest.mark.parametrize(
    ("comment", "hinted"),
    [
        ("# noqa", True),
        ("#NOQA", True),
        ("# noqa because the stop needs it", True),
        ("# noqa: GS201", True),
        ("# noqa: E501, GS201", True),
        ("# noqa: E501", False),
        ("# type: ignore", False),
        ("", False),
    ],
)
def test_a_plain_noqa_is_answered_with_the_comment_that_works(
    project: Project, capsys: Captured, comment: str, hinted: bool
) -> None:
    project({"a.py": f"item()  {comment}\n"})
    assert main([]) == 1
    hint = "    hint: `# noqa` does not accept it; `# gpusync: allow[GS201] REASON` does\n"
    assert (hint in capsys.readouterr().out) is hinted


def test_watching_lints_again_after_a_change_of_a_file_or_of_the_settings(
    project: Project, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = project({"a.py": "x = 1\n"})
    changes = iter(
        [
            lambda: (root / "a.py").write_text("item()\n"),
            lambda: (root / "b.py").write_text("item()\n"),
            lambda: (root / "pyproject.toml").write_text("[tool.gpusync]\nheat = 3\n"),
            lambda: (root / "pyproject.toml").write_text('[tool.gpusync]\nexclude = ["b.py"]\n'),
        ]
    )

    def pause(seconds: float) -> None:
        change = next(changes, None)
        if change is None:
            raise KeyboardInterrupt
        change()

    monkeypatch.setattr(watching.time, "sleep", pause)
    with pytest.raises(KeyboardInterrupt):
        main(["--watch", "--no-cache"])
    out, err = capsys.readouterr()
    closing = [line for line in out.splitlines() if line.startswith(("Found", "No warnings"))]
    assert closing == ["No warnings in 1 file", "Found 1 warning", "Found 2 warnings", "Found 1 warning"]
    assert err.count("Watching ") == 5
    assert "tool.gpusync.heat: must be one of step" in err


def test_a_change_while_linting_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter([1, 2, 2])
    linted: list[int] = []

    def pause(seconds: float) -> None:
        if len(linted) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", pause)
    with pytest.raises(KeyboardInterrupt):
        watching.watch(lambda: linted.append(1) or 0, lambda: frozenset({("a.py", next(states), 0)}))
    assert len(linted) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_the_command_watches_until_it_is_interrupted(tmp_path: Path) -> None:
    code = "import torch\nx = torch.zeros(3, device='cuda')\nfor batch in loader:\n    x.sum().item()\n"
    (tmp_path / "a.py").write_text("x = 1\n")
    command = [sys.executable, "-m", "pytest_gpusync", "lint", "--watch", "--output-format", "concise"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("FORCE_COLOR", None)
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=-1, text=True)
    guard = threading.Timer(300, process.kill)
    guard.start()
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "No warnings in 1 file\n"
        assert "Watching 1 file; Ctrl-C ends." in process.stderr.readline()
        (tmp_path / "a.py").write_text(code)
        assert process.stdout.readline().startswith("a.py:4:13: GS201 [item] ")
        process.stderr.readline()
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    finally:
        guard.cancel()
        process.kill()
        process.communicate()
