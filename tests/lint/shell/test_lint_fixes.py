from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from gpusync_lint.cli import main
from gpusync_lint.files.discovery import decode
from gpusync_lint.model.findings import Finding, Fix
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.spans import Edit, Span
from gpusync_lint.rewrite import apply

Project = Callable[..., Path]


def _edit(line: int, column: int, end_line: int, end_column: int, replacement: str) -> Edit:
    return Edit(Span(line, column, end_line, end_column), replacement)


def _finding(line: int, safe: bool = True) -> Finding:
    fix = Fix(f"Change line {line}", (), safe)
    span = Span(line, 1, line, 2)
    return Finding("GS201", "item-read", "a.py", span, "waits", "no", Heat.STEP, Confidence.HIGH, "torch", "key", fix)


def _edits(*given: Sequence[Edit]) -> Callable[[Fix], Sequence[Edit]]:
    """The edits of fixes by the lines of their findings."""
    return lambda fix: given[int(fix.title.rpartition(" ")[2])]


@pytest.mark.parametrize(
    ("text", "edits", "result"),
    [
        pytest.param("ab\ncd\n", [_edit(2, 1, 2, 2, "X")], "ab\nXd\n", id="replace"),
        pytest.param("ab\ncd\n", [_edit(1, 2, 2, 2, "")], "ad\n", id="across lines"),
        pytest.param("ab\n", [_edit(1, 1, 1, 1, "X"), _edit(1, 3, 1, 3, "Y")], "XabY\n", id="insert at both ends"),
        pytest.param("ab\n", [_edit(1, 1, 1, 2, "XYZ"), _edit(1, 2, 1, 3, "Q")], "XYZQ\n", id="next to each other"),
        pytest.param("ab\n", [_edit(1, 1, 1, 2, "X")] * 2, "Xb\n", id="the same edit once"),
        pytest.param("a\r\nb\r\n", [_edit(2, 1, 2, 1, "x\n")], "a\r\nx\r\nb\r\n", id="CRLF in the replacement too"),
        pytest.param("a\rb\r", [_edit(2, 1, 2, 2, "X")], "a\rX\r", id="CR"),
        pytest.param("a\r\nb\nc", [_edit(3, 1, 3, 2, "X")], "a\r\nb\nX", id="mixed, unterminated"),
        pytest.param("a\x0cb\n\x0c\nc\n", [_edit(3, 1, 3, 2, "X")], "a\x0cb\n\x0c\nX\n", id="form feeds end no line"),
        pytest.param("a\u2028b\nc\n", [_edit(2, 1, 2, 2, "X")], "a\u2028b\nX\n", id="nor does a line separator"),
        pytest.param("a\nb", [_edit(2, 1, 3, 1, "")], "a\n", id="delete the last line"),
        pytest.param("äöü\n", [_edit(1, 2, 1, 3, "o")], "äoü\n", id="columns are characters"),
    ],
)
def test_edits(text: str, edits: list[Edit], result: str) -> None:
    assert apply.apply_edits(text, edits) == result


@pytest.mark.parametrize(
    "edit", [_edit(9, 1, 9, 2, ""), _edit(1, 9, 1, 10, ""), _edit(0, 1, 1, 1, ""), _edit(1, 2, 1, 1, "")]
)
def test_an_edit_outside_the_text_is_refused(edit: Edit) -> None:
    with pytest.raises(ValueError, match="an edit at line"):
        apply.apply_edits("ab\n", [edit])


