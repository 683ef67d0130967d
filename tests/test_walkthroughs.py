"""README.md and the pages of docs/, followed to the letter: their commands print what the pages show.

Comments, which readers do not see, mark what is followed. Each stands on the line before its block, or
holds the text itself:

`<!-- file: train.py -->`
    The next block, or the rest of the comment, is written to this file.
`<!-- apply -->`
    The next block is a change, for `git apply`.
`<!-- run -->`
    The next block has commands. `<!-- run: COMMAND -->` runs a command that the page does not show.
`<!-- output -->`
    The next block is what the commands since the last output have printed. A line `...` stands for any lines, and `...`
    within a line for any text.
`<!-- not checked: REASON -->`
    The next block is output that cannot be checked here.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_gpusync.machine import devices

pytest.importorskip("torch")

ROOT = Path(__file__).parents[1]
COMMANDS = {"gpusync": ("-m", "pytest_gpusync"), "pytest": ("-m", "pytest", "-p", "no:cacheprovider", "--color=no")}
WRITTEN = [
    ROOT / "README.md",
    ROOT / "skills" / "gpusync" / "SKILL.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in WRITTEN}
COLUMNS = "90"
"""The width of the terminal that the pages show."""

_MARK = re.compile(
    r"^<!-- (?P<kind>file|run|apply|output|not checked)(?:: (?P<argument>[^\n]*?))?"
    r"(?: -->\n```\w+\n(?P<block>.*?)^```$| -->$|\n(?P<hidden>.*?)-->$)",
    re.MULTILINE | re.DOTALL,
)


class Mark(NamedTuple):
    """A comment and its block."""

    kind: str
    argument: str
    block: str


def marks(text):
    return [
        Mark(found["kind"], found["argument"] or "", found["block"] or found["hidden"] or "")
        for found in _MARK.finditer(text)
    ]


def differences(shown, printed):
    """Return the parts of a shown output, between its lines `...`, that were not printed in this order."""
    rest, missing = without_columns(printed), []
    for part in re.split(r"^\.\.\.\n", without_columns(shown), flags=re.MULTILINE):
        pattern = re.escape(part).replace(re.escape("..."), "[^\n]*")
        if (found := re.search(f"^{pattern}", rest, re.MULTILINE)) is None:
            missing.append(part)
        else:
            rest = rest[found.end() :]
    return missing


def without_columns(text):
    """Python tells where in an f-string something stands from 3.12 on only."""
    return re.sub(r"^(\S+\.py:\d+):\d+:", r"\1:", text, flags=re.MULTILINE)


@pytest.fixture
def do(tmp_path):
    if devices.detect().kind == "cuda":
        pytest.skip("the simulated device needs a machine without a GPU, or CUDA_VISIBLE_DEVICES= (empty)")
    is_installed = any(point.value == "pytest_gpusync.plugin" for point in entry_points(group="pytest11"))
    plugin = [] if is_installed else ["-p", "pytest_gpusync.plugin"]
    paths = [str(ROOT), str(ROOT / "lint"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": COLUMNS}
    # What a page shows is what a person sees, not a CI server.
    for name in ("CI", "GITHUB_ACTIONS"):
        environment.pop(name, None)

    def do(command):
        name, *arguments = shlex.split(command, comments=True)
        if name == "cp":
            shutil.copy(ROOT / arguments[0], tmp_path / arguments[1])
            return ""
        done = subprocess.run(
            [sys.executable, *COMMANDS[name], *(plugin if name == "pytest" else []), *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.stdout + done.stderr

    return do


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git, to apply the changes")
@pytest.mark.parametrize(
    "page", [page for page, text in TEXTS.items() if any(mark.kind == "run" for mark in marks(text))]
)
def test_the_commands_of_a_page_print_what_it_shows(page, do, tmp_path):
    printed, shown = "", False
    for kind, argument, block in marks(TEXTS[page]):
        if kind == "file":
            (tmp_path / argument).write_text(block, encoding="utf-8")
        elif kind == "apply":
            subprocess.run(["git", "apply", "--unidiff-zero", "-"], cwd=tmp_path, input=block, text=True, check=True)
        elif kind == "run":
            printed, shown = ("" if shown else printed), False
            printed += "".join(do(command) for command in (argument or block).strip().splitlines())
        elif kind == "output":
            shown = True
            assert differences(block, printed) == [], printed


@pytest.mark.parametrize("page", TEXTS)
def test_each_output_is_checked_or_says_why_not(page):
    checked = {mark.block for mark in marks(TEXTS[page]) if mark.kind in ("output", "not checked")}
    shown = re.findall(r"^```text\n(.*?)^```$", TEXTS[page], re.MULTILINE | re.DOTALL)
    assert [block for block in shown if block not in checked] == []


@pytest.mark.parametrize(
    ("shown", "kept"),
    [
        ("one\n...\nthree\n", True),
        ("o...e\ntwo\n", True),
        ("three\n...\none\n", False),
        ("one\nthree\n", False),
        ("one\ntwo, or so\n", False),
    ],
)
def test_an_output_is_compared_line_by_line(shown, kept):
    assert (differences(shown, "one\ntwo\nthree\n") == []) is kept
