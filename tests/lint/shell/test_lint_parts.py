"""Parts of a large component: what they read beside themselves, and what an edit of that makes them do again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from dated_tree import DatedTree
from gpusync_lint.cli import main
from gpusync_lint.project import lazy_modules, partition
from gpusync_lint.run import engine

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY = """import torch
{stars}
FACTOR = {factor}
{extra}

class Base(torch.nn.Module):
    scale = {factor}

    def __init__(self):
        super().__init__()
        self.kept = torch.zeros(3, device="cuda")

    def reduce(self, x):
        return {reduced}


def read(x):
    return {read}


def unasked(x):
    return {unasked}
"""
TRAIN = """import torch
from library.{module} import {names}

class Model(Base):
    def forward(self, x):
        if self.reduce(x){test}:
            return self.kept
        return read(x)

def run(loader, opt):
    model = Model().cuda()
    for x in loader:
        loss = model(x)
        loss.backward()
        opt.step()
        print(loss{read}, FACTOR)
"""


class Project(DatedTree):
    """A library and two folders that use it, cut into parts; edited at random."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        self.said = {
            "stars": "", "factor": "2", "extra": "", "reduced": "x.sum()", "read": "x.mean()", "unasked": "x",
        }  # fmt: skip
        self.write_library()
        self.write("library/more.py", "import torch\n\ndef beyond(x):\n    return x.sum().item()\n")
        self.write("library/through.py", "from library.base import *\n")
        for number, module in enumerate(("base", "through", "base")):
            self.train(number, module)

    def write_library(self) -> None:
        self.write("library/base.py", LIBRARY.format(**self.said))

    def train(self, number: int, module: str) -> None:
        test = self.random.choice(["", " > 3", " is None"])
        read = self.random.choice(["", ".item()", ".shape"])
        text = TRAIN.format(module=module, names="Base, FACTOR, read", test=test, read=read)
        self.write(f"user{number}/train.py", text)

    def edit(self) -> None:
        kind = self.random.choice([*self.said, "train"])
        if kind == "train":
            self.train(self.random.randrange(3), self.random.choice(["base", "through"]))
            return
        self.said[kind] = self.random.choice(
            {
                "stars": ["", "from library.more import *", "from library.more import beyond", "from math import inf"],
                "factor": ["2", "torch.ones(3, device='cuda')", "other = 3", "beyond(2)", "x[0] if (x := [1]) else 2"],
                "extra": [
                    "", "def read(x): return x.cpu()", "if FACTOR:\n    FACTOR = None", "reads = read",
                    "'''\ndef f():'''",
                ],
                "reduced": ["x.sum()", "x.sum().item()", "read(x)", "self.kept", "FACTOR", "unasked(x)"],
                "read": ["x.mean()", "x.cpu()", "unasked(x)", "3", "x * FACTOR", "x +"],
                "unasked": ["x", "x.item()", "x.numpy()", "x\n\n\n", "torch.set_default_device('cuda')"],
            }[kind]
        )  # fmt: skip
        self.write_library()