@pytest.mark.parametrize(
    ("edits", "taken"),
    [
        pytest.param([_edit(1, 1, 1, 5, "a"), _edit(1, 5, 1, 9, "b")], 2, id="touching"),
        pytest.param([_edit(1, 1, 1, 5, "a"), _edit(1, 4, 1, 9, "b")], 1, id="overlapping"),
        pytest.param([_edit(1, 1, 1, 9, "a"), _edit(1, 4, 1, 5, "b")], 1, id="nested"),
        pytest.param([_edit(1, 1, 1, 1, "a"), _edit(1, 1, 1, 1, "b")], 1, id="inserted at one place"),
        pytest.param([_edit(1, 1, 1, 5, "a"), _edit(1, 5, 1, 5, "b")], 1, id="inserted at the end of another"),
        pytest.param([_edit(1, 1, 1, 1, "a"), _edit(1, 1, 1, 1, "a")], 2, id="the same insertion"),
    ],
)
def test_fixes_that_overlap_are_not_applied_together(edits: list[Edit], taken: int) -> None:
    findings = [_finding(number) for number in range(len(edits))]
    chosen = apply.choose(findings, _edits(*([edit] for edit in edits)), unsafe=False)
    assert len(chosen.fixes) == taken
    assert chosen.edits == tuple(dict.fromkeys(edits[:taken]))


def test_a_fix_is_applied_whole_or_not_at_all() -> None:
    first, second = _finding(0), _finding(1)
    edits = _edits([_edit(1, 1, 1, 5, "a")], [_edit(1, 4, 1, 6, "b"), _edit(9, 1, 9, 2, "c")])
    assert apply.choose([first, second], edits, unsafe=False).fixes == (first.fix,)


def test_unsafe_fixes_are_applied_on_request_only() -> None:
    findings = [_finding(0, safe=False)]
    edits = _edits([_edit(1, 1, 1, 2, "a")])
    assert apply.choose(findings, edits, unsafe=False).fixes == ()
    assert len(apply.choose(findings, edits, unsafe=True).fixes) == 1


def test_a_fix_that_cannot_be_written_is_not_chosen() -> None:
    assert apply.choose([_finding(0)], _edits([]), unsafe=False) == apply.Chosen((), ())


@pytest.mark.parametrize(
    ("text", "verdict"),
    [("x = 1\n", True), ("x = (\n", False), ("x = '\\d'\n", True), ("lazy import os\n", True), ("x = 1\0\n", False)],
)
def test_what_compiles(text: str, verdict: bool) -> None:
    assert apply.compiles(text) is verdict


def test_a_diff_of_an_absolute_path_is_one_below_the_root() -> None:
    head = apply.diff("a\n", "b\n", "/home/me/a.py").splitlines()[:2]
    assert head == ["--- a/home/me/a.py", "+++ b/home/me/a.py"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a\nb\nc\n", "a\nX\nc\n"),
        ("a\r\nb\r\nc", "a\r\nX\r\nY"),
        ("a\rb\rc", "a\rX\rc"),
        ("a\n\x0c\nb\u2028c\n", "a\n\x0c\nX\u2028c\n"),
        ("a\nb", "a\n"),
    ],
)
def test_a_diff_can_be_applied(tmp_path: Path, before: str, after: str) -> None:
    (tmp_path / "a.py").write_bytes(before.encode())
    patch = apply.diff(before, after, "a.py")
    subprocess.run(["git", "apply", "-"], input=patch.encode(), cwd=tmp_path, check=True)
    assert (tmp_path / "a.py").read_bytes() == after.encode()


ROUND_TRIPS = {
    "LF": b"x\ncopy_safe()\n",
    "CRLF": b"x\r\ncopy_safe()\r\n",
    "CR": b"x\rcopy_safe()\r",
    "mixed line ends": b"x\r\ncopy_safe()\ny\r\n",
    "no newline at the end": b"x\ncopy_safe()",
    "byte-order mark": b"\xef\xbb\xbfcopy_safe()  # \xc3\xa4\n",
    "byte-order mark and encoding line": b"\xef\xbb\xbf# coding: utf-8\ncopy_safe()\n",
    "encoding line": b"# coding: latin-1\ncopy_safe()  # \xe4\n",
    "form feed": b"x\n\x0c\ncopy_safe()\n\x0c",
    "trailing blanks": b"x  \ncopy_safe()\t\n  \n",
}


