"""Rounds of --fix: the last one leaves what a fresh run finds, and only what has changed is analyzed again."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from gpusync_lint.cli import main
from gpusync_lint.project import partition
from gpusync_lint.run import cache, engine

if TYPE_CHECKING:
    from pathlib import Path

Captured = pytest.CaptureFixture[str]

HELPER = """\
import torch
{imports}

def made{n}(size):
    return {made}

def reduced{n}(x):
    {reduced}
    return value{n}
"""
MADE = (
    "torch.zeros(size).cuda()",
    "torch.ones(\n        size,\n    ).to('cuda')",
    "torch.randn(size, device='cuda')",
    "size",
)
REDUCED = (
    "value{n} = x.mean()",
    "value{n} = x.mean().item()",
    "value{n} = x.mean().item() / x.std().item()",
    "first = x.mean().item()\n    second = x.std().item()\n    value{n} = first + second",
    "value{n} = torch.tensor(0.5, device='cuda') * x",
)
TRAIN = """\
import torch
from {module} import made{n}, reduced{n}

def train(model, loader, optimizer):
    model.cuda().train()
    total = 0.0
    {before}
    for step, x in enumerate(loader):
        x = x.cuda(non_blocking=True)
        loss = model(x + made{n}(3)).mean()
        loss.backward()
        optimizer.step()
        {inside}
    return total
"""
INSIDE = (
    "total += loss.item()",
    "total += reduced{n}(x)",
    "total += loss.item()  # gpusync: allow[GS201] wanted",
    "log(loss.item(), x.mean().item())",
    "total += loss.item()\n        losses.append(loss.item())\n        if step % 9 == 0:\n            print(total)",
    "weight = torch.zeros(3).cuda()\n        a = (x > 0).sum().item()\n        b = (x > weight).sum().item()",
)


class Project:
    """Modules that import each other at random, with much to fix in them."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        for n in range(4):
            other = self.random.randrange(4)
            imports = f"from pkg{other % 2}.helper{other} import made{other}\n" if other != n else ""
            made = self.random.choice([*MADE, f"made{other}(size)"]) if imports else self.random.choice(MADE)
            text = HELPER.format(n=n, imports=imports, made=made, reduced=self.random.choice(REDUCED).format(n=n))
            self.write(root / f"pkg{n % 2}" / f"helper{n}.py", text)
        for number in range(5):
            n = self.random.randrange(4)
            text = TRAIN.format(
                n=n,
                module=f"pkg{n % 2}.helper{n}",
                before=self.random.choice(["losses = []", "losses = [1]"]),
                inside=self.random.choice(INSIDE).format(n=n),
            )
            self.write(root / f"train{number}.py", text)

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def lint(capsys: Captured, *arguments: str) -> Any:
    main([".", "--output-format", "json", "--heat", "once", "--confidence", "low", *arguments])
    return json.loads(capsys.readouterr().out)


def texts(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")}


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_what_is_left_is_what_a_fresh_run_finds(
    root: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, seed: int, cut: bool
) -> None:
    if cut:
        monkeypatch.setattr(partition, "MAX_WHOLE", 300)
        monkeypatch.setattr(partition, "PART", 250)
    Project(root, seed)
    fixed = lint(capsys, "--fix", "--unsafe-fixes")
    assert fixed.pop("fixed") > 0
    assert fixed == lint(capsys, "--no-cache", "--jobs", "1")


@pytest.mark.parametrize("seed", range(6))
def test_the_files_are_those_of_rounds_that_analyze_everything(
    root: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(partition, "MAX_WHOLE", 300)
    monkeypatch.setattr(partition, "PART", 250)
    Project(root, seed)
    before = texts(root)
    found = lint(capsys, "--fix", "--unsafe-fixes")
    after = texts(root)
    assert after != before

    def forget(stored: cache.Cache, sources: object) -> None:
        stored.document = stored.outdated = None

    monkeypatch.setattr(cache.Cache, "edited", forget)
    for path, text in before.items():
        (root / path).write_text(text)
    assert lint(capsys, "--fix", "--unsafe-fixes") == found
    assert texts(root) == after


def test_only_what_a_round_has_touched_is_analyzed_again(root: Path, analyzed: list[list[str]]) -> None:
    fixable = "import torch\nfor i in range(9):\n    x = torch.zeros(3).cuda()\n"
    (root / "a.py").write_text(fixable)
    (root / "b.py").write_text("import torch\nimport a\n")
    (root / "c.py").write_text("import torch\nfor i in range(9):\n    torch.cuda.synchronize()\n")
    main([".", "--fix", "--heat", "once"])
    assert (root / "a.py").read_text() == fixable.replace("3).cuda()", '3, device="cuda")')
    assert analyzed == [["a.py", "b.py"], ["c.py"], ["a.py", "b.py"]]


def test_a_part_that_does_not_depend_on_the_change_is_left_alone(
    root: Path, analyzed: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "MAX_WHOLE", 100)
    monkeypatch.setattr(partition, "PART", 150)
    padding = "#" * 600
    (root / "lib").mkdir()
    library = "import torch\n\ndef made(size):\n    return torch.zeros(size, device='cuda')\n\ndef other(loader):\n"
    library += f"    for x in loader:\n        y = torch.zeros(3).cuda()\n{padding}\n"
    (root / "lib" / "made.py").write_text(library)
    use = f"import torch\nfrom lib.made import made\nfor i in range(9):\n    print(made(3).sum().item())\n{padding}\n"
    (root / "use.py").write_text(use)
    main([".", "--fix", "--heat", "once"])
    assert 'torch.zeros(3, device="cuda")' in (root / "lib" / "made.py").read_text()
    assert analyzed == [["lib/made.py"], ["use.py"], ["lib/made.py"]]


def test_nothing_is_analyzed_again_where_nothing_was_fixed(root: Path, analyzed: list[list[str]]) -> None:
    (root / "a.py").write_text("import torch\nfor i in range(9):\n    torch.cuda.synchronize()\n")
    main([".", "--fix"])
    assert analyzed == [["a.py"]]


def test_an_internal_error_is_told_after_rounds_that_leave_its_file_alone(
    root: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine.analyze

    def analyze(sources: Any, *rest: Any) -> Any:
        if any("boom" in source.text for source in sources):
            raise RuntimeError("boom")
        return real(sources, *rest)

    monkeypatch.setattr(engine, "analyze", analyze)
    (root / "a.py").write_text("import torch\nfor i in range(9):\n    x = torch.zeros(3).cuda()\n")
    (root / "b.py").write_text("import torch\nboom = 1\n")
    assert main([".", "--fix", "--verbose", "--heat", "once"]) == 2
    error = capsys.readouterr().err
    assert "b.py: error: internal error, a bug in gpusync: RuntimeError: boom" in error
    assert error.count("Traceback") == 1
    assert 'device="cuda"' in (root / "a.py").read_text()


def test_comments_are_added_to_what_the_fixes_leave(root: Path, capsys: Captured) -> None:
    Project(root, 3)
    main([".", "--fix", "--unsafe-fixes", "--add-ignores", "known"])
    capsys.readouterr()
    assert main([".", "--no-cache"]) == 0
