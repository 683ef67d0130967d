"""Notebooks in `gpusync server`: diagnostics, fixes and lenses by cell, as the command line finds them in the file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from editor import Editor, edited, session
from gpusync_lint.cli import main as lint

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

LOOP = """for x in loader:
    loss = model(x.cuda()).sum()
    loss.backward()
    opt.step()
    log(loss)"""
MAGIC = """!nvidia-smi
for x in loader:
    y = torch.zeros(3).to('cuda')
    model(y).sum().backward()
    opt.step()"""
CELLS = [
    ("markdown", "# Training"),
    ("python", "%matplotlib inline\nimport torch\nmodel = torch.nn.Linear(2, 2).cuda()"),
    ("python", "def log(value):\n    print('😀', value.item())"),
    ("python", LOOP),
    ("python", MAGIC),
    ("python", "def broken(:\n    pass"),
]
Found = list[tuple[int, "object", int, int]]


def save(path: Path, cells: list[tuple[str, str]]) -> None:
    made = [
        {"cell_type": "markdown", "metadata": {}, "source": text}
        if language == "markdown"
        else {
            "cell_type": "code",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "source": text.splitlines(keepends=True),
        }
        for language, text in cells
    ]
    path.write_text(json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))


def command_line(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Found:
    """Cell, code, first line and last line of the findings and errors in the saved file."""
    monkeypatch.chdir(path.parent)
    lint([".", "--no-cache", "--output-format", "json"])
    found = json.loads(capsys.readouterr().out)
    own = [one for one in found["findings"] if one["path"] == path.name]
    errors = [one for one in found["errors"] if one["path"] == path.name]
    result: Found = [(one["cell"], one["code"], one["line"], one["end_line"]) for one in own]
    return sorted(result + [(one["cell"], None, one["line"], one["line"]) for one in errors], key=repr)


def shown(editor: Editor, cells: list[str]) -> Found:
    found: Found = []
    for number, uri in enumerate(cells, 1):
        for one in editor.diagnostics(uri) or ():
            found.append((number, one.code, one.range.start.line + 1, one.range.end.line + 1))
    return sorted(found, key=repr)


def test_diagnostics_by_cell_equal_those_of_the_saved_file(tmp_path, capsys, monkeypatch):
    path = tmp_path / "train.ipynb"
    cells = list(CELLS)
    save(path, cells)
    want = command_line(path, capsys, monkeypatch)
    assert {cell for cell, *_ in want} == {3, 4, 5, 6}

    async def script(editor: Editor) -> None:
        await editor.start(tmp_path)
        uris = editor.open_notebook(path, cells)
        await editor.until(lambda: shown(editor, uris) == want)
        assert not editor.published[uris[1]].diagnostics  # every cell is answered, also one without findings
        (wait,) = editor.diagnostics(uris[2]) or ()
        assert wait.range.start.character == CELLS[2][1].split("\n")[1].index(".item") + 2  # UTF-16

        # Unsaved: an edit in a cell, then a new cell above, which moves the others.
        cells[5] = ("python", "for x in loader:\n    model(x.cuda()).sum().tolist()\n    opt.step()")
        editor.change_cell(path, uris[5], cells[5][1])
        await editor.until(lambda: "tolist" in str(editor.diagnostics(uris[5])))
        # The way of VS Code: parts of a cell, here behind characters of two units each.
        at = CELLS[2][1].split("\n")[1].index("item") + 1
        editor.change_cell_part(path, uris[2], 1, at, at + len("item"), "tolist")
        await editor.until(lambda: "tolist" in str(editor.diagnostics(uris[2])))
        cells[2] = ("python", "def log(value):\n    print('😀', value.tolist())")
        new = editor.insert_cell(
            path, 1, "import torch\nfor x in loader:\n    print(x.cuda().sum().item())\n    opt.step()"
        )
        cells.insert(1, ("python", "import torch\nfor x in loader:\n    print(x.cuda().sum().item())\n    opt.step()"))
        uris.insert(1, new)
        other = tmp_path / "saved" / "train.ipynb"
        other.parent.mkdir()
        save(other, cells)
        changed = command_line(other, capsys, monkeypatch)
        assert {cell for cell, *_ in changed} >= {2, 4, 5, 7}
        other.unlink()
        await editor.until(lambda: shown(editor, uris) == changed)

        # A cell that is removed keeps no diagnostics, and a closed notebook neither.
        editor.remove_cell(path, 1, new)
        await editor.until(lambda: not editor.published[new].diagnostics)
        editor.close_notebook(path, [*uris[:1], *uris[2:]])
        await editor.until(lambda: not any(editor.published[uri].diagnostics for uri in uris))
        assert await editor.stop() == 0

    session(script)


def test_fixes_hovers_and_lenses_are_in_cells(tmp_path):
    path = tmp_path / "train.ipynb"
    cells = [cell for cell in CELLS if "broken" not in cell[1]]

    async def script(editor: Editor) -> None:
        await editor.start(tmp_path)
        uris = editor.open_notebook(path, cells)
        await editor.until(lambda: any(one.code == "GS503" for one in editor.diagnostics(uris[4]) or ()))
        text = cells[4][1]
        at = text.split("\n")[2].index(".to(") + 2
        (fix,) = await editor.actions(uris[4], 3, at, ["quickfix.gpusync.safe"])
        assert set(fix.edit.changes) == {uris[4]}
        assert "y = torch.zeros(3, device='cuda')\n" in edited(text, fix, uris[4])
        assert "GS503" in await editor.hover(uris[4], 3, at)
        assert await editor.hover(uris[3], 3, at) == ""
        assert await editor.lenses(uris[2]) == [(1, "every step: 1 wait")]
        assert await editor.lenses(uris[3]) == []

    session(script)
