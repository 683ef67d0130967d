from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from gpusync_lint.cli import main
from gpusync_lint.files.notebook import Notebook
from gpusync_lint.model.spans import Edit, Span

Project = Callable[..., Path]
Captured = pytest.CaptureFixture[str]


def _document(*cells: str | dict[str, Any], indent: int | None = 1, ascii_: bool = False, **more: Any) -> str:
    """A notebook as Jupyter writes one; a string is a code cell."""
    written = []
    for cell in cells:
        if isinstance(cell, str):
            source = cell.splitlines(keepends=True)
            cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source}
        written.append(cell)
    content = {"cells": written, "metadata": {}, "nbformat": 4, "nbformat_minor": 5, **more}
    return json.dumps(content, indent=indent, ensure_ascii=ascii_) + "\n"


MARKDOWN = {"cell_type": "markdown", "metadata": {}, "source": ["# item()\n", "text"]}


LOOP = """\
for step in range(9):
    loss = model(torch.randn(8, 8, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    total += loss.item()
"""


def _findings(capsys: Captured, *arguments: str) -> list[dict[str, Any]]:
    main([*arguments, "--output-format", "json"])
    findings: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["findings"]
    return findings


# ---------------------------------------------------------------- what is found, and where


def test_a_finding_is_placed_by_cell_and_line_within_it(project: Project, capsys: Captured) -> None:
    project({"a.ipynb": _document("x = 1\n\ny = 2", MARKDOWN, "z = 3\nw = item()\n")})
    assert main([]) == 1
    assert capsys.readouterr().out == (
        "a.ipynb:cell 3:2:5: GS201 [item-read] `item()` waits for the GPU\n"
        "    w = item()\n"
        "        ^^^^^^\n"
        "    remedy: keep it on the device\n"
        "\n"
        "Found 1 warning\n"
    )


def test_json_says_the_cell_of_findings_and_edits(project: Project, capsys: Captured) -> None:
    project({"a.ipynb": _document("x = 1", MARKDOWN, "\ncopy_safe()")})
    (finding,) = _findings(capsys)
    assert [finding[key] for key in ("cell", "line", "column", "end_line", "end_column")] == [3, 2, 1, 2, 12]
    (edit,) = finding["fix"]["edits"]
    assert [edit[key] for key in ("cell", "line", "column", "end_line", "end_column")] == [3, 2, 1, 2, 10]