@pytest.mark.parametrize("data", ROUND_TRIPS.values(), ids=ROUND_TRIPS.keys())
def test_a_fix_keeps_every_other_byte(project: Project, data: bytes) -> None:
    root = project({"a.py": data})
    assert main(["--fix", "a.py"]) == 0
    assert (root / "a.py").read_bytes() == data.replace(b"copy_safe", b"fixed")


@pytest.mark.parametrize("mode", [0o755, 0o640, 0o600])
def test_a_fix_keeps_the_permissions(project: Project, mode: int) -> None:
    root = project({"a.py": "copy_safe()\n"})
    (root / "a.py").chmod(mode)
    main(["--fix"])
    assert stat.S_IMODE((root / "a.py").stat().st_mode) == mode


def test_a_fix_goes_through_a_symbolic_link(project: Project) -> None:
    root = project({"real/a.py": "copy_safe()\n"})
    (root / "a.py").symlink_to("real/a.py")
    main(["--fix", "a.py"])
    assert (root / "a.py").is_symlink()
    assert (root / "real" / "a.py").read_text() == "fixed()\n"


def test_a_fix_leaves_no_other_file_behind(project: Project) -> None:
    root = project({"a.py": "copy_safe()\n"})
    main(["--fix"])
    assert os.listdir(root) == ["a.py"]


def test_fixes_are_repeated_until_nothing_is_left_to_fix(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    root = project({"a.py": "copy_twice()\n"})
    assert main(["--fix"]) == 0
    assert (root / "a.py").read_text() == "fixed()\n"
    assert capsys.readouterr().out == "Fixed 2 warnings in 1 file.\nNo warnings in 1 file\n"


def test_a_second_run_changes_nothing(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    root = project({"a.py": "copy_safe(); copy_unsafe(); item()\n"})
    main(["--fix"])
    capsys.readouterr()
    before = (root / "a.py").stat()
    assert main(["--fix"]) == 1
    after = (root / "a.py").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert "Fixed 0 warnings.\nFound 2 warnings" in capsys.readouterr().out


def test_the_exit_code_after_a_fix_is_that_of_what_remains(project: Project) -> None:
    project({"a.py": "copy_safe()\nitem()\n"})
    assert main(["--fix"]) == 1


def test_unsafe_fixes_are_left_alone_unless_asked_for(project: Project) -> None:
    root = project({"a.py": "copy_safe(); copy_unsafe()\n"})
    assert main(["--fix"]) == 1
    assert (root / "a.py").read_text() == "fixed(); copy_unsafe()\n"
    assert main(["--fix", "--unsafe-fixes"]) == 0
    assert (root / "a.py").read_text() == "fixed(); fixed()\n"


@pytest.mark.parametrize(
    "line", ["copy_safe()  # gpusync: allow[GS501] why\n", "if x: copy_safe()  # gpusync: allow[GS] why\n"]
)
def test_an_allowed_finding_is_not_fixed(project: Project, line: str) -> None:
    root = project({"a.py": line})
    assert main(["--fix"]) == 0
    assert (root / "a.py").read_text() == line


def test_a_code_that_is_not_selected_is_not_fixed(project: Project) -> None:
    root = project({"a.py": "copy_safe()\n"})
    assert main(["--fix", "--select", "GS2"]) == 0
    assert (root / "a.py").read_text() == "copy_safe()\n"


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("copy_broken", "the fixed text does not compile (fix: Use fixed, Use fixed(); this is a bug in the rule"),
        ("copy_ping", "its fixes undo each other; this is a bug in the rules"),
    ],
)
def test_a_file_that_a_fix_would_break_is_left_untouched(
    project: Project, capsys: pytest.CaptureFixture[str], word: str, problem: str
) -> None:
    text = f"copy_safe()\n{word}()\n"
    root = project({"a.py": text, "b.py": "copy_safe()\n"})
    assert main(["--fix"]) == 2
    assert (root / "a.py").read_text() == text
    assert (root / "b.py").read_text() == "fixed()\n"
    out, err = capsys.readouterr()
    assert err == f"a.py: error: not fixed: {problem}\n"
    assert out.endswith("Fixed 1 warning in 1 file.\nFound 2 warnings (2 fixable with --fix), 1 error\n")


