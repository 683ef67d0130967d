"""The `gpusync` command itself: which subcommand gets what, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from gpusync_lint import __version__

from pytest_gpusync.commands import cli

if TYPE_CHECKING:
    from pathlib import Path

Captured = pytest.CaptureFixture[str]

PATH = os.pathsep.join(sys.path)


def _run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_gpusync", *arguments]
    environ = {**os.environ, "PYTHONPATH": PATH}
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300, check=False)


def _command(monkeypatch: pytest.MonkeyPatch, function: object) -> None:
    module = ModuleType("stand_in")
    module.main = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "stand_in", module)
    monkeypatch.setitem(cli.COMMANDS, "trace", ("stand_in", "main", "parser", "stand in"))


def test_help_lists_the_commands(capsys: Captured) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: gpusync COMMAND [ARGUMENT...]\n")
    assert [line.split()[0] for line in out.splitlines() if line.startswith("  ")] == list(cli.COMMANDS)


def test_without_a_command_the_help_goes_to_standard_error(capsys: Captured) -> None:
    assert cli.main([]) == 2
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[0]) == ("", "usage: gpusync COMMAND [ARGUMENT...]")


def test_version(capsys: Captured) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"gpusync {__version__}\n"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("lnt", "unknown command 'lnt'; did you mean lint?"),
        ("tarce", "unknown command 'tarce'; did you mean trace?"),
        ("--versoin", "unknown option '--versoin'; did you mean --version?"),
        ("zzz", "unknown command 'zzz'; the commands are lint, rule, server, trace, report, doctor"),
    ],
)
def test_an_unknown_command_exits_2_with_a_suggestion(capsys: Captured, argument: str, message: str) -> None:
    assert cli.main([argument]) == 2
    assert capsys.readouterr() == ("", f"gpusync: error: {message}\n")


def test_a_command_gets_its_arguments_and_gives_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def main(argv: list[str]) -> int:
        seen.append(argv)
        return 7

    _command(monkeypatch, main)
    assert cli.main(["trace", "--device", "cuda", "train.py", "--help"]) == 7
    assert seen == [["--device", "cuda", "train.py", "--help"]]


def test_arguments_come_from_the_command_line_by_default(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(sys, "argv", ["gpusync", "--version"])
    assert cli.main() == 0
    assert capsys.readouterr().out.startswith("gpusync ")


def test_an_interrupt_is_one_line_and_exit_130(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def main(argv: list[str]) -> int:
        raise KeyboardInterrupt

    _command(monkeypatch, main)
    assert cli.main(["trace"]) == 130
    assert capsys.readouterr() == ("", "gpusync: interrupted\n")


def test_the_module_can_be_run(tmp_path: Path) -> None:
    result = _run("--version", cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"gpusync {__version__}\n", "")


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest_gpusync", "--help"]
    reading, writing = os.pipe()
    os.close(reading)
    environ = {**os.environ, "PYTHONPATH": PATH}
    result = subprocess.run(
        command, cwd=tmp_path, env=environ, stdout=writing, stderr=subprocess.PIPE, timeout=300, check=False
    )
    os.close(writing)
    assert (result.returncode, result.stderr) == (128 + signal.SIGPIPE, b"")


def test_importing_the_command_imports_no_subcommand(tmp_path: Path) -> None:
    program = "import sys, pytest_gpusync.commands.cli; print(*sorted(sys.modules))"
    environ = {**os.environ, "PYTHONPATH": PATH}
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    loaded = set(result.stdout.split())
    heavy = {
        "torch",
        "pytest",
        "_pytest",
        "libcst",
        "numpy",
        "argparse",
        "gpusync_lint.cli",
        "pytest_gpusync.measure",
    }
    assert loaded & heavy == set()


@pytest.mark.parametrize(("arguments", "frozen"), [("", True), ("['lint', '--no-cache', 'a.py']", False)])
def test_garbage_is_left_alone_only_where_the_process_ends(tmp_path: Path, arguments: str, frozen: bool) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    program = "import gc; from pytest_gpusync.commands.cli import main; "
    program += f"assert main({arguments}) == 0; assert bool(gc.get_freeze_count()) is {frozen}"
    command = [sys.executable, "-c", program, "lint", "--no-cache", "a.py"]
    environ = {**os.environ, "PYTHONPATH": PATH}
    result = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
