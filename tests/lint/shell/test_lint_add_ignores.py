from __future__ import annotations

import ast
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gpusync_lint.cli import main

Project = Callable[..., Path]
Captured = pytest.CaptureFixture[str]

ADD = ["--add-ignores", "known"]

CASES = [
    ("a statement", "item()\n", "item()  # gpusync: allow[GS201] known\n"),
    ("no newline at the end", "item()", "item()  # gpusync: allow[GS201] known"),
    ("trailing blanks", "item() \t\n", "item()  # gpusync: allow[GS201] known\n"),
    ("carriage returns", "item()\r\nx = 1\r\n", "item()  # gpusync: allow[GS201] known\r\nx = 1\r\n"),
    ("another comment", "item()  # noqa\n", "item()  # noqa  # gpusync: allow[GS201] known\n"),
    ("two codes", "tolist(); item()\n", "tolist(); item()  # gpusync: allow[GS201, GS202] known\n"),
    ("a header", "if item():\n    x = 1\n", "if item():  # gpusync: allow[GS201] known\n    x = 1\n"),
    ("a block on the line", "if x: item()\n", "if x: item()  # gpusync: allow[GS201] known\n"),
    ("a decorator", "@item()\ndef f(): pass\n", "@item()  # gpusync: allow[GS201] known\ndef f(): pass\n"),
    (
        "brackets",
        "x = f(\n    item(),\n    y,\n)\n",
        "x = f(\n    item(),  # gpusync: allow[GS201] known\n    y,\n)\n",
    ),
    (
        "a comment within brackets",
        "x = f(  # one\n    item(),  # two\n)\n",
        "x = f(  # one\n    item(),  # two  # gpusync: allow[GS201] known\n)\n",
    ),
    (
        "a backslash",
        "x = \\\n    item() + \\\n    1\n",
        "x = \\\n    item() + \\\n    1  # gpusync: allow[GS201] known\n",
    ),
    (
        "a string over lines",
        'x = item(), """\ntext\n""", 1\n',
        'x = item(), """\ntext\n""", 1  # gpusync: allow[GS201] known\n',
    ),
    (
        "a formatted string over lines",
        'x = f"""{item()}\n{y}\n"""\n',
        'x = f"""{item()}\n{y}\n"""  # gpusync: allow[GS201] known\n',
    ),
    (
        "one comment for the statement",
        "x = f(\n    item(),\n    tolist(),\n)\n",
        "x = f(\n    item(),  # gpusync: allow[GS201, GS202] known\n    tolist(),\n)\n",
    ),
    (
        "a comment with this reason",
        "item(); tolist()  # gpusync: allow[GS201] known\n",
        "item(); tolist()  # gpusync: allow[GS201, GS202] known\n",
    ),
    (
        "a comment above with this reason",
        "# gpusync: allow[item-read] known\nitem(); tolist()\n",
        "# gpusync: allow[item-read, GS202] known\nitem(); tolist()\n",
    ),
    (
        "a comment with another reason",
        "item(); tolist()  # gpusync: allow[GS201] other\n",
        "item(); tolist()  # gpusync: allow[GS201] other  # gpusync: allow[GS202] known\n",
    ),
    (
        "a comment with this reason and a date",
        "item(); tolist()  # gpusync: allow[GS201] until=2099-01-01 known\n",
        "item(); tolist()  # gpusync: allow[GS201] until=2099-01-01 known  # gpusync: allow[GS202] known\n",
    ),
    (
        "a comment for the file",
        "# gpusync: allow-file[GS202] known\nitem(); tolist()\n",
        "# gpusync: allow-file[GS202] known\nitem(); tolist()  # gpusync: allow[GS201] known\n",
    ),
    ("what is allowed already", "item()  # gpusync: allow[GS201] why\n", "item()  # gpusync: allow[GS201] why\n"),
    ("notes", "item_epoch()\n", "item_epoch()\n"),
]