UNWRITABLE = "a fix cannot be written: there is no comment at this position (fix: Use fixed); this is a bug in gpusync"


def test_a_fix_that_cannot_be_written_is_an_error_and_the_others_are_applied(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    root = project({"a.py": "copy_twice()\ncopy_unwritable()\n"})
    assert main(["--fix"]) == 2
    assert (root / "a.py").read_text() == "fixed()\ncopy_unwritable()\n"
    out, err = capsys.readouterr()
    assert err == f"a.py:2: error: {UNWRITABLE}\n"
    assert "fix: Use" not in out
    assert out.endswith("Fixed 2 warnings in 1 file.\nFound 1 warning, 1 error\n")


@pytest.mark.parametrize("options", [[], ["--fix"], ["--fix", "--add-ignores", "known", "--show-suppressed"]])
def test_json_shows_no_fix_that_cannot_be_written(
    project: Project, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    project({"a.py": "item()\ncopy_unwritable()\n"})
    assert main(["--output-format", "json", *options]) == 2
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert [one["fix"] for one in document["findings"]] == [None, None]
    assert [(one["line"], one["message"]) for one in document["errors"]] == [(2, UNWRITABLE)]
    assert err.startswith(f"a.py:2: error: {UNWRITABLE}\n")
    assert err.count("error") == 1


def test_a_write_protected_file_is_reported_and_its_warnings_remain(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    root = project({"a.py": "copy_safe()\n"})
    (root / "a.py").chmod(0o444)
    assert main(["--fix"]) == 2
    out, err = capsys.readouterr()
    assert err == "a.py: error: not written: it is write-protected\n"
    assert "Fixed 0 warnings.\nFound 1 warning" in out
    assert (root / "a.py").read_text() == "copy_safe()\n"


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    file = decode(b"old\n", "a.py", path)
    path.write_bytes(b"newer\n")
    with pytest.raises(apply.WriteError, match="it has changed since it was read; run again"):
        apply.write(file, "fixed\n", [])
    assert path.read_bytes() == b"newer\n"


def test_a_fix_that_the_encoding_cannot_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"# coding: ascii\n")
    file = decode(path.read_bytes(), "a.py", path)
    with pytest.raises(apply.WriteError, match="the new text cannot be encoded as ascii"):
        apply.write(file, "# coding: ascii\n# \xe4\n", [])
    assert os.listdir(tmp_path) == ["a.py"]


def test_a_diff_changes_nothing_and_exits_1(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    root = project({"pkg/a.py": "x\ncopy_safe()\ncopy_unsafe()\n"})
    assert main(["--diff"]) == 1
    out, err = capsys.readouterr()
    assert out == ("--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1,3 +1,3 @@\n x\n-copy_safe()\n+fixed()\n copy_unsafe()\n")
    assert err == "Would fix 1 warning.\n"
    assert (root / "pkg" / "a.py").read_text() == "x\ncopy_safe()\ncopy_unsafe()\n"


def test_a_diff_with_unsafe_fixes_shows_them(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project({"a.py": "copy_unsafe()\n"})
    assert main(["--diff", "--unsafe-fixes"]) == 1
    assert "-copy_unsafe()\n+fixed()\n" in capsys.readouterr().out


def test_a_diff_without_changes_exits_0(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project({"a.py": "item()\n"})
    assert main(["--diff"]) == 0
    assert capsys.readouterr() == ("", "")
