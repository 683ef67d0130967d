from __future__ import annotations

import os
from pathlib import Path

import pytest
from gpusync_lint.files.discovery import Found, decode, discover
from gpusync_lint.model.findings import FileError


def _discover(cwd: Path, *paths: str, exclude: str = "", stdin: bytes = b"", filename: str | None = None) -> Found:
    return discover(
        paths,
        cwd=cwd,
        excludes=lambda path: bool(exclude) and exclude in Path(path).parts,
        stdin=lambda: stdin,
        stdin_filename=filename,
    )


def _touch(cwd: Path, *names: str) -> None:
    for name in names:
        path = cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")


def _paths(found: Found) -> list[str]:
    return [file.source.path for file in found.files]


def test_folders_are_searched_for_python_files_in_order(tmp_path: Path) -> None:
    _touch(tmp_path, "b.py", "a/z.py", "a/y.pyw", "a/stub.pyi", "a/data.json", "a/notebook.ipynb")
    assert _paths(_discover(tmp_path, ".")) == ["a/y.pyw", "a/z.py", "b.py"]


@pytest.mark.parametrize("folder", [".git", ".tox", "node_modules", "build", "dist", "__pycache__", "x.egg-info"])
def test_folders_that_hold_no_source_of_the_project_are_skipped(tmp_path: Path, folder: str) -> None:
    _touch(tmp_path, "a.py", f"{folder}/b.py", f"pkg/{folder}/c.py")
    assert _paths(_discover(tmp_path, ".")) == ["a.py"]


def test_a_virtual_environment_is_skipped_by_what_it_holds(tmp_path: Path) -> None:
    _touch(tmp_path, "a.py", "anyname/lib/b.py")
    (tmp_path / "anyname" / "pyvenv.cfg").touch()
    assert _paths(_discover(tmp_path, ".")) == ["a.py"]


def test_a_skipped_folder_is_searched_when_it_is_given(tmp_path: Path) -> None:
    _touch(tmp_path, "build/b.py")
    assert _paths(_discover(tmp_path, "build")) == ["build/b.py"]


@pytest.mark.parametrize("given", [".", "vendor", "vendor/a.py"])
def test_what_is_excluded_is_passed_over_however_it_is_reached(tmp_path: Path, given: str) -> None:
    _touch(tmp_path, "vendor/a.py", "b.py")
    assert "vendor/a.py" not in _paths(_discover(tmp_path, given, exclude="vendor"))


@pytest.mark.parametrize("paths", [("a.py", "a.py"), (".", "a.py"), ("a.py", "link.py"), ("./a.py", "pkg/../a.py")])
def test_a_file_that_is_reached_twice_is_read_once(tmp_path: Path, paths: tuple[str, ...]) -> None:
    _touch(tmp_path, "a.py")
    if "link.py" in paths:
        (tmp_path / "link.py").symlink_to("a.py")
    assert _paths(_discover(tmp_path, *paths)) == ["a.py"]


@pytest.mark.parametrize(
    ("paths", "named"), [(["."], False), (["a.py"], True), ([".", "a.py"], False), (["a.py", "."], False)]
)
def test_a_file_that_is_given_itself_is_told_from_one_in_a_given_folder(
    tmp_path: Path, paths: list[str], named: bool
) -> None:
    _touch(tmp_path, "a.py")
    (file,) = _discover(tmp_path, *paths).files
    assert file.named is named


def test_files_that_are_not_python_are_passed_over(tmp_path: Path) -> None:
    _touch(tmp_path, "README.md", "data.json", "Makefile", "stub.pyi")
    assert _discover(tmp_path, "README.md", "data.json", "Makefile", "stub.pyi") == Found((), (), 0, ())


def test_a_script_is_known_by_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "train").write_text("#!/usr/bin/env python3\nx = 1\n")
    (tmp_path / "run").write_text("#!/bin/sh\n")
    assert _paths(_discover(tmp_path, "train", "run")) == ["train"]


