"""No file ends a run, hides the findings of others, blocks it, or exhausts the memory."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from gpusync_lint.cli import main
from gpusync_lint.files import discovery, regular_file
from hot_loop import HOT_LOOP

if TYPE_CHECKING:
    from pathlib import Path

HOT = f"{HOT_LOOP}    print(loss.item())\n"
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="there are no such files on Windows")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.py").write_text(HOT)
    return tmp_path


def lint(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    """The exit code of a run, the paths with findings, and standard error."""
    code = main(["--output-format", "json", "--jobs", "1", *arguments])
    out, err = capsys.readouterr()
    return code, sorted({finding["path"] for finding in json.loads(out)["findings"]} if out else []), err


ENCODINGS = [
    "rot13", "hex", "base64", "zlib", "bz2", "uu", "quopri", "undefined", "idna", "punycode", "unicode_escape",
    "raw_unicode_escape", "utf-16", "utf-32", "utf-7", "utf-8-sig", "latin-1", "mbcs", "no-such-encoding", "aliases",
    "cp037", "shift_jis", "iso2022_jp", "hz", "charmap", "ascii", "oem",
]  # fmt: skip


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_encoding_line_hides_no_other_file(folder: Path, capsys: pytest.CaptureFixture[str], encoding: str) -> None:
    for name, data in {"short": b"", "text": b"x = '\\xff\\u1234'\n", "bytes": bytes(range(128, 256)) + b"\n"}.items():
        (folder / f"{name}.py").write_bytes(f"# coding: {encoding}\n".encode() + data)
    code, paths, err = lint(capsys, "--no-cache")
    assert paths == ["good.py"]
    assert code == (2 if err else 1)
    assert "internal error" not in err
    assert all(line.split(":")[0] in ("short.py", "text.py", "bytes.py") for line in err.splitlines())


@pytest.mark.parametrize("encoding", ["rot13", "hex", "undefined", "idna", "no-such-encoding"])
def test_an_encoding_that_is_none_of_text_is_one_error(
    folder: Path, capsys: pytest.CaptureFixture[str], encoding: str
) -> None:
    (folder / "bad.py").write_text(f"# coding: {encoding}\nx = 1\n")
    code, _, err = lint(capsys, "--no-cache")
    assert code == 2
    assert err.startswith("bad.py: error: cannot be decoded: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("encoding", ["rot13", "hex", "undefined"])
def test_a_neighbor_that_cannot_be_decoded_is_not_context(
    folder: Path, capsys: pytest.CaptureFixture[str], encoding: str
) -> None:
    (folder / "helper.py").write_text(f"# coding: {encoding}\nimport good\n")
    (folder / "good.py").write_text(f"import helper\n{HOT}")
    assert lint(capsys, "good.py") == (1, ["good.py"], "")


NOTEBOOKS = {
    "a huge integer": '{"nbformat":4,"metadata":{},"cells":[{"cell_type":"code","source":"x","execution_count":%s}]}'
    % ("9" * 5000),
    "a huge format": '{"nbformat":%s,"cells":[]}' % ("9" * 5000),
    "deep nesting": '{"nbformat":4,"cells":[],"metadata":' + "[" * 100_000 + "]" * 100_000 + "}",
    "deep nesting in a cell": '{"nbformat":4,"cells":[{"cell_type":"code","source":"x","a":%s}]}'
    % ("[" * 900 + "]" * 900),
    "infinity": '{"nbformat":Infinity,"cells":[]}',
    "not a number": '{"nbformat":4,"cells":[NaN]}',
    "half a surrogate": '{"nbformat":4,"cells":[{"cell_type":"code","source":"x = \'\\ud800\'"}]}',
    "the same key twice": '{"nbformat":4,"cells":[{"cell_type":"code","source":"x"}],"cells":[]}',
    "cells that are no objects": '{"nbformat":4,"cells":[[], 1, null, "x"]}',
    "a source that is no text": '{"nbformat":4,"cells":[{"cell_type":"code","source":[1]}]}',
    "no source": '{"nbformat":4,"cells":[{"cell_type":"code"}]}',
    "a number": "1",
    "nothing": "",
}


@pytest.mark.parametrize("content", NOTEBOOKS.values(), ids=NOTEBOOKS.keys())
def test_a_notebook_hides_no_other_file(folder: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    (folder / "bad.ipynb").write_text(content)
    code, paths, err = lint(capsys, "--no-cache")
    assert paths == ["good.py"]
    assert code == (2 if err else 1)
    assert "internal error" not in err
    assert all(line.startswith("bad.ipynb") and len(line) < 300 for line in err.splitlines())


@POSIX
@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
@pytest.mark.parametrize("given", [".", "bad.py"])
def test_what_is_no_regular_file_is_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str], kind: str, given: str
) -> None:
    _make(folder / "bad.py", kind)
    code, paths, err = lint(capsys, "--no-cache", given, "good.py")
    assert (code, paths) == (2, ["good.py"])
    assert err == "bad.py: error: cannot be read: not a regular file\n"


def _make(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as server:
            here = os.open(".", os.O_RDONLY)
            try:
                os.chdir(path.parent)  # the path of a socket is limited to some hundred characters
                server.bind(path.name)
            finally:
                os.fchdir(here)
                os.close(here)


@POSIX
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_neighbor_that_is_no_regular_file_is_not_context(
    folder: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    _make(folder / "helper.py", kind)
    (folder / "good.py").write_text(f"import helper\n{HOT}")
    assert lint(capsys, "good.py") == (1, ["good.py"], "")


@POSIX
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["pyproject.toml", "gpusync-baseline.json"])
def test_a_setting_that_is_no_regular_file_is_one_error(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    _make(folder / name, kind)
    assert main([".", *(["--baseline", name] if name.endswith("json") else [])]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(f"{name}: cannot be read: not a regular file\n")


def test_a_file_that_is_too_large_is_not_read(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "MAX_SOURCE", 5_000_000)
    (folder / "large.py").write_bytes(b"#" * 5_000_001)
    code, paths, err = lint(capsys, "--no-cache")
    assert (code, paths) == (2, ["good.py"])
    assert err == (
        "large.py: error: not read, because it is larger than 5 MB; to leave it out, add it to exclude in "
        "[tool.gpusync]\n"
    )


def test_a_file_that_grows_while_it_is_read_is_not_read_beyond_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "growing"
    path.write_bytes(b"x" * 10)
    assert regular_file.read_regular(path, 10) == b"x" * 10
    path.write_bytes(b"x" * 11)
    with pytest.raises(regular_file.TooLargeError):
        regular_file.read_regular(path, 10)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="there is no file that is longer than its size")
def test_a_file_that_is_longer_than_its_size_is_read(tmp_path: Path) -> None:
    assert b"VmPeak" in regular_file.read_regular("/proc/self/status", 100_000)
    with pytest.raises(regular_file.TooLargeError):
        regular_file.read_regular("/proc/self/status", 100)


CONFIGURATIONS = {
    "deep nesting": "[tool.gpusync]\nx = " + "[" * 20_000 + "]" * 20_000,
    "a huge integer": "[tool.gpusync]\nx = " + "9" * 5000,
    "bytes": b"[tool.gpusync]\nx = '\xff'\n",
    "a backward range": '[tool.gpusync]\nexclude = ["[z-a]"]\n',
}


@pytest.mark.parametrize("content", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_a_configuration_is_one_error(folder: Path, capsys: pytest.CaptureFixture[str], content: str | bytes) -> None:
    (folder / "pyproject.toml").write_bytes(content.encode() if isinstance(content, str) else content)
    code, _, err = lint(capsys, "--no-cache")
    assert code == 2
    assert err.startswith("gpusync lint: error: ")
    assert err.count("\n") == 1
    assert "internal error" not in err


@pytest.mark.parametrize("content", ["[" * 100_000, "9" * 5000, "[9" + "9" * 5000 + "]", "\ud800"])
def test_a_baseline_is_one_error(folder: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    (folder / "b.json").write_bytes(content.encode(errors="surrogatepass"))
    code, _, err = lint(capsys, "--no-cache", "--baseline", "b.json")
    assert code == 2
    assert err.startswith("gpusync lint: error: b.json")
    assert err.count("\n") == 1


def test_a_pattern_of_git_takes_no_exponential_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / ".git").mkdir()
    (folder / ".gitignore").write_text("*a" * 30 + "*b\n" + "**/a/" * 30 + "b\nleft_out.py\n")
    (folder / f"{'a' * 200}.py").write_text(HOT)
    (folder / "left_out.py").write_text(HOT)
    start = time.process_time()
    assert lint(capsys, "--no-cache")[1] == [f"{'a' * 200}.py", "good.py"]
    assert time.process_time() - start < 20


@POSIX
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_patterns_of_git_that_are_no_regular_file_are_not_read(
    folder: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    (folder / ".git").mkdir()
    _make(folder / ".gitignore", kind)
    assert lint(capsys, "--no-cache") == (1, ["good.py"], "")


def test_thousands_of_findings_on_a_line_are_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "line.py").write_text(HOT + "    " + ";".join(["loss.item()"] * 3000) + "\n")
    start = time.process_time()
    assert main(["--no-cache", "--jobs", "1"]) == 1
    assert time.process_time() - start < 10
    assert max(map(len, capsys.readouterr().out.splitlines())) < 300


NEWER = "type X[T] = list[T]\nx = t'{y}'\n"
DEEP = {
    "not": "x = " + "not " * 5000 + "y",
    "tildes": "x = " + "~" * 5000 + "y",
    "lambdas": "x = " + "lambda: " * 5000 + "y",
    "else": "x = " + "a if b else " * 5000 + "y",
    "awaits": "async def f(): " + "await " * 5000 + "y",
    "parentheses": "x = " + "(" * 5000 + ")" * 5000,
    "f-strings": "x = " + "f'{" * 5000,
    "powers": "x = " + "a ** " * 5000 + "y",
    "comparisons": "x = " + "a < " * 5000 + "y",
    "walrus": "(" + "a := " * 5000 + "y)",
    "attributes": "x = y" + ".a" * 5000,
    "strings": "x = " + "'a' " * 5000,
    "elifs": "if a: pass\n" + "elif b: pass\n" * 5000,
    "blocks": "".join(" " * depth + "if a:\n" for depth in range(99)) + " " * 99 + "pass",
    "decorators": "@a\n" * 5000 + "def f(): pass",
    "stars": "x = " + "*" * 5000 + "y",
    "yields": "def f(): return " + "(yield " * 90 + "1" + ")" * 90,
}


@pytest.mark.parametrize("newer", [False, True])
def test_no_syntax_ends_the_process(folder: Path, newer: bool) -> None:
    """In a process of its own, which a crash of a parser ends. With newer syntax, libcst reads the files."""
    for name, code in DEEP.items():
        (folder / f"{name}.py").write_text(f"import torch\n{NEWER if newer else ''}{code}\n")
    code = "import sys; from gpusync_lint.cli import main; sys.exit(main(sys.argv[1:]))"
    options = ["--no-cache", "--jobs", "1", "--fix", "--output-format", "json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *options], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "good.py" in {finding["path"] for finding in json.loads(done.stdout)["findings"]}
    assert "internal error" not in done.stderr
    assert {line.split(":")[0] for line in done.stderr.splitlines()} <= {f"{name}.py" for name in DEEP}