@pytest.mark.parametrize(("before", "after"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_comment_stands_where_it_can(project: Project, before: str, after: str) -> None:
    root = project({"a.py": before})
    assert main(ADD) == 0
    assert (root / "a.py").read_bytes().decode() == after
    ast.parse(after)


@pytest.mark.parametrize("before", [case[1] for case in CASES], ids=[case[0] for case in CASES])
def test_the_next_run_is_clean_and_changes_nothing(project: Project, capsys: Captured, before: str) -> None:
    root = project({"a.py": before})
    main(ADD)
    after = (root / "a.py").read_bytes()
    assert main([]) == 0
    capsys.readouterr()
    assert main(["--add-ignores", "another reason"]) == 0
    assert capsys.readouterr().err == "Added comments that allow 0 warnings in 0 files.\n"
    assert (root / "a.py").read_bytes() == after


def test_the_count_is_said(project: Project, capsys: Captured) -> None:
    project({"a.py": "item(); tolist()\n", "b.py": "item()\n"})
    main(ADD)
    out, err = capsys.readouterr()
    assert err == "Added comments that allow 3 warnings in 2 files.\n"
    assert out == "No warnings in 2 files, 3 allowed\n"


def test_a_reason_may_hold_a_date(project: Project) -> None:
    root = project({"a.py": "item()\n"})
    assert main(["--add-ignores", "until=2099-01-01 known"]) == 0
    assert (root / "a.py").read_text() == "item()  # gpusync: allow[GS201] until=2099-01-01 known\n"


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("", "`# gpusync: allow[GS101]` gives no reason and has no effect"),
        (" -- ", "`# gpusync: allow[GS101]  --` gives no reason and has no effect"),
        ("one\ntwo", "a reason must be one line"),
        ("one # two", "a reason cannot contain another comment (` # `)"),
        ("until=2020-01-01 known", "`# gpusync: allow[GS101] until=2020-01-01 known` expired on 2020-01-01 and "),
        ("until=soon known", "`# gpusync: allow[GS101] until=soon known`: 'soon' is not a date"),
    ],
)
def test_a_reason_that_would_not_hold_is_refused(project: Project, capsys: Captured, reason: str, message: str) -> None:
    root = project({"a.py": "item()\n"})
    assert main(["--add-ignores", reason]) == 2
    assert capsys.readouterr().err.startswith(f"gpusync lint: error: --add-ignores: {message}")
    assert (root / "a.py").read_text() == "item()\n"


def test_a_reason_is_required(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()\n"})
    with pytest.raises(SystemExit) as caught:
        main(["--add-ignores"])
    assert caught.value.code == 2
    assert "argument --add-ignores: expected one argument" in capsys.readouterr().err


def test_warnings_about_comments_stay(project: Project, capsys: Captured) -> None:
    root = project({"a.py": "item()\nx = 1  # gpusync: allow[GS201]\n"})
    assert main(ADD) == 1
    assert (root / "a.py").read_text() == ("item()  # gpusync: allow[GS201] known\nx = 1  # gpusync: allow[GS201]\n")
    assert "Added comments that allow 1 warning in 1 file.\n" in capsys.readouterr().err


def test_only_what_is_selected_is_allowed(project: Project) -> None:
    root = project({"a.py": "item()\ntolist()\n"})
    assert main([*ADD, "--select", "GS202"]) == 0
    assert (root / "a.py").read_text() == "item()\ntolist()  # gpusync: allow[GS202] known\n"


def test_what_is_in_the_baseline_needs_no_comment(project: Project) -> None:
    root = project({"a.py": "item()\n"})
    main(["--write-baseline"])
    assert main([*ADD, "--baseline", "gpusync-lint-baseline.json"]) == 0
    assert (root / "a.py").read_text() == "item()\n"


def test_fixes_come_first(project: Project, capsys: Captured) -> None:
    root = project({"a.py": "copy_safe()\n", "b.py": "item()\n"})
    assert main(["--fix", *ADD]) == 0
    assert (root / "a.py").read_text() == "fixed()\n"
    assert (root / "b.py").read_text() == "item()  # gpusync: allow[GS201] known\n"
    assert "Fixed 1 warning in 1 file.\n" in capsys.readouterr().out


def test_a_diff_shows_the_comments_and_changes_nothing(project: Project, capsys: Captured) -> None:
    root = project({"a.py": "copy_safe()\n"})
    assert main(["--diff", *ADD]) == 1
    out, err = capsys.readouterr()
    assert "+copy_safe()  # gpusync: allow[GS501] known\n" in out
    assert err == "Would allow 1 warning.\n"
    assert (root / "a.py").read_text() == "copy_safe()\n"


def test_a_file_whose_comments_cannot_be_read_stays_as_it_is(project: Project) -> None:
    root = project({"a.py": "item()  # gpusync: allow[GS201] why\n'''", "b.py": "item()\n'''"})
    assert main(ADD) == 2
    assert (root / "a.py").read_text() == "item()  # gpusync: allow[GS201] why\n'''"
    assert (root / "b.py").read_text() == "item()\n'''"


def test_a_write_protected_file_stays_as_it_is(project: Project, capsys: Captured) -> None:
    root = project({"a.py": "item()\n"})
    (root / "a.py").chmod(0o444)
    assert main(ADD) == 2
    assert "a.py: error: not written: it is write-protected\n" in capsys.readouterr().err
    assert (root / "a.py").read_text() == "item()\n"


def test_it_excludes_writing_a_baseline(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()\n"})
    assert main([*ADD, "--write-baseline"]) == 2
    assert "--add-ignores and --write-baseline both accept all warnings; choose one" in capsys.readouterr().err


def test_standard_input_comes_out_with_the_comments(
    project: Project, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stdin:
        buffer = io.BytesIO(b"item()\r\n")

    project({})
    monkeypatch.setattr(sys, "stdin", Stdin)
    assert main(["-", *ADD]) == 0
    assert capfdbinary.readouterr().out == b"item()  # gpusync: allow[GS201] known\r\n"


def test_json_shows_what_has_been_allowed(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()\n"})
    main([*ADD, "--show-suppressed", "--output-format", "json"])
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["suppressed"] == "known"
