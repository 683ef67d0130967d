"""File names, source lines, comments and configuration reach no terminal and no log unescaped, in no format."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from gpusync_lint import escaping, output
from gpusync_lint.accept.baseline import SCHEMA
from gpusync_lint.cli import main
from hot_loop import HOT_LOOP

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = {
    "ansi": "a\x1b[31mRED\x1b]0;title\x07",
    "command": "b\n::error file=x::owned",
    "spaces before a command": "b\n  ::error::owned",
    "a command in a line": "c##[error]owned ##vso[task.setvariable]x ##teamcity[message]",
    "properties": "d,line=1::x%0A%25",
    "markup": "e\"<script>alert(1)<&'>]]>",
    "markdown": "f`|*_[x](http://x)![i](x)",
    "direction": "g\u202egnp\u2066",
    "line ends": "h\x85\u2028\u2029\r\v\f",
    "csi": "i\x9b31m\x7f",
    "bytes": "j\udcff\udcfe",
}
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
COMMAND = re.compile(
    r"^\s*::(?!(?:warning|notice|error) (?:file|title)=)"
    r"|(?!^)##(?:\[|vso\[|teamcity\[)"
    r"|^##(?:\[|teamcity\[|vso\[(?!task\.logissue type=))",
    re.MULTILINE,
)
"""What GitHub, Azure and TeamCity obey, except for the commands of the formats for GitHub and Azure."""


def check(text: str) -> None:
    assert CONTROL.search(text) is None, text[max(0, CONTROL.search(text).start() - 40) :][:80]  # type: ignore[union-attr]
    assert COMMAND.search(text) is None, text[max(0, COMMAND.search(text).start() - 40) :][:80]  # type: ignore[union-attr]
    for line in text.splitlines():
        if line.startswith("::"):
            assert re.match(r"::(warning|notice|error) (file=[^:,]*,|title=gpusync lint::)", line), line
            assert "owned" not in line.split("::")[0]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files with hostile names, with findings, with errors, and with hostile lines, comments and cells."""
    if sys.platform != "linux":
        pytest.skip("not every name is allowed on this system")
    for name in HOSTILE.values():
        stem = os.fsencode(tmp_path) + b"/" + os.fsencode(name).replace(b"/", b"")
        for ending, text in (
            (b".py", f"{HOT_LOOP}    print(loss.item())\n"),
            (b"_bad.py", "x = (\n"),
            (b"_bad.ipynb", "{}"),
        ):
            with open(stem + ending, "w") as file:
                file.write(text)
    lines = "".join(
        f"    print(loss.item(), {name!a}, '''{name.replace(chr(10), '').encode(errors='replace').decode()}''')\n"
        f"    print(f'''\n::error::owned {{loss.item()}} ##[error]''', loss.item())\n"
        for name in HOSTILE.values()
        if "\r" not in name
    )
    reasons = "".join(
        f"    loss.item()  # gpusync: allow[GS201] why {_in_a_comment(one)}\n" for one in HOSTILE.values()
    )
    (tmp_path / "source.py").write_text(HOT_LOOP + lines + reasons, encoding="utf-8", errors="replace")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _in_a_comment(text: str) -> str:
    return "".join(char for char in text if " " <= char <= "~" or char in EXOTIC)


EXOTIC = "\x1b\x07\u202e\u2066\x9b\x7f"


