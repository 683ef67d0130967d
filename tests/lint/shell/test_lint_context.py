"""Files that are given by name are judged with the project around them, and nothing else is reported."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from gpusync_lint.cli import main
from gpusync_lint.files import discovery
from gpusync_lint.project import import_context

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = """\
import torch
from metrics import measure
model = torch.nn.Linear(1, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(loader):
    for x in loader:
        loss = model(x.cuda(non_blocking=True)).sum()
        loss.backward()
        optimizer.step()
        print(loss.item())
        measure(loss)
"""
METRICS = """\
import torch
def measure(value: torch.Tensor):
    return value.cuda().item()
"""


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'p'\n")
    return tmp_path


def names(root: Path, *given: str) -> list[str]:
    """The files that are read beside the given ones."""
    found = discovery.discover(given, cwd=root, excludes=lambda path: False, stdin=lambda: b"")
    return sorted(one.path for one in import_context.context_of(found.files, cwd=root, excludes=lambda path: False))


def places(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, int]]:
    return [(one["path"], one["line"]) for one in json.loads(capsys.readouterr().out)["findings"]]


def test_a_caller_that_is_not_given_makes_a_function_hot(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(root, train=TRAIN, metrics=METRICS)
    assert main(["--output-format", "json", "metrics.py"]) == 1
    assert places(capsys) == [("metrics.py", 3)]


def test_without_context_it_is_not_known_to_be(root: Path) -> None:
    write(root, train=TRAIN, metrics=METRICS)
    assert main(["--no-context", "metrics.py"]) == 0


def test_given_files_and_a_folder_find_the_same(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(root, train=TRAIN, metrics=METRICS)
    main(["--output-format", "json", "."])
    whole = places(capsys)
    both = []
    for name in ("metrics.py", "train.py"):
        main(["--output-format", "json", name])
        both += places(capsys)
    assert both == whole


def test_an_error_in_the_context_is_nobodys(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(root, train="from metrics import measure\nimport torch\nx = (\n", metrics=METRICS)
    assert main(["metrics.py"]) == 0
    assert capsys.readouterr().err == ""


def test_a_fix_changes_no_file_of_the_context(root: Path) -> None:
    helper = "import torch\ndef make(dev):\n    return torch.zeros(3).to(dev)\n"
    write(root, train=f"from helper import make\n{TRAIN}        make('cuda')\n", metrics=METRICS, helper=helper)
    main(["--fix", "train.py"])
    assert (root / "helper.py").read_text() == helper


def test_standard_input_has_a_context_by_its_name(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, train=TRAIN, metrics="")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(METRICS.encode())))
    assert main(["--output-format", "json", "--stdin-filename", "metrics.py", "-"]) == 1
    assert places(capsys) == [("metrics.py", 3)]


IMPORTS = {
    "import pkg.a": "import torch, pkg.a",
    "from a package": "import torch\nfrom pkg import a",
    "from a module": "import torch\nfrom pkg.a import f as g",
    "over several lines": "import torch\nfrom pkg import (  # these\n    other,\n    a as b,  # this\n)",
    "indented": "import torch\ndef f():\n    from pkg.a import g",
}


@pytest.mark.parametrize("text", IMPORTS.values(), ids=IMPORTS.keys())
def test_imports_are_followed_both_ways(root: Path, text: str) -> None:
    write(root, main=text, pkg__a="f = 1", stranger="import torch")
    assert names(root, "main.py") == ["pkg/a.py"]
    assert names(root, "pkg/a.py") == ["main.py"]


def test_relative_imports_start_from_the_file(root: Path) -> None:
    write(root, pkg__sub__a="import torch\nfrom ..b import f\nfrom . import c", pkg__b="", pkg__sub__c="", b="", c="")
    assert names(root, "pkg/sub/a.py") == ["pkg/b.py", "pkg/sub/c.py"]


def test_sources_below_src_are_found_from_the_root(root: Path) -> None:
    write(root, main="import torch\nimport pkg.a", src__pkg__a="")
    assert names(root, "main.py") == ["src/pkg/a.py"]


def test_callers_of_callers_are_read_and_what_they_import(root: Path) -> None:
    write(root, a="import torch", b="import a", c="import b\nimport d", d="")
    assert names(root, "a.py") == ["b.py", "c.py", "d.py"]


@pytest.mark.parametrize(
    ("files", "given"),
    [
        pytest.param({"a": "import b", "b": "import json"}, "a.py", id="no framework"),
        pytest.param({"a": "import torch", "node_modules__b": "import a"}, "a.py", id="a folder that is never entered"),
        pytest.param({"a": "import torch", "b": "import a"}, ".", id="a folder is the project"),
    ],
)
def test_nothing_is_read_where_it_could_tell_nothing(root: Path, files: dict[str, str], given: str) -> None:
    write(root, **files)
    assert names(root, given) == []


def test_it_ends_at_the_project(root: Path) -> None:
    write(root, inner__a="import torch\nimport out", out="import a")
    (root / "inner" / "setup.py").touch()
    assert names(root, "inner/a.py") == []


def test_it_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, a="import torch", **{f"b{number}": "import a" for number in range(20)})
    monkeypatch.setattr(import_context, "MAX_FILES", 8)
    assert len(names(root, "a.py")) == 8


def test_what_is_excluded_is_not_read(root: Path) -> None:
    write(root, train=TRAIN, metrics=METRICS)
    (root / "pyproject.toml").write_text("[tool.gpusync]\nexclude = ['train.py']\n")
    assert main(["metrics.py"]) == 0
