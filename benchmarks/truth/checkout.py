"""Files of a repository at a commit, from a clone."""

from __future__ import annotations

import shutil
import subprocess
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from repositories import Repository

_LARGEST = 8 << 20
"""Larger files are data or weights, which no run uses."""
_one_at_a_time = threading.Lock()
"""Several runs of a repository may begin at the same time."""


class CheckoutError(RuntimeError):
    """A repository cannot be had; the message is one line."""


def check_out(repository: Repository, sources: Path, clones: Path) -> Path:
    """Return the folder of a repository's files below `sources`, made if it is not there.

    A clone that is already below `clones`, in a folder named OWNER+NAME, is used as it is.

    Raises:
        CheckoutError: it could not be cloned, or has no such commit.
    """
    with _one_at_a_time:
        return _check_out(repository, sources, clones)


def _check_out(repository: Repository, sources: Path, clones: Path) -> Path:
    folder = sources / repository.folder
    stamp = sources / f"{repository.folder}.commit"
    if stamp.is_file() and stamp.read_text().strip() == repository.commit:
        return folder
    clone = clones / repository.folder
    if not clone.exists():
        clones.mkdir(parents=True, exist_ok=True)
        _git(["clone", "--quiet", "--no-checkout", repository.url, str(clone)])
    if folder.exists():
        shutil.rmtree(folder)
    _write_files(clone, repository.commit, folder)
    stamp.write_text(repository.commit + "\n")
    return folder


def _git(arguments: list[str]) -> bytes:
    done = subprocess.run(["git", *arguments], capture_output=True, check=False)
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip().splitlines()
        raise CheckoutError(f"git {arguments[0]}: {message[-1] if message else f'exit status {done.returncode}'}")
    return done.stdout


def _write_files(clone: Path, commit: str, folder: Path) -> None:
    """Write the regular files of a commit, as far as the clone has them."""
    at = ["-C", str(clone)]
    listing = _git([*at, "ls-tree", "-r", "-z", commit]).decode(errors="surrogateescape")
    wanted: dict[str, list[str]] = {}
    for entry in listing.split("\0"):
        if entry:
            description, path = entry.split("\t", 1)
            mode, kind, blob = description.split()
            if kind == "blob" and mode != "120000":
                wanted.setdefault(blob, []).append(path)
    with subprocess.Popen(
        ["git", *at, "cat-file", "--batch-check"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        sizes, _ = process.communicate("".join(f"{blob}\n" for blob in wanted))
    kept = [
        fields[0] for fields in map(str.split, sizes.splitlines()) if fields[1] == "blob" and int(fields[2]) < _LARGEST
    ]
    with subprocess.Popen(
        ["git", *at, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for blob in kept:
            process.stdin.write(f"{blob}\n".encode())
            process.stdin.flush()
            size = int(process.stdout.readline().split()[2])
            content = process.stdout.read(size)
            process.stdout.read(1)
            for path in wanted[blob]:
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        process.stdin.close()