def test_a_path_that_does_not_exist_leaves_the_others(tmp_path: Path) -> None:
    _touch(tmp_path, "a.py")
    found = _discover(tmp_path, "gone.py", "a.py")
    assert found.errors == (FileError("gone.py", None, "no such file or folder"),)
    assert _paths(found) == ["a.py"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_leaves_the_others(tmp_path: Path) -> None:
    _touch(tmp_path, "a.py", "secret.py")
    (tmp_path / "secret.py").chmod(0)
    found = _discover(tmp_path, ".")
    assert found.errors == (FileError("secret.py", None, "cannot be read: Permission denied"),)
    assert _paths(found) == ["a.py"]


def test_a_link_to_nowhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").symlink_to("gone.py")
    found = _discover(tmp_path, ".")
    assert found.errors == (FileError("a.py", None, "cannot be read: No such file or directory"),)


@pytest.mark.parametrize(
    ("data", "line", "message"),
    [
        (b"x = '\xff'\n", 1, "cannot be decoded: byte 0xff is not utf-8"),
        (b"a = 1\nb = 2\nx = '\xff'\n", 3, "cannot be decoded: byte 0xff is not utf-8"),
        (b"# coding: klingon\n", None, "cannot be decoded: unknown encoding: klingon"),
        (b"# coding: ascii\nx = '\xc3\xa4'\n", 2, "cannot be decoded: byte 0xc3 is not ascii"),
    ],
)
def test_bytes_that_are_no_text_are_an_error(tmp_path: Path, data: bytes, line: int | None, message: str) -> None:
    (tmp_path / "a.py").write_bytes(data)
    assert _discover(tmp_path, "a.py").errors == (FileError("a.py", line, message),)


def test_a_folder_without_python_files_is_named(tmp_path: Path) -> None:
    _touch(tmp_path, "docs/index.md")
    assert _discover(tmp_path, "docs").empty == ("docs",)


def test_a_folder_whose_files_were_all_reached_already_is_not_called_empty(tmp_path: Path) -> None:
    _touch(tmp_path, "pkg/a.py")
    assert _discover(tmp_path, "pkg/a.py", "pkg").empty == ()


def test_paths_below_the_working_directory_are_shown_relative_to_it(tmp_path: Path) -> None:
    _touch(tmp_path, "here/a.py", "there/b.py")
    found = _discover(tmp_path / "here", str(tmp_path / "here" / "a.py"), "../there/b.py")
    assert _paths(found) == [(tmp_path / "there" / "b.py").as_posix(), "a.py"]


def test_standard_input_takes_the_name_it_is_given(tmp_path: Path) -> None:
    found = _discover(tmp_path, "-", stdin=b"x = 1\n", filename="pkg/a.py")
    (file,) = found.files
    assert (file.source.path, file.source.text, file.stdin) == ("pkg/a.py", "x = 1\n", True)


def test_standard_input_without_a_name(tmp_path: Path) -> None:
    assert _paths(_discover(tmp_path, "-", stdin=b"x = 1\n")) == ["<stdin>"]


def test_standard_input_under_an_excluded_name_is_passed_over(tmp_path: Path) -> None:
    assert _discover(tmp_path, "-", filename="vendor/a.py", exclude="vendor").files == ()


@pytest.mark.parametrize(
    ("data", "text", "encoding"),
    [
        (b"x\r\ny\rz\n", "x\ny\nz\n", "utf-8"),
        (b"\xef\xbb\xbfx\n", "x\n", "utf-8"),
        (b"# coding: latin-1\n# \xe4\n", "# coding: latin-1\n# ä\n", "iso-8859-1"),
        (b"x\x0cy\n", "x\x0cy\n", "utf-8"),
    ],
)
def test_decoding(data: bytes, text: str, encoding: str) -> None:
    file = decode(data, "a.py", Path("/a.py"))
    assert (file.source.text, file.encoding) == (text, encoding)