def lint(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    main([".", "--output-format", "json", "--heat", "once", "--confidence", "low", *arguments])
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(partition, "MAX_WHOLE", 500)
    monkeypatch.setattr(partition, "PART", 600)
    return tmp_path


@pytest.fixture
def analyzed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that the engine was asked about."""
    paths: list[str] = []
    real = engine.analyze

    def analyze(sources: Any, *rest: Any) -> Any:
        paths.extend(source.path for source in sources)
        return real(sources, *rest)

    monkeypatch.setattr(engine, "analyze", analyze)
    return paths


def places(findings: Any) -> set[tuple[str, str]]:
    return {(one["path"], one["code"]) for one in findings["findings"]}


def touches(project: Project, said: dict[str, str], capsys: pytest.CaptureFixture[str], analyzed: list[str]) -> bool:
    """Whether an edit of the library makes what uses it be analyzed again."""
    analyzed.clear()
    project.said |= said
    project.write_library()
    lint(capsys)
    assert "library/base.py" in analyzed
    return "user0/train.py" in analyzed


@pytest.mark.parametrize("longest", [lazy_modules.MAX_DEFINITION, 45])
@pytest.mark.parametrize("seed", range(10))
def test_edits_of_what_lies_beside_are_seen_as_if_nothing_had_been_kept(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, seed: int, longest: int
) -> None:
    monkeypatch.setattr(lazy_modules, "MAX_DEFINITION", longest)
    project = Project(root, seed)
    for _ in range(14):
        assert lint(capsys) == lint(capsys, "--no-cache", "--jobs", "1")
        project.edit()


def test_a_part_knows_what_it_uses_of_another(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = Project(root, 0)
    loop = "def run(loader):\n    for x in loader:\n        if made(x):\n            break\n"
    project.write("user0/train.py", f"import torch\nfrom library.base import read as made\n{loop}")
    found = {}
    for read in ("torch.ones(3, device='cuda').sum()", "3", "torch.ones(3).sum()"):
        project.said["read"] = read
        project.write_library()
        found[read] = ("user0/train.py", "GS301") in places(lint(capsys))
    assert list(found.values()) == [True, False, False]


RUNNER = """import random
import torch

class Runner:
    count = 0

    def run(self, x, noise=None):
        self.count += 1
        if noise is None:
            noise = random.random()
        return x * self.count + noise
"""
GRAPH = """import torch
from runner.run import Runner

def main(x):
    runner = Runner()
    graph = torch.cuda.CUDAGraph()
    with {context}:
        runner.run(x{noise})
"""


def test_what_another_part_captures_is_found_while_it_is_captured(
    root: Path, capsys: pytest.CaptureFixture[str], analyzed: list[str]
) -> None:
    tree = DatedTree(root, 0)
    tree.write("runner/run.py", RUNNER)
    tree.write("stuff/more.py", "import torch\nfrom runner.run import Runner\n" + "def f(x): return x\n" * 40)
    found = []
    for context, noise in (
        ("torch.cuda.graph(graph)", ""),
        ("torch.no_grad()", ""),
        ("torch.cuda.graph(graph)", ", 0.5"),
        ("torch.cuda.graph(graph)", ", noise=None"),
    ):
        analyzed.clear()
        tree.write("train/main.py", GRAPH.format(context=context, noise=noise))
        kept = lint(capsys)
        assert "runner/run.py" not in analyzed or not found  # only the graph of the calls has changed
        assert kept == lint(capsys, "--no-cache", "--jobs", "1")
        found.append({code for path, code in places(kept) if path == "runner/run.py"})
    assert found == [{"GS721", "GS722"}, set(), {"GS721"}, {"GS721", "GS722"}]


@pytest.mark.parametrize(
    ("said", "touched"),
    [
        ({"unasked": "x.item()"}, False),
        ({"unasked": "x\n\n\n\n"}, False),
        ({"unasked": "torch.set_default_device('cuda')"}, False),
        ({"extra": "torch.set_default_device('cuda')"}, True),
        ({"extra": "def another(): ..."}, False),
        ({"extra": "OTHER = 5"}, False),
        ({"stars": "from torch import inf"}, False),
        ({"stars": "import math"}, True),
        ({"read": "x.cpu()"}, True),
        ({"reduced": "3"}, True),
        ({"factor": "7"}, True),
        ({"extra": "def read(x): return 3"}, True),
        ({"extra": "if FACTOR:\n    FACTOR = None"}, True),
        ({"stars": "from library.more import *"}, True),
    ],
)
def test_an_edit_beside_a_part_touches_it_only_where_it_asked(
    root: Path, capsys: pytest.CaptureFixture[str], analyzed: list[str], said: dict[str, str], touched: bool
) -> None:
    project = Project(root, 0)
    lint(capsys)
    assert touches(project, said, capsys, analyzed) is touched


@pytest.mark.parametrize(
    ("said", "touched"),
    [
        ({"reduced": " - ".join(["x.sum()"] * 20)}, False),
        ({"reduced": "x.sum()"}, True),  # now there is room
    ],
)
def test_an_edit_of_what_there_was_no_room_for_touches_no_other_part(
    root: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    analyzed: list[str],
    said: dict[str, str],
    touched: bool,
) -> None:
    monkeypatch.setattr(lazy_modules, "MAX_DEFINITION", 250)
    project = Project(root, 0)
    project.said["reduced"] = " + ".join(["x.sum()"] * 20)
    project.write_library()
    lint(capsys)
    assert touches(project, said, capsys, analyzed) is touched


HELPER = """import torch

class Kept:
    def __init__(self, x: torch.Tensor):
        self.most = x.max().item()

def reduced(x: torch.Tensor):
    return x.sum().item()

def unused(x: torch.Tensor):
    return x.sum().item()
"""
LOOP = """import torch
{imported}
def run(model, loader, opt):
    for x in loader:
        loss = model(x)
        loss.backward()
        opt.step()
        {prefix}reduced(loss)
        {prefix}Kept(loss)
"""


@pytest.mark.parametrize(("room", "prefix"), [("MAX_DEFINITION", ""), ("MAX_DEFINITION", "helper."), ("MAX_READ", "")])
def test_a_helper_that_there_is_no_room_for_runs_as_often_as_it_is_called(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, room: str, prefix: str
) -> None:
    monkeypatch.setattr(lazy_modules, room, 10)
    tree = DatedTree(root, 0)
    imported = "from library import helper" if prefix else "from library.helper import Kept, reduced"
    tree.write("library/helper.py", HELPER + "#" * 600)
    tree.write("user/train.py", LOOP.format(imported=imported, prefix=prefix))
    inside = [one for one in lint(capsys)["findings"] if one["path"] == "library/helper.py"]
    assert [(one["line"], one["heat"]) for one in inside] == [(5, "step"), (8, "step"), (11, "once")]
