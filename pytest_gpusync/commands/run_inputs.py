"""The run files of a history or a fleet: in folders, in zip files (the artifacts of a CI), and in a branch of git.

Everything read is untrusted. Only regular files and members up to a size are read, links to folders are not followed,
and nothing is extracted or checked out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import zipfile
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from gpusync_lint.files.run_files import SIZE_LIMIT, RunFileError, parse_run, read_bytes

from pytest_gpusync.commands.report_io import Refusal

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from gpusync_lint.files.run_files import Run

    from pytest_gpusync.reporting.run_figures import RunFigures
    from pytest_gpusync.reporting.run_filter import Filter

_ENDING: Final = ".json"
_ARCHIVE: Final = ".zip"

_COMMIT: Final = re.compile(r"[0-9a-f]{40,64}\Z")

_SHOW_AFTER: Final = 1.0
_SHOW_EVERY: Final = 0.25
"""Seconds after which, and between which, a terminal shows progress."""


class Content(NamedTuple):
    """What a file contains, or why it cannot be read."""

    name: str
    data: bytes
    problem: str | None = None


class Commit(NamedTuple):
    """A commit of git."""

    position: int
    """Its place among those asked for, in history."""
    time: str
    """When it was committed: ISO 8601."""
    subject: str


def filters_of(options: argparse.Namespace) -> list[Filter]:
    """Return the filters that ``--where`` gives.

    Raises:
        Refusal: one cannot be understood.
    """
    from pytest_gpusync.reporting.run_filter import FilterError, parsed

    try:
        return [parsed(text) for text in options.where]
    except FilterError as error:
        raise Refusal(f"--where: {error}") from None


def selected_runs(options: argparse.Namespace, problems: list[str]) -> Iterator[RunFigures]:
    """Return the runs in the folders, zip files or branch that the options name, as far as they fulfill the filters.

    Args:
        options: with paths, branch and where.
        problems: gets a line for each file that cannot be read.

    Raises:
        Refusal: there is nothing to read.
    """
    from pytest_gpusync.reporting.run_figures import figures_of
    from pytest_gpusync.reporting.run_filter import filtered

    paths, branch = options.paths, options.branch
    if not paths and branch is None:
        raise Refusal("give a folder with run files, or --branch REF")
    contents = in_paths(paths) if branch is None else in_branch(branch, paths)
    found = runs(_with_progress(contents), problems)
    return filtered((figures for name, run in found for figures in figures_of(name, run)), filters_of(options))


def _with_progress(contents: Iterable[Content]) -> Iterator[Content]:
    """Show on a terminal how many files were read, if that takes long."""
    if not sys.stderr.isatty():
        yield from contents
        return
    due = time.monotonic() + _SHOW_AFTER
    is_shown = False
    try:
        for number, content in enumerate(contents, 1):
            if (now := time.monotonic()) >= due:
                print(f"Reading run files: {number:,} ...", end="\x1b[K\r", file=sys.stderr, flush=True)
                due, is_shown = now + _SHOW_EVERY, True
            yield content
    finally:
        if is_shown:
            print(end="\x1b[K", file=sys.stderr, flush=True)


def runs(contents: Iterable[Content], problems: list[str]) -> Iterator[tuple[str, Run]]:
    """Return the runs among the contents; JSON files of other kinds are left out.

    Args:
        contents: the files.
        problems: gets a line for each file that cannot be read.
    """
    for name, data, problem in contents:
        if problem is not None:
            problems.append(problem)
            continue
        try:
            run = parse_run(name, data)
        except RunFileError as error:
            problems.append(str(error))
            continue
        if run is not None:
            yield name, run


def in_paths(paths: Sequence[str]) -> Iterator[Content]:
    """Return the JSON files in folders, below them and in zip files there; a file that is named is read in any case.

    Raises:
        Refusal: a path does not exist.
    """
    for path in paths:
        if os.path.isdir(path):
            for folder, folders, names in os.walk(path):
                folders[:] = sorted(name for name in folders if name != ".git")
                for name in sorted(names):
                    if name.endswith((_ENDING, _ARCHIVE)):
                        yield from _in_file(os.path.join(folder, name))
        elif os.path.exists(path):
            yield from _in_file(path)
        else:
            raise Refusal(f"{path} does not exist; give a folder, a zip file or a run file")


def _in_file(path: str) -> Iterator[Content]:
    if path.endswith(_ARCHIVE):
        yield from _in_archive(path)
        return
    try:
        yield Content(path, read_bytes(path))
    except RunFileError as error:
        yield Content(path, b"", str(error))


def _in_archive(path: str) -> Iterator[Content]:
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if not member.is_dir() and member.filename.endswith(_ENDING):
                    yield _in_member(f"{path}/{member.filename}", archive, member)
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        yield Content(path, b"", f"{path}: not a zip file that can be read ({error})")


def _in_member(name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Content:
    too_large = f"{name}: larger than {SIZE_LIMIT // 2**20} MiB; measure fewer tests per file"
    if member.file_size > SIZE_LIMIT:
        return Content(name, b"", too_large)
    try:
        with archive.open(member) as file:
            data = file.read(SIZE_LIMIT + 1)  # the size that the archive names may be wrong
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, zlib.error) as error:
        return Content(name, b"", f"{name}: cannot be read ({error})")
    return Content(name, b"", too_large) if len(data) > SIZE_LIMIT else Content(name, data)


def in_branch(ref: str, folders: Sequence[str]) -> Iterator[Content]:
    """Return every version of every JSON file in the history of a branch, or another name of a commit.

    Args:
        ref: the branch.
        folders: only files in these folders of it; all files if there is none.

    Raises:
        Refusal: this is not a repository, or has no such commit.
    """
    commit = _git(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"])
    if commit is None:
        raise Refusal(f"{ref} is not a branch or commit of a git repository here; fetch it first")
    listed = _git(["rev-list", "--objects", commit.strip(), "--", *folders])
    names: dict[str, str] = {}
    for line in (listed or "").splitlines():
        name, _, path = line.partition(" ")
        if path.endswith(_ENDING):
            names.setdefault(name, path)
    seen: set[str] = set()
    for name, data in _blobs(list(names)):
        path = names[name]
        label = f"{ref}:{path}" if path not in seen else f"{ref}:{path} ({name[:8]})"
        seen.add(path)
        if data is None:
            yield Content(label, b"", f"{label}: larger than {SIZE_LIMIT // 2**20} MiB; measure fewer tests per file")
        else:
            yield Content(label, data)


def commits(names: Iterable[str]) -> dict[str, Commit]:
    """Return the commits of this repository that have these names, in the order of history: parents before children."""
    # They come from run files: git would take other text for options.
    wanted = sorted({name for name in names if _COMMIT.match(name)})
    form = "--format=%H%x00%cI%x00%s"
    text = _git(["log", "--no-walk=sorted", "--ignore-missing", form, "--stdin"], "\n".join(wanted)) if wanted else None
    rows = [line.split("\0", 2) for line in (text or "").splitlines() if line.count("\0") == 2]
    if not rows:
        return {}
    # Commits of a rebase have the same time, so parents are needed for the order.
    since = f"--since={rows[-1][1]}"
    ordered = _git(["rev-list", "--date-order", "--reverse", since, "--stdin"], "\n".join(row[0] for row in rows))
    place = {name: number for number, name in enumerate((ordered or "").split())}
    rows.sort(key=lambda row: place.get(row[0], -1))
    return {name: Commit(number, time, subject) for number, (name, time, subject) in enumerate(rows)}


def _git(arguments: list[str], given: str | None = None) -> str | None:
    """Return what git prints; None if it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "--no-pager", *arguments],
            input=given, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )  # fmt: skip
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def _blobs(names: list[str]) -> Iterator[tuple[str, bytes | None]]:
    """Return the contents of files by the names of their objects; None for one that is too large."""
    if not names:
        return
    with subprocess.Popen(["git", "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for name in names:
            process.stdin.write(f"{name}\n".encode())
            process.stdin.flush()
            head = process.stdout.readline().split()
            if len(head) != 3:
                continue
            size = int(head[2])
            if size > SIZE_LIMIT:
                left = size + 1
                while left > 0 and (part := process.stdout.read(min(left, 2**20))):
                    left -= len(part)
                yield name, None
            else:
                yield name, process.stdout.read(size)
                process.stdout.read(1)
        process.stdin.close()