@pytest.mark.parametrize(
    "document",
    [
        _document("'ü😀'; item()"),
        _document("'ü😀'; item()", ascii_=True),
        _document("x = 1\n'\\n\\\\'; item()\ny = 2", indent=4),
        _document("x = 1\n'ü'; item()", indent=None),
        _document({"cell_type": "code", "source": "x = 1\n'ü'; item()\ny"}),
        _document({"cell_type": "code", "source": ["x = 1", "\nit", "em()"]}),
        _document("x = 1; item()").replace("x = 1", "\\u0078 = 1"),
        _document("x = 1\n'ü'; item()").replace("\n", "\r\n"),
    ],
    ids=["raw", "escaped", "indented", "one line", "one string", "odd pieces", "odd spelling", "carriage returns"],
)
@pytest.mark.parametrize("output", ["sarif", "github"])
def test_other_formats_name_the_place_in_the_file(
    project: Project, capsys: Captured, document: str, output: str
) -> None:
    project({"a.ipynb": document})
    main(["--output-format", output])
    out = capsys.readouterr().out
    lines = document.split("\n")
    if output == "sarif":
        region = json.loads(out)["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]
        first = lines[region["startLine"] - 1].encode("utf-16-le")[2 * region["startColumn"] - 2 :].decode("utf-16-le")
        last = lines[region["endLine"] - 1].encode("utf-16-le")[: 2 * region["endColumn"] - 2].decode("utf-16-le")
    else:
        values = dict(pair.split("=") for pair in out.removeprefix("::warning ").split("::")[0].split(","))
        if "col" not in values:
            assert int(values["line"]) < int(values["endLine"])
            return
        first = lines[int(values["line"]) - 1][int(values["col"]) - 1 :]
        last = lines[int(values["endLine"]) - 1][: int(values["endColumn"])]
    assert first.startswith("it")
    assert last.endswith("em()")


def test_other_formats_say_the_cell_too(project: Project, capsys: Captured) -> None:
    project({"a.ipynb": _document("x = 1", "\nitem()")})
    main(["--output-format", "github"])
    assert "title=GS201 item-read (cell 2%2C line 2)::" in capsys.readouterr().out
    main(["--output-format", "sarif"])
    (result,) = json.loads(capsys.readouterr().out)["runs"][0]["results"]
    assert result["message"]["text"].startswith("`item()` waits for the GPU (cell 2, line 2); remedy: ")
    main(["--output-format", "junit"])
    case = ElementTree.fromstring(capsys.readouterr().out).find(".//testcase")
    assert case is not None
    assert case.get("name") == "GS201 item-read at cell 2:2:1"


def test_other_formats_name_the_line_of_the_file_that_an_error_is_about(project: Project, capsys: Captured) -> None:
    document = _document("x", "y = 1\ndef f(:\n")
    line = next(number for number, one in enumerate(document.split("\n"), 1) if "def f(:" in one)
    project({"a.ipynb": document})
    main(["--output-format", "github"])
    message = "cell 2, line 2: not valid Python: invalid syntax"
    assert capsys.readouterr().out == f"::error file=a.ipynb,line={line},title=gpusync lint::{message}\n"
    main(["--output-format", "sarif"])
    (notification,) = json.loads(capsys.readouterr().out)["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert notification["locations"][0]["physicalLocation"]["region"] == {"startLine": line}
    main(["--output-format", "gitlab"])
    assert json.loads(capsys.readouterr().out)[0]["location"]["lines"] == {"begin": line}
    main(["--output-format", "junit"])
    error = ElementTree.fromstring(capsys.readouterr().out).find(".//error")
    assert error is not None
    assert error.text == f"a.ipynb:{line}: {message}"


@pytest.mark.parametrize("ascii_", [False, True])
def test_a_sarif_fix_can_be_applied_to_the_file(project: Project, capsys: Captured, ascii_: bool) -> None:
    document = _document("x = 1\n'ü'; copy_safe()\ny", ascii_=ascii_)
    project({"a.ipynb": document})
    main(["--output-format", "sarif"])
    (fix,) = json.loads(capsys.readouterr().out)["runs"][0]["results"][0]["fixes"]
    (replacement,) = fix["artifactChanges"][0]["replacements"]
    region = replacement["deletedRegion"]
    lines = document.split("\n")
    line = lines[region["startLine"] - 1]
    new = replacement["insertedContent"]["text"]
    lines[region["startLine"] - 1] = line[: region["startColumn"] - 1] + new + line[region["endColumn"] - 1 :]
    (cell,) = json.loads("\n".join(lines))["cells"]
    assert "".join(cell["source"]) == "x = 1\n'ü'; fixed()\ny"


def test_an_edit_over_lines_is_one_of_the_file() -> None:
    notebook = Notebook(_document("a\nb\nc"))
    edit = notebook.edit_in_file(Edit(Span(1, 1, 2, 2), 'x\n"y"\n'))
    lines = notebook.document.split("\n")
    first, last = edit.span.line - 1, edit.span.end_line - 1
    joined = lines[first][: edit.span.column - 1] + edit.replacement + lines[last][edit.span.end_column - 1 :]
    document = "\n".join([*lines[:first], joined, *lines[last + 1 :]])
    assert "".join(json.loads(document)["cells"][0]["source"]) == 'x\n"y"\n\nc'


# ---------------------------------------------------------------- reading


def test_cells_have_one_scope(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real engine: the device of one cell is known in the next."""
    monkeypatch.chdir(tmp_path)
    cells = (
        "%matplotlib inline\nimport torch\nmodel = torch.nn.Linear(8, 1).to('cuda')",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\ntotal = 0.0",
        LOOP,
    )
    (tmp_path / "a.ipynb").write_text(_document(*cells))
    assert [(one["code"], one["cell"], one["line"]) for one in _findings(capsys)] == [("GS201", 3, 5)]


def test_a_cell_that_is_not_python_is_an_error_and_the_others_are_linted(project: Project, capsys: Captured) -> None:
    project({"a.ipynb": _document("item()", "x = 1\ndef f(:\n", "item()")})
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert err == "a.ipynb:cell 2:2: error: not valid Python: invalid syntax\n"
    assert "Found 2 warnings" in out


@pytest.mark.parametrize("source", ["f(", "'''", "x = \\", "if x:"])
def test_an_open_end_does_not_swallow_the_next_cell(project: Project, capsys: Captured, source: str) -> None:
    project({"a.ipynb": _document(source, "item()")})
    assert [(one["code"], one["cell"]) for one in _findings(capsys)] == [("GS201", 2)]


@pytest.mark.parametrize("cell", ["%%bash\nitem()", "!item()"])
def test_what_is_not_python_has_no_findings(project: Project, capsys: Captured, cell: str) -> None:
    project({"a.ipynb": _document(MARKDOWN, {"cell_type": "raw", "source": "item()"}, cell)})
    assert main([]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "a.ipynb:1: error: not a notebook: not valid JSON: Expecting property name enclosed in double quotes"),
        ("", "a.ipynb:1: error: not a notebook: not valid JSON: Expecting value"),
        ('{"cells": [\n<<<<<<< HEAD\n', "a.ipynb:2: error: not a notebook: not valid JSON: Expecting value"),
        ("[]", "a.ipynb: error: not a notebook: it has no nbformat"),
        ('{"nbformat": 4}', "a.ipynb: error: not a notebook: it has no list of cells"),
        ('{"nbformat": 3, "worksheets": []}', "a.ipynb: error: its format 3 is too old; `jupyter nbconvert --to "),
        ('{"nbformat": "4", "cells": []}', "a.ipynb: error: its format '4' is too old"),
        (_document({"cell_type": "code"}), "a.ipynb: error: not a notebook: the source of cell 1 is not text"),
        (_document({"cell_type": "code", "source": [1]}), "a.ipynb: error: not a notebook: the source of cell 1 is "),
        ("[" * 100_000, "a.ipynb: error: not a notebook: nested too deeply"),
        (b"\xff", "a.ipynb:1: error: cannot be decoded: byte 0xff is not utf-8"),
    ],
)
def test_a_file_that_is_no_notebook_is_one_line(
    project: Project, capsys: Captured, content: str | bytes, message: str
) -> None:
    project({"a.ipynb": content, "b.py": "item()\n"})
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert err.startswith(message)
    assert err.count("\n") == 1
    assert "b.py:1:1: GS201" in out


@pytest.mark.parametrize(
    "metadata", [{"language_info": {"name": "R"}}, {"kernelspec": {"name": "ir", "language": "R"}}]
)
def test_a_notebook_in_another_language_is_passed_over(
    project: Project, capsys: Captured, metadata: dict[str, Any]
) -> None:
    project({"a.ipynb": _document("item() <- 3", metadata=metadata)})
    assert main([]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("metadata", [{"language_info": {"name": "python"}}, {"kernelspec": {"name": "x"}}, {}])
def test_a_notebook_in_python_or_in_no_language_is_read(
    project: Project, capsys: Captured, metadata: dict[str, Any]
) -> None:
    project({"a.ipynb": _document("item()", metadata=metadata)})
    assert main([]) == 1


def test_a_notebook_without_code_is_clean(project: Project, capsys: Captured) -> None:
    project({"a.ipynb": _document(MARKDOWN), "b.ipynb": _document(), "c.ipynb": _document("")})
    assert main([]) == 0
    assert capsys.readouterr().out == "No warnings in 3 files\n"


def test_notebooks_below_hidden_folders_are_not_read(project: Project, capsys: Captured) -> None:
    project({".ipynb_checkpoints/a.ipynb": _document("item()"), "b.py": ""})
    assert main([]) == 0


def test_a_cell_that_looks_like_what_stands_between_cells_is_a_cell(project: Project) -> None:
    root = project({"a.ipynb": _document("x", "\n# ---- cell 3\ncopy_safe()", "y")})
    assert main(["--fix"]) == 0
    cells = json.loads((root / "a.ipynb").read_text())["cells"]
    assert ["".join(cell["source"]) for cell in cells] == ["x", "\n# ---- cell 3\nfixed()", "y"]


# ---------------------------------------------------------------- writing


@pytest.mark.parametrize(
    "document",
    [
        _document("x = 'ü'\ncopy_safe()\ny = 1\n", MARKDOWN, "z = 1"),
        _document("x = 'ü'\ncopy_safe()", ascii_=True),
        _document("x = 'ü'\ncopy_safe()", indent=None),
        _document("x\ncopy_safe()", indent=4),
        _document("copy_safe()", indent=2).rstrip("\n"),
        _document("x\ncopy_safe()").replace("\n", "\r\n"),
        "\ufeff" + _document("copy_safe()"),
        _document({"cell_type": "code", "outputs": [{"text": "\x1b[0m ü"}], "source": "x = 'ü'\ncopy_safe()"}),
        _document({"source": ["copy_safe()\n", "x"], "cell_type": "code", "odd": 1.50, "id": "ü"}, zzz=1e5, aaa=[]),
        _document("x\ncopy_safe()").replace("x\\n", "\\u0078\\n").replace("[]", "[  ]"),
        _document("%%time\ncopy_safe()\n!ls\nx = %who\n"),
    ],
    ids=[
        "as Jupyter writes it",
        "escaped",
        "one line",
        "four blanks",
        "no newline at the end",
        "carriage returns",
        "byte-order mark",
        "one string",
        "odd keys",
        "odd spelling",
        "magics",
    ],
)
def test_a_fix_changes_nothing_but_its_text(project: Project, document: str) -> None:
    root = project({"a.ipynb": document})
    assert main(["--fix"]) == 0
    assert (root / "a.ipynb").read_bytes().decode() == document.replace("copy_safe", "fixed")


@pytest.mark.parametrize(("ascii_", "written"), [(False, "é"), (True, "\\u00e9")])
def test_what_is_added_is_escaped_as_the_rest_is(project: Project, ascii_: bool, written: str) -> None:
    root = project({"a.ipynb": _document("'ü'; item()", ascii_=ascii_)})
    assert main(["--add-ignores", "é"]) == 0
    assert f"# gpusync: allow[GS201] {written}" in (root / "a.ipynb").read_text(encoding="utf-8")


def test_escapes_of_the_terminal_do_not_count_as_escaped_text(project: Project) -> None:
    output = {"cell_type": "code", "outputs": [{"text": "\x1b[0m"}], "source": ["item()"]}
    root = project({"a.ipynb": _document(output)})
    main(["--add-ignores", "é"])
    assert "allow[GS201] é" in (root / "a.ipynb").read_text(encoding="utf-8")


def test_new_lines_are_laid_out_as_the_others() -> None:
    for document in (_document("a\nb"), _document("a", indent=4), _document("a\nb", indent=None)):
        indent = json.dumps(json.loads(document)) + "\n" == document
        source = Notebook(document).source
        changed = Notebook(document).with_source(source.replace("a", "a\n1\n2", 1))
        content = json.loads(changed.document)
        again = json.dumps(content, indent=None if indent else 4 if "\n    " in document[:20] else 1) + "\n"
        assert changed.document == again


def test_allow_comments_are_added_and_obeyed(project: Project) -> None:
    root = project({"a.ipynb": _document("x = f(\n    item(),\n)", "tolist()\n")})
    assert main(["--add-ignores", "known"]) == 0
    cells = json.loads((root / "a.ipynb").read_text())["cells"]
    assert ["".join(cell["source"]) for cell in cells] == [
        "x = f(\n    item(),  # gpusync: allow[GS201] known\n)",
        "tolist()  # gpusync: allow[GS202] known\n",
    ]
    assert main([]) == 0


def test_a_comment_at_the_end_of_a_cell_does_not_reach_the_next_one(project: Project, capsys: Captured) -> None:
    project({"a.ipynb": _document("# gpusync: allow[GS201] why", "item()")})
    assert [one["code"] for one in _findings(capsys)] == ["GS903", "GS201"]


@pytest.mark.parametrize("cells", [("# gpusync: allow[GS201] why",), ("x\n# gpusync: allow[GS201] why",)])
def test_a_comment_that_is_all_of_the_end_of_a_cell_can_be_removed(project: Project, cells: tuple[str, ...]) -> None:
    for place in (0, 1, 2):
        sources = ["y"] * place + list(cells) + ["y"] * (2 - place)
        root = project({"a.ipynb": _document(*sources)})
        assert main(["--fix", "--unsafe-fixes"]) == 0
        written = ["".join(cell["source"]) for cell in json.loads((root / "a.ipynb").read_text())["cells"]]
        assert [one.strip() for one in written] == [one.partition("#")[0].strip() for one in sources]


def test_a_fix_on_a_line_that_is_not_python_is_not_offered() -> None:
    notebook = Notebook(_document("%%time\nx\n!ls", "y"))
    assert [line for line in range(1, 8) if not notebook.allows([Span(line, 1, line, 1)])] == [1, 3, 5]


def test_a_change_that_loses_the_end_of_a_cell_is_refused() -> None:
    notebook = Notebook(_document("a", "b"))
    with pytest.raises(ValueError, match="a change extends beyond the end of a cell"):
        notebook.with_source("a\n\nb\n\n")


def test_a_diff_is_one_of_the_file(project: Project, capsys: Captured) -> None:
    document = _document("x\ncopy_safe()\n")
    root = project({"a.ipynb": document})
    assert main(["--diff"]) == 1
    out = capsys.readouterr().out
    assert '-    "copy_safe()\\n"\n+    "fixed()\\n"\n' in out
    assert (root / "a.ipynb").read_text() == document


def test_a_notebook_that_changed_meanwhile_is_left_alone(
    project: Project, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = project({"a.ipynb": _document("copy_safe()")})
    real = sys.modules["gpusync_lint.run.engine"].analyze

    def analyze(*arguments: Any) -> Any:
        (root / "a.ipynb").write_text(_document("y", "copy_safe()"))
        return real(*arguments)

    monkeypatch.setattr(sys.modules["gpusync_lint.run.engine"], "analyze", analyze)
    assert main(["--fix"]) == 2
    assert "a.ipynb: error: not written: it has changed since it was read; run again" in capsys.readouterr().err


class _Stdin:
    def __init__(self, text: str) -> None:
        self.buffer = io.BytesIO(text.encode())


def test_standard_input_can_be_a_notebook(
    project: Project, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    project({})
    monkeypatch.setattr(sys, "stdin", _Stdin(_document("copy_safe()")))
    assert main(["-", "--stdin-filename", "a.ipynb", "--fix"]) == 0
    assert capfdbinary.readouterr().out.decode() == _document("fixed()")


def test_a_notebook_can_have_a_baseline(project: Project, capsys: Captured) -> None:
    root = project({"a.ipynb": _document("item()")})
    main(["--write-baseline"])
    use = ["--baseline", "gpusync-lint-baseline.json"]
    (root / "a.ipynb").write_text(_document(MARKDOWN, "x = 1", "item()"))
    assert main(use) == 0
    (root / "a.ipynb").write_text(_document("def f(:", "x"))
    capsys.readouterr()
    assert _findings(capsys, *use) == []


def test_an_error_of_the_engine_is_placed_by_cell(project: Project, capsys: Captured) -> None:
    project({"a.ipynb": _document("x", "syntax_error()")})
    assert main([]) == 2
    assert capsys.readouterr().err == "a.ipynb:cell 1:3: error: invalid syntax\n"