@pytest.mark.parametrize("color", ["", "1"])
@pytest.mark.parametrize("name", output.names())
def test_no_format_passes_on_what_it_did_not_write(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, color: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", color)
    code = main(["--no-cache", "--show-suppressed", "--jobs", "1", "--output-format", name])
    out, err = capsys.readouterr()
    assert code == 2
    assert out.count("GS201") > len(HOSTILE)
    assert err.count("not a notebook") == len(HOSTILE)
    if name == "azure":
        assert out.count("##vso[") == len(out.splitlines())
    check(re.sub(r"\x1b\[[0-9;]*m", "", out) if color and name in ("text", "concise") else out)
    check(err)
    assert len(err.splitlines()) == 2 * len(HOSTILE)  # one line for each file that cannot be read
    if name in ("json", "sarif", "gitlab"):
        text = json.dumps(json.loads(out), ensure_ascii=False)
        assert "a\\u001b[31mRED" in text or "a%1B" in text or "\\u001b" in text
    if name == "junit":
        ElementTree.fromstring(out)


def test_colors_are_the_only_control_characters_of_text(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    main(["--no-cache", "--show-suppressed", "--jobs", "1"])
    out = capsys.readouterr().out
    assert set(re.findall(r"\x1b\[[0-9;]*m", out)) == {"\x1b[1m", "\x1b[1;31m", "\x1b[31m", "\x1b[0m"}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_error_messages_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    key = json.dumps(name.encode(errors="replace").decode())
    for configuration in (f"{key} = 1", f"exclude = [1, {key}]", f"select = [{key}]", f"heat = {key}",
                          f"torch-version = {key}", f"per-file-ignores = {{{key} = 1}}"):  # fmt: skip
        (tmp_path / "pyproject.toml").write_text(f"[tool.gpusync]\n{configuration}\n", encoding="utf-8")
        _fails_in_one_line(capsys, ["empty"])
    (tmp_path / "pyproject.toml").unlink()
    _fails_in_one_line(capsys, [name, "--no-cache"])
    _fails_in_one_line(capsys, ["--baseline", name])
    _fails_in_one_line(capsys, ["--select", name])
    _fails_in_one_line(capsys, ["--add-ignores", f"x\n{name}"])
    _fails_in_one_line(capsys, [f"--{name}"])
    _fails_in_one_line(capsys, ["--heat", name])
    (tmp_path / "b.json").write_text(json.dumps([{"schema": f"gpusync.baseline/{name}"}]))
    _fails_in_one_line(capsys, ["--baseline", "b.json"])


def _fails_in_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], lines: int = 2) -> None:
    try:
        code = main(arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    err = capsys.readouterr().err
    assert code == 2, arguments
    assert len(err.splitlines()) <= lines, err
    check(err)


def test_stale_entries_of_a_baseline_are_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("x = 1\n")
    entries = [
        {"key": f"a.py::{name}::GS201::x::{number}", "code": "GS201", "source": name}
        for number, name in enumerate(HOSTILE.values())
    ]
    (tmp_path / "b.json").write_text(json.dumps([{"schema": SCHEMA}, *entries]))
    for name in output.names():
        assert main(["--baseline", "b.json", "--output-format", name, "--no-cache"]) == 1
        out, err = capsys.readouterr()
        assert "GS9" in out
        check(out)
        check(err)


def test_a_terminal_shows_what_a_diff_contains(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    (tmp_path / "a.py").write_text(f"{HOT_LOOP}    y = torch.zeros(3).to('cuda')  # \x1b[2K\u202e\n", encoding="utf-8")
    code = "import sys; from gpusync_lint.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "--diff", "--unsafe-fixes", "--no-cache", "a.py"]
    ours, theirs = pty.openpty()
    done = subprocess.run(command, cwd=tmp_path, stdout=theirs, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1, done.stderr
    os.set_blocking(ours, False)
    shown = os.read(ours, 100_000).decode()
    os.close(theirs)
    os.close(ours)
    assert "+    y = " in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_escaped_is_one_printable_line_that_obeys_nothing(name: str) -> None:
    for text in (name, f"  {name}", f"::{name}", f"x {name}"):
        check(escaping.escaped(text))
        assert escaping.escaped(text).isprintable()
        assert len(escaping.masked(text)) == len(text)
        assert escaping.escaped(escaping.escaped(text)) == escaping.escaped(text)
        document = json.dumps({"a": text})
        check(escaping.escaped_json(document))
        assert json.loads(escaping.escaped_json(document)) == {"a": text}


@pytest.mark.parametrize("text", ["train.py", "a b", "é日本", "std::vector", "C:\\x", "# comment ## heading", "a##b"])
def test_ordinary_text_is_not_changed(text: str) -> None:
    assert escaping.escaped(text) == escaping.masked(text) == text
