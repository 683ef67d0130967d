"""What is in the folder of the cache, whoever put it there, changes no finding and no other file.

The oracle is a run without a cache.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest
from gpusync_lint.cli import main
from gpusync_lint.project import partition
from gpusync_lint.run import cache
from gpusync_lint.run.cache_key import user_key

if TYPE_CHECKING:
    from pathlib import Path

    Captured = pytest.CaptureFixture[str]

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes need rights on Windows")
FILES = {
    "helper.py": "import torch\n\ndef read(x):\n    return x.sum().item()\n",
    "train.py": "import torch\nfrom helper import read\n\nfor x in loader:\n    loss = torch.ones(3).cuda().sum()\n"
    "    loss.backward()\n    opt.step()\n    print(read(loss))\n    loss.item()  # gpusync: allow[GS201] wanted\n",
    "bad.py": "import torch\nx = (\n",
    "other.py": "import torch\nmodel = torch.nn.Linear(3, 3).cuda()\nfor x in loader:\n    print(model(x).item())\n",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
        os.utime(folder / name, (1e9, 1e9))
    monkeypatch.chdir(folder)
    return folder


def lint(capsys: Captured, *arguments: str) -> tuple[Any, str]:
    """The document of a run, and what it wrote about the cache."""
    code = main(["--output-format", "json", "--jobs", "1", *arguments])
    out, err = capsys.readouterr()
    notes = "".join(line for line in err.splitlines() if line.startswith("gpusync lint:"))
    return (code, json.loads(out)), notes


def documents(root: Path) -> list[Path]:
    return sorted((root / cache.FOLDER).glob("*.jsonl"))


@pytest.mark.parametrize("parts", [False, True])
def test_a_changed_byte_is_a_cold_start_with_a_note(
    root: Path, capsys: Captured, parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if parts:
        monkeypatch.setattr(partition, "MAX_WHOLE", 100)
        monkeypatch.setattr(partition, "PART", 100)
    expected, _ = lint(capsys, "--no-cache")
    lint(capsys)
    kept = {path: path.read_bytes() for path in documents(root)}
    rng = random.Random(7)
    for _ in range(int(os.environ.get("GPUSYNC_FUZZ_CACHES", "60"))):
        path = rng.choice(list(kept))
        path.write_bytes(_mutated(kept[path], rng))
        found, note = lint(capsys)
        assert found == expected
        if path.name.count(".") == 1:  # the main document
            assert note.endswith("ignored, because it is damaged, or was not written by you on this machine")
        for other, data in kept.items():
            other.write_bytes(data)


def _mutated(data: bytes, rng: random.Random) -> bytes:
    """Another content: bytes that are flipped, left out, doubled or replaced by other JSON."""
    while True:
        start = rng.randrange(len(data))
        end = min(len(data), start + rng.choice([1, 1, 2, 8, 200]))
        inserted = rng.choice(
            [b"", bytes([data[start] ^ (1 << rng.randrange(8))]), data[start:end] * 2, b"Infinity", b"-1", b"[]", b"\n"]
        )
        changed = data[:start] + inserted + data[end:]
        if changed != data:
            return changed


def test_a_document_that_brings_no_code_is_ignored(root: Path, capsys: Captured) -> None:
    """As a pull request could bring along: everything is right but the key."""
    expected, _ = lint(capsys)
    (document,) = documents(root)
    lines = document.read_bytes().split(b"\n")
    hidden = [b"[]" if b"GS201" in line else line for line in lines]
    document.write_bytes(b"\n".join(hidden))
    found, note = lint(capsys)
    assert found == expected
    assert "ignored" in note


def test_a_document_of_another_name_is_ignored(root: Path, capsys: Captured) -> None:
    (root / "empty").mkdir()
    (root / "empty" / "a.py").write_text("import torch\n")
    lint(capsys, "empty")
    (clean,) = documents(root)
    expected, _ = lint(capsys)
    (other,) = set(documents(root)) - {clean}
    shutil.copyfile(clean, other)
    assert lint(capsys)[0] == expected


@POSIX
def test_a_key_that_others_can_read_is_not_used(root: Path, capsys: Captured, cache_home: Path) -> None:
    user_key()
    (cache_home / "gpusync" / "lint-cache.key").chmod(0o644)
    _, note = lint(capsys)
    assert "others may read or replace" in note
    assert not (root / cache.FOLDER).exists()


def test_a_key_cannot_be_read_by_others(cache_home: Path) -> None:
    assert len(user_key()) == 32
    assert user_key() == user_key()
    if sys.platform != "win32":
        assert (cache_home / "gpusync" / "lint-cache.key").stat().st_mode & 0o077 == 0


@POSIX
@pytest.mark.parametrize("target", ["elsewhere", "nowhere"])
def test_a_folder_that_is_a_link_is_not_used(root: Path, capsys: Captured, target: str) -> None:
    elsewhere = root.parent / "elsewhere"
    elsewhere.mkdir()
    for number in range(40):
        (elsewhere / f"lint-{number:08x}.jsonl").write_text("precious")
    (root / cache.FOLDER).symlink_to(root.parent / target)
    expected, _ = lint(capsys, "--no-cache")
    found, note = lint(capsys)
    assert found == expected
    assert note.endswith("is not a folder")
    assert len(list(elsewhere.iterdir())) == 40
    assert not (root.parent / "nowhere").exists()


@POSIX
@pytest.mark.parametrize("kind", ["link", "pipe", "device", "folder"])
def test_a_document_that_is_no_regular_file_is_not_read(root: Path, capsys: Captured, kind: str) -> None:
    lint(capsys)
    (document,) = documents(root)
    precious = root / "precious"
    precious.write_bytes(document.read_bytes())
    document.unlink()
    if kind == "link":
        document.symlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(document)
    elif kind == "device":
        document.symlink_to("/dev/zero")
    else:
        document.mkdir()
    before = precious.read_bytes()
    expected, _ = lint(capsys, "--no-cache")
    found, note = lint(capsys)
    assert found == expected
    assert "ignored, because" in note
    assert precious.read_bytes() == before


def test_only_files_with_exact_names_are_deleted(root: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "KEPT", 1)
    lint(capsys)
    folder = root / cache.FOLDER
    kept = ["lint-report.json", "lint-00000000.json", "lint-0000000g.jsonl", "lint-000000000.jsonl", "x-lint-1.jsonl",
            "lint-00000000.part-x.jsonl", "notes.txt"]  # fmt: skip
    gone = ["lint-00000000.jsonl", "lint-00000000.part-0.jsonl", "lint-0000000a.part-12.jsonl"]
    for name in (*kept, *gone):
        (folder / name).write_text("x")
        os.utime(folder / name, (1e9, 1e9))
    (folder / "lint-11111111.jsonl").mkdir()
    (root / "other.py").write_text("x = 1\n")
    lint(capsys)
    assert {name for name in (*kept, *gone) if (folder / name).exists()} == set(kept)
    assert (folder / "lint-11111111.jsonl").is_dir()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_used(root: Path, capsys: Captured) -> None:
    lint(capsys)
    (document,) = documents(root)
    before = document.read_bytes()
    os.chown(root / cache.FOLDER, 12345, 12345)
    (root / "other.py").write_text("x = 1\n")
    _, note = lint(capsys)
    assert note.endswith("belongs to another user")
    assert document.read_bytes() == before


def test_what_a_killed_run_left_is_removed(root: Path, capsys: Captured) -> None:
    lint(capsys)
    folder = root / cache.FOLDER
    left = folder / f".{documents(root)[0].name}.abcdefgh.gpusync.tmp"
    other = folder / ".notes.txt.abcdefgh.gpusync.tmp"
    for path in (left, other):
        path.write_text("x")
        os.utime(path, (1e9, 1e9))
    (root / "other.py").write_text("x = 1\n")
    lint(capsys)
    assert not left.exists()
    assert other.exists()
