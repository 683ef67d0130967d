"""``gpusync --print-completion``: scripts for shells, tried in bash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from gpusync_lint.model import codes

from pytest_gpusync.commands import cli

if TYPE_CHECKING:
    from pathlib import Path

Captured = pytest.CaptureFixture[str]

COMPLETE = """\
source {script}
COMP_WORDS=({words}) COMP_CWORD={last} COMPREPLY=()
$(complete -p gpusync | sed 's/.*-F \\([^ ]*\\).*/\\1/') 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("gpusync l", {"lint"}),
        ("gpusync --v", {"--version"}),
        ("gpusync lint --extend", {"--extend-select"}),
        ("gpusync lint --output-format rd", {"rdjson"}),
        ("gpusync lint --heat g", {"guarded"}),
        ("gpusync rule GS70", {code for code in codes.names() if code.startswith("GS70")}),
        ("gpusync trace --st", {"--steps", "--step-at"}),
        ("gpusync report m", {"merge", "md"}),
        ("gpusync report html -", {"-o", "-h", "--help"}),
    ],
)
def test_bash_completes_commands_options_and_values(
    tmp_path: Path, capsys: Captured, words: str, offered: set[str]
) -> None:
    pytest.importorskip("shtab")
    assert cli.main(["--print-completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    given = COMPLETE.format(script=tmp_path / "script", words=words, last=len(words.split()) - 1)
    ended = subprocess.run(["bash", "-c", given], capture_output=True, text=True, cwd=tmp_path, check=True, timeout=300)
    assert set(ended.stdout.split()) == offered


@pytest.mark.parametrize("shell", ["zsh", "tcsh", "fish"])
def test_other_shells_get_a_script_with_all_commands(capsys: Captured, shell: str) -> None:
    pytest.importorskip("shtab")
    assert cli.main(["--print-completion", shell]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in cli.COMMANDS)
    assert "extend-select" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "--print-completion takes one of bash, zsh, "), (["nu"], ", not nu\n"), (["bash", "zsh"], ", not bash zsh")],
)
def test_a_shell_that_is_not_known_is_refused(capsys: Captured, arguments: list[str], message: str) -> None:
    pytest.importorskip("shtab")
    assert cli.main(["--print-completion", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_without_shtab_the_error_says_how_to_install_it(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["--print-completion", "bash"]) == 2
    said = 'gpusync: error: --print-completion needs shtab; pip install "pytest-gpusync[completion]"\n'
    assert capsys.readouterr() == ("", said)
