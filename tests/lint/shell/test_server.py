"""`gpusync server`, driven by a real client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from editor import Editor, edited, session
from gpusync_lint.cli import main as lint
from gpusync_lint.server import main
from lsprotocol import types
from pygls.exceptions import JsonRpcRequestCancelled

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = """import torch
from helpers import log

def train(model, loader, opt):
    for x in loader:
        loss = model(x.cuda()).sum()
        loss.backward()
        opt.step()
        print(loss.item())
        log(loss)
"""
HELPERS = """def log(value):
    print("😀", value.item())
"""
ITEM = TRAIN.index("item", TRAIN.index("print")) - TRAIN.rindex("\n", 0, TRAIN.index("item", TRAIN.index("print"))) - 1
DOUBLE = TRAIN.replace("        opt.step()\n", "        opt.step()\n        total = float(loss)\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('[tool.gpusync]\nignore = ["GS501"]\n')
    (folder / "train.py").write_text(TRAIN)
    (folder / "helpers.py").write_text(HELPERS)
    return folder


def command_line(root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The findings of the command line: path, code, lines, and columns from 0 in characters, message and level."""
    monkeypatch.chdir(root)
    lint([".", "--no-cache", "--output-format", "json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    return [
        (one["path"], one["code"], one["line"], one["end_line"], f"{one['message']}; remedy: {one['remedy']}")
        for one in found
    ]


def shown(editor: Editor, root: Path, *uris: str) -> list[Any]:
    found = []
    for uri in uris:
        name = uri.removeprefix(f"{root.as_uri()}/")
        for one in editor.diagnostics(uri) or ():
            found.append((name, one.code, one.range.start.line + 1, one.range.end.line + 1, one.message))
    return found


def test_diagnostics_equal_those_of_the_command_line(root, capsys, monkeypatch):
    """One session, since a start takes a second: open, edit, save, a bad file, and the end."""
    helpers = HELPERS.replace("value.item()", "value.tolist()")

    async def script(editor: Editor) -> None:
        await editor.start(root)
        train, log = editor.open(root / "train.py"), editor.open(root / "helpers.py")
        want = command_line(root, capsys, monkeypatch)
        assert {name for name, *_ in want} == {"train.py", "helpers.py"}
        await editor.until(lambda: sorted(shown(editor, root, train, log)) == sorted(want))
        column = {one.range.start.character for one in editor.diagnostics(log)}
        assert column == {HELPERS.split("\n")[1].index(".item") + 2}  # UTF-16: the emoji is two units

        # Unsaved: the text in memory is analyzed, also where another file follows from it.
        editor.change(log, helpers)
        await editor.until(lambda: "tolist" in str(editor.diagnostics(log)))
        editor.change(train, DOUBLE)
        await editor.until(lambda: ("GS205", 9) in (editor.places(train) or ()))
        assert "float(loss)" not in (root / "train.py").read_text()
        (root / "helpers.py").write_text(helpers)
        (root / "train.py").write_text(DOUBLE)
        want = command_line(root, capsys, monkeypatch)
        editor.save(log)
        await editor.until(lambda: sorted(shown(editor, root, train, log)) == sorted(want))

        # A file that is not Python is one diagnostic, and the findings of the others stay.
        editor.change(log, "def log(value:\n")
        await editor.until(lambda: [one.severity for one in editor.diagnostics(log) or ()] == [1])
        assert ("GS201", 10) in (editor.places(train) or ())
        assert await editor.stop() == 0

    session(script)


def test_settings_are_those_of_each_root_and_mistakes_in_them_are_one_line(root, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "pyproject.toml").write_text('[tool.gpusync]\nignore = ["GS201", "GS501"]\n')
    (other / "train.py").write_text(TRAIN)

    async def script(editor: Editor) -> None:
        await editor.start(root, other)
        one, two = editor.open(root / "train.py"), editor.open(other / "train.py")
        await editor.until(lambda: editor.places(one) == [("GS201", 9)] and editor.places(two) == [])
        (other / "pyproject.toml").write_text("[tool.gpusync]\nignored = []\n")
        editor.save(two)
        await editor.until(lambda: editor.messages)
        (message,) = editor.messages
        assert "pyproject.toml: tool.gpusync.ignored: unknown key" in message
        assert "\n" not in message
        await editor.until(lambda: editor.places(two) == [])
        (other / "pyproject.toml").write_text('[tool.gpusync]\nignore = ["GS501"]\n')
        editor.change(two, TRAIN + "\n")
        await editor.until(lambda: editor.places(two) == [("GS201", 9)])

    session(script)


def test_files_that_are_not_linted_have_no_diagnostics_and_new_ones_have(root):
    (root / "pyproject.toml").write_text('[tool.gpusync]\nignore = ["GS501"]\nexclude = ["old"]\n')
    (root / "old").mkdir()
    (root / "old" / "train.py").write_text(TRAIN)

    async def script(editor: Editor) -> None:
        await editor.start(root)
        old = editor.open(root / "old" / "train.py")
        new = editor.open(root / "new.py", TRAIN)
        alone = editor.open(root.parent / "alone.py", TRAIN)
        (root.parent / "alone.py").write_text(TRAIN)
        await editor.until(lambda: editor.places(new) == [("GS201", 9)] and editor.places(old) == [])
        editor.save(alone)
        await editor.until(lambda: editor.places(alone) == [("GS501", 6), ("GS201", 9)])
        editor.change(old, TRAIN + "\n")
        await editor.until(lambda: editor.places(old) is not None)
        assert editor.places(old) == []

    session(script)


def test_hover_and_actions(root):
    run = {
        "schema": "gpusync.run/1",
        "environment": {
            "torch": "2.13.0", "python": "3.11", "device": "cuda", "gpu": "NVIDIA H100", "driver": "1",
            "recorder": "cupti", "coverage": "driver", "note": None,
        },
        "regions": [],
        "lines": {"train.py": [[1, 20]]},
    }  # fmt: skip
    (root / "run.json").write_text(json.dumps(run))
    copied = TRAIN.replace("model(x.cuda())", 'model(torch.zeros(3).to("cuda"))')

    async def script(editor: Editor) -> None:
        started = await editor.start(root, options=("--observed", "run.json"))
        kinds = started.capabilities.code_action_provider.code_action_kinds
        assert {"quickfix.gpusync.safe", "quickfix.gpusync.unsafe"} <= set(kinds)
        train = editor.open(root / "train.py")
        await editor.until(lambda: editor.places(train) == [("GS201", 9)])
        text = await editor.hover(train, 9, ITEM)
        assert "GS201 item" in text
        assert "the line ran and did not wait (run.json, NVIDIA H100)" in text
        assert await editor.hover(train, 1, 0) == ""

        (allow,) = [one for one in await editor.actions(train, 9, ITEM) if one.kind == "quickfix.gpusync.allow"]
        allowed = edited(TRAIN, allow, train)
        assert "print(loss.item())  # gpusync: allow[GS201]" in allowed
        editor.change(train, allowed)
        await editor.until(lambda: editor.places(train) == [("GS201", 9), ("GS901", 9)])
        editor.change(train, allowed.replace("allow[GS201]", "allow[GS201] shown to people"))
        await editor.until(lambda: editor.places(train) == [])

        editor.change(train, copied)
        await editor.until(lambda: ("GS503", 6) in (editor.places(train) or ()))
        at = copied.split("\n")[5].index(".to(") + 2
        found = await editor.actions(train, 6, at, ["quickfix"])
        fixes = [one for one in found if one.kind in ("quickfix.gpusync.safe", "quickfix.gpusync.unsafe")]
        assert [one.kind for one in fixes] == ["quickfix.gpusync.safe"]
        fixed = edited(copied, fixes[0], train)
        assert 'torch.zeros(3, device="cuda")' in fixed
        assert await editor.actions(train, 6, at, ["quickfix.gpusync.unsafe"]) == []
        (everything,) = await editor.actions(train, 1, 0, ["source.fixAll"])
        assert edited(copied, everything, train) == fixed

    session(script)


def test_lenses_say_what_waits_in_every_step_and_what_it_costs(root):
    run = {
        "schema": "gpusync.run/1",
        "environment": {
            "torch": "2.13.0", "python": "3.11", "device": "cuda", "gpu": "NVIDIA H100", "driver": "1",
            "recorder": "cupti", "coverage": "driver", "note": None,
        },
        "regions": [
            {
                "name": "train.py", "outcome": "measured", "problem": None, "steps": 4, "warmup": 1,
                "step_source": "optimizer.step()", "device_used": True, "syncs": 4,
                "syncs_per_step": {"max": 1, "median": 1}, "memory": None, "timing": None, "verdicts": [],
                "sites": [
                    {
                        "path": "train.py", "line": 9, "function": "train", "kind": "copy", "direction": "D2H",
                        "bytes": 4, "syncs": 4, "steps": 4, "per_step_max": 1,
                        "blocked_ms": 3.25, "code": "GS201", "via": None, "phase": None, "thread": "main",
                        "allowed": None, "background": False,
                    }
                ],
            }
        ],
    }  # fmt: skip
    (root / "run.json").write_text(json.dumps(run))

    async def script(editor: Editor) -> None:
        await editor.start(root, options=("--observed", "run.json"))
        train, log = editor.open(root / "train.py"), editor.open(root / "helpers.py")
        await editor.until(lambda: editor.places(log) == [("GS201", 2)] and editor.lens_refreshes)
        measured = "measured: 4 syncs, the host waited 3.2 ms (run.json, NVIDIA H100)"
        assert await editor.lenses(train) == [(4, f"every step: 1 wait; {measured}")]
        assert await editor.lenses(log) == [(1, "every step: 1 wait")]
        # The request waits for the analysis of the text that it is about.
        below = TRAIN + "        total = float(loss)\n"
        editor.change(train, below)
        assert await editor.lenses(train) == [(4, f"every step: 2 waits; {measured}")]
        # In a text that is not Python, the lenses stay, and move with the lines.
        editor.change(train, "import (\n" + below)
        assert await editor.lenses(train) == [(5, f"every step: 2 waits; {measured}")]
        assert await editor.stop() == 0

    session(script)


def test_only_results_for_the_current_text_are_shown_and_requests_can_be_cancelled(root):
    async def script(editor: Editor) -> None:
        await editor.start(root)
        train = editor.open(root / "train.py")
        seen: list[int | None] = []
        editor.on_published = lambda params: seen.append(params.version)
        for number in range(20):
            editor.change(train, TRAIN + "#\n" * number)
        editor.change(train, DOUBLE)
        last = 22
        request = asyncio.ensure_future(editor.lenses(train))
        await asyncio.sleep(0)
        editor.client.protocol.notify(
            "$/cancelRequest", types.CancelParams(id=next(iter(editor.client.protocol._request_futures)))
        )
        with pytest.raises(JsonRpcRequestCancelled):
            await request
        await editor.until(lambda: editor.places(train) == [("GS205", 9), ("GS201", 10)])
        assert seen == sorted(seen)
        assert seen[-1] == last
        assert await editor.hover(train, 10, ITEM)
        assert await editor.stop() == 0

    session(script)


def test_a_long_analysis_is_shown_as_progress(root):
    parts = [
        f"def part{number}(x):\n    for i in range(3):\n        x = x + x.sum() * i\n    return x\n"
        for number in range(6000)
    ]
    (root / "large.py").write_text("import torch\n\n" + "\n".join(parts))

    async def script(editor: Editor) -> None:
        await editor.start(root)
        editor.open(root / "train.py")
        await editor.until(lambda: editor.running)
        assert list(editor.running.values()) == ["analyzing project"]
        await editor.until(lambda: editor.finished)
        assert not editor.running

    session(script)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL") or not os.path.isdir("/proc"), reason="finds processes in /proc")
def test_an_analysis_that_dies_is_logged_and_started_again(root):
    def children(pid: int) -> list[int]:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            found = [int(word) for word in file.read().split()]
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(word) for word in file.read().split()]
        return sorted(set(found))

    async def script(editor: Editor) -> None:
        await editor.start(root)
        train = editor.open(root / "train.py")
        await editor.until(lambda: editor.places(train) == [("GS201", 9)])
        process = editor.client._server
        assert process is not None
        for child in children(process.pid):
            os.kill(child, signal.SIGKILL)
        editor.change(train, "\n" + DOUBLE)
        await editor.until(lambda: editor.places(train) == [("GS205", 10), ("GS201", 11)] and editor.messages)
        assert "died (signal 9)" in editor.messages[0]
        assert await editor.stop() == 0

    session(script)


def test_an_editor_that_ends_without_shutting_down_is_exit_code_1():
    done = subprocess.run(
        [sys.executable, "-m", "pytest_gpusync", "server"], input=b"", capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stdout == b""


def test_a_missing_library_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr("gpusync_lint.server.find_spec", lambda name: None)
    assert main([]) == 2
    assert capsys.readouterr().err == (
        'gpusync server: error: it needs pygls and lsprotocol; pip install "pytest-gpusync[server]"\n'
    )


def test_wrong_usage_is_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--observe", "x"])
    assert ended.value.code == 2
    assert "did you mean --observed?" in capsys.readouterr().err
