"""What is kept between runs changes nothing but the time they take."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from dated_tree import DatedTree
from gpusync_lint.cli import main
from gpusync_lint.files import discovery
from gpusync_lint.project import partition
from gpusync_lint.run import cache
from gpusync_lint.run.cache_file import write_lines
from gpusync_lint.run.cache_key import user_key

if TYPE_CHECKING:
    from pathlib import Path

STEP = """import torch
from {module} import {name}

def run(loader, model, opt):
    {often}:
        loss = {name}(model(x.cuda()))
        {learns}
        print(loss{read})
"""
HELPER = "import torch\n\ndef {name}(x):\n    return x.sum(){tail}\n"
TWICE = "\nif torch.cuda.is_available():\n    def {name}(x):\n        return [y.item() for y in {other}(x.cuda())]\n"
OPTIONS: list[list[str]] = [[], [], ["--heat", "once"], ["--confidence", "low"], ["--heat", "epoch", "--ignore", "GS2"]]


class Tree(DatedTree):
    """A small project that is edited at random, each file with a time of change of its own, well in the past."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        for number in range(4):
            self.write(f"pkg{number % 2}/helper{number}.py", self.helper(number))
            self.write(f"train{number}.py", self.step(number))

    def helper(self, number: int) -> str:
        text = HELPER.format(name=f"f{number}", tail=self.random.choice(["", ".item()", ".cpu()", " > 0", " +"]))
        other = self.random.randrange(8)
        if other < 4:
            text += TWICE.format(name=f"f{number}", other=f"f{other}")
            text = f"from pkg{other % 2}.helper{other} import f{other}\n{text}"
        return text

    def step(self, number: int) -> str:
        other = self.random.randrange(5)
        module = f"pkg{other % 2}.helper{other}"
        read = self.random.choice(["", ".item()", ".item()  # gpusync: allow[GS201] wanted"])
        often = self.random.choice(
            ["for x in loader", "for x in loader", "while (x := next(loader))", "if x := loader"]
        )
        learns = self.random.choice(["loss.backward(); opt.step()", "pass", "break", "model.other(loss)"])
        return STEP.format(module=module, name=f"f{other}", read=read, often=often, learns=learns)

    def edit(self) -> None:
        number = self.random.randrange(4)
        helper, train = f"pkg{number % 2}/helper{number}.py", f"train{number}.py"
        kind = self.random.randrange(9)
        moved = self.root / (helper if kind == 7 else train)
        if kind >= 7 and moved.exists():
            self.write(str(moved.relative_to(self.root)), "# moved\n" * self.random.randrange(3) + moved.read_text())
        elif kind <= 1:
            self.write(helper, self.helper(number))
        elif kind <= 3:
            self.write(train, self.step(number))
        elif kind == 4 and (self.root / helper).exists():
            (self.root / helper).unlink()
        elif kind == 5:
            self.write(f"new{self.random.randrange(3)}.py", self.step(number))
        elif (self.root / train).exists():
            os.utime(self.root / train)


def lint(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    main([".", "--output-format", "json", *arguments])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("seed", range(4))
def test_edits_are_seen_as_if_nothing_had_been_kept(root: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    tree = Tree(root, seed)
    for _ in range(16):
        options = tree.random.choice(OPTIONS)
        assert lint(capsys, *options) == lint(capsys, *options, "--no-cache", "--jobs", "1")
        tree.edit()


@pytest.mark.parametrize("seed", range(10))
def test_edits_of_a_project_that_is_cut_are_seen_as_well(
    root: Path, capsys: pytest.CaptureFixture[str], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "MAX_WHOLE", 300)
    monkeypatch.setattr(partition, "PART", 250)
    tree = Tree(root, seed)
    for number in range(12):
        options = tree.random.choice(OPTIONS)
        assert lint(capsys, *options) == lint(capsys, *options, "--no-cache", "--jobs", "1")
        tree.edit()
        if number % 4 == 3:
            for path in (root / ".gpusync_cache").glob("*.part-*.jsonl"):
                path.unlink()


def test_what_a_caller_does_is_seen_in_another_part(
    root: Path, capsys: pytest.CaptureFixture[str], analyzed: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "MAX_WHOLE", 100)
    monkeypatch.setattr(partition, "PART", 150)
    tree = Tree(root, 1)
    tree.write("lib/read.py", "import torch\n\ndef value(x: torch.Tensor):\n    return x.cuda().item()\n")
    call = "import torch\nfrom lib.read import value\n\ndef run(loader, model, opt):\n"
    loop = "    for x in loader:\n        model(x).backward()\n        opt.step()\n        value(x)\n"
    tree.write("zz_main.py", call + loop)

    def heat() -> list[str]:
        return [one["heat"] for one in lint(capsys)["findings"] if one["path"] == "lib/read.py"]

    assert "step" in heat()
    analyzed.clear()
    tree.write("zz_main.py", call + "    value(loader)\n")
    assert "step" not in heat()
    assert all("lib/read.py" not in paths for paths in analyzed)


def test_an_edit_that_moves_lines_leaves_the_other_parts_alone(
    root: Path, capsys: pytest.CaptureFixture[str], analyzed: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "MAX_WHOLE", 100)
    monkeypatch.setattr(partition, "PART", 150)
    tree = Tree(root, 1)
    lib = "import torch\n\ndef value(x: torch.Tensor):\n    return x.cuda().item()\n"
    lib += "#" * (512 + 20 - len(lib))  # its weight stays as it is
    tree.write("lib/read.py", lib)
    call = "import torch\nfrom lib.read import value\n\ndef run(loader, model, opt):\n"
    loop = "    for x in loader:\n        model(x).backward()\n        opt.step()\n        value(x)\n"
    tree.write("zz_main.py", call + loop)
    lint(capsys)
    before = {runs: runs.read_bytes() for runs in (root / cache.FOLDER).glob("*.part-*.jsonl")}
    assert before
    analyzed.clear()
    tree.write("lib/read.py", lib.replace("def", "\n\ndef"))
    found = [(one["line"], one["heat"]) for one in lint(capsys)["findings"] if one["path"] == "lib/read.py"]
    assert (6, "step") in found
    assert analyzed == [["lib/read.py"]]
    assert {runs: runs.read_bytes() for runs in before} == before


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files that were read."""
    paths: list[str] = []
    real = discovery._Walk.read

    def read(walk: discovery._Walk, listed: discovery.Listed) -> None:
        paths.append(listed.path)
        real(walk, listed)

    monkeypatch.setattr(discovery._Walk, "read", read)
    return paths


def test_nothing_is_analyzed_or_read_again_when_nothing_has_changed(
    root: Path, capsys: pytest.CaptureFixture[str], analyzed: list[list[str]], opened: list[str]
) -> None:
    tree = Tree(root, 1)
    tree.write("allowed.py", "import torch\ntorch.cuda.synchronize()  # gpusync: allow[GS1] wanted\n")
    first = lint(capsys)
    analyzed.clear()
    opened.clear()
    assert lint(capsys) == first
    assert analyzed == []
    assert {path for path in opened if "gpusync:" not in (root / path).read_text()} == set()
    assert "allowed.py" in opened


@pytest.mark.parametrize(
    "arguments",
    [
        ["--output-format", "text"],
        ["--output-format", "text", "--show-suppressed", "--heat", "once"],
        ["--output-format", "text", "--statistics"],
        ["--output-format", "sarif"],
        ["--output-format", "junit"],
        ["--output-format", "github"],
        ["--output-format", "gitlab"],
        ["--output-format", "text", "--baseline", "b.json"],
        ["--output-format", "junit", "--baseline", "b.json", "--show-suppressed"],
    ],
)
def test_what_is_shown_does_not_depend_on_what_was_read(
    root: Path, capsys: pytest.CaptureFixture[str], opened: list[str], arguments: list[str]
) -> None:
    tree = Tree(root, 3)
    tree.write("zz.py", "import torch\nfor i in range(9):\n    x = torch.ones(3, device='cuda').sum().item()\n")
    main([".", "--baseline", "b.json", "--write-baseline"])
    tree.write("train1.py", STEP.format(module="pkg1.helper1", name="f1", read=".item()", often="for x in loader",
                                        learns="loss.backward()"))  # fmt: skip
    tree.write("train2.py", "import torch\n")
    capsys.readouterr()
    main([".", *arguments, "--no-cache"])
    expected = capsys.readouterr()
    for _ in range(2):
        opened.clear()
        main([".", *arguments])
        assert capsys.readouterr() == expected
    assert len(opened) < 9


def test_a_change_is_analyzed_with_what_it_is_connected_with(
    root: Path, capsys: pytest.CaptureFixture[str], analyzed: list[list[str]]
) -> None:
    tree = Tree(root, 2)
    tree.write("alone.py", "import torch\n")
    tree.write("a.py", "import b\n")
    tree.write("b.py", "import torch\n")
    lint(capsys)
    analyzed.clear()
    tree.write("b.py", "import torch\nx = 1\n")
    lint(capsys)
    assert analyzed == [["a.py", "b.py"]]


def test_a_change_of_the_time_alone_analyzes_nothing(
    root: Path, capsys: pytest.CaptureFixture[str], analyzed: list[list[str]]
) -> None:
    Tree(root, 3)
    lint(capsys)
    analyzed.clear()
    for path in root.glob("*.py"):
        os.utime(path, (5, 5))
    lint(capsys)
    assert analyzed == []


def test_a_change_that_leaves_time_and_size_is_seen_right_after_a_run(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = root / "a.py"
    path.write_text("import torch\nx = torch.ones(3, device='cuda')\nfor i in range(9):\n    x.sum()#item()\n")
    status = path.stat()
    assert lint(capsys, "--heat", "once")["findings"] == []
    path.write_text(path.read_text().replace("#", "."))
    path.write_text(path.read_text().replace("sum().item", "sum();item").replace("sum();item", "sum().item"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    assert len(lint(capsys, "--heat", "once")["findings"]) == 1


@pytest.mark.parametrize("damage", ["", "[]", "[]\n", "{}\n", "not json\n", "[" * 5000 + "\n", "\n" * 30])
def test_a_damaged_document_is_as_good_as_none(root: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    Tree(root, 4)
    expected = lint(capsys)
    (document,) = (root / cache.FOLDER).glob("*.jsonl")
    kept = document.read_text().splitlines()
    document.write_text(damage)
    assert lint(capsys) == expected
    now = document.read_text().splitlines()
    assert json.loads(now[1])["identity"] == json.loads(kept[1])["identity"]
    assert now[2:] == kept[2:]


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("damage", ["{", "7", "[[]]", "[[7]]", '[["x"]]', "null", "[null]", '{"x": 1}', ""])
def test_no_damaged_line_is_trusted(
    root: Path, capsys: pytest.CaptureFixture[str], damage: str, edited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "MAX_WHOLE", 300)
    monkeypatch.setattr(partition, "PART", 250)
    tree = Tree(root, 4)
    before = tree.step(0), tree.helper(0).replace("return", "return 1 +")
    after = tree.step(1), tree.helper(0).replace("return", "return 2 +")
    expected = []
    for texts in (after, before):
        for name, text in zip(("train0.py", "pkg0/helper0.py"), texts, strict=True):
            tree.write(name, text)
        expected.append(lint(capsys))
    documents = sorted((root / cache.FOLDER).glob("*.jsonl"))
    assert len(documents) > 1
    kept = {document: document.read_bytes() for document in documents}
    for document, data in kept.items():
        lines = data.split(b"\n")[1:-1]
        for number, line in enumerate(lines):
            for other, whole in kept.items():
                other.write_bytes(whole)
            if damage.encode() == line:
                continue
            # Even what this user wrote: an earlier version may have had a bug.
            write_lines(document, user_key(), [*lines[:number], damage.encode(), *lines[number + 1 :]])
            for name, text in zip(("train0.py", "pkg0/helper0.py"), after if edited else before, strict=True):
                tree.write(name, text)
            assert lint(capsys) == expected[0 if edited else 1], (document.name, number, line)


def test_other_settings_do_not_see_what_was_found_with_these(
    root: Path, capsys: pytest.CaptureFixture[str], analyzed: list[list[str]]
) -> None:
    Tree(root, 5)
    (root / "pyproject.toml").write_text("[tool.gpusync]\n")
    lint(capsys)
    analyzed.clear()
    (root / "pyproject.toml").write_text("[tool.gpusync]\nstep-functions = ['f1']\n")
    lint(capsys)
    assert analyzed != []


def test_the_folder_keeps_itself_out_of_version_control(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Tree(root, 6)
    lint(capsys)
    assert "*" in (root / cache.FOLDER / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize("arguments", [["--no-cache"], ["--diff"], ["--fix"]])
def test_nothing_is_kept_where_it_is_not_wanted(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    Tree(root, 7)
    main([".", *arguments])
    assert not (root / cache.FOLDER).exists()


def test_no_more_documents_are_kept_than_are_of_use(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "KEPT", 2)
    for name in "abcd":
        (root / name).mkdir()
        (root / name / "x.py").write_text("x = 1\n")
        main([name])
    assert len(list((root / cache.FOLDER).glob("*.jsonl"))) == 2


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="this user may write everywhere")
def test_a_folder_that_cannot_be_written_is_linted_all_the_same(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Tree(root, 8)
    root.chmod(0o555)
    try:
        assert lint(capsys)["files"] == 8
    finally:
        root.chmod(0o755)


def test_a_baseline_entry_of_a_file_that_was_not_read_again_is_not_stale(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = Tree(root, 9)
    main([".", "--baseline", "b.json", "--write-baseline"])
    capsys.readouterr()
    first = lint(capsys, "--baseline", "b.json")
    assert lint(capsys, "--baseline", "b.json") == first
    tree.write("train0.py", "import torch\n")
    assert lint(capsys, "--baseline", "b.json") == lint(capsys, "--baseline", "b.json", "--no-cache")


def test_a_baseline_entry_of_a_file_that_cannot_be_parsed_is_not_stale_either(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = Tree(root, 9)
    text = "import torch\nwhile True:\n    torch.cuda.synchronize()\n"
    tree.write("zz.py", text)
    main([".", "--baseline", "b.json", "--write-baseline", "--heat", "epoch"])
    assert "zz.py" in (root / "b.json").read_text()
    tree.write("zz.py", text + "(\n")
    capsys.readouterr()
    for _ in range(3):
        assert lint(capsys, "--baseline", "b.json") == lint(capsys, "--baseline", "b.json", "--no-cache")
