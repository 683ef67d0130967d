"""Which files git ignores: the `.gitignore` files of a repository and its `.git/info/exclude`.

pathspec compiles the patterns. What it does not do is done here: a `.gitignore` in a folder takes precedence over those
above it, and a folder that is ignored is not entered. Ignored files that are under version control
count as ignored, too. The `core.excludesFile` of a user is not read, so that everybody lints the same files.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pathspec.pattern import RegexPattern

IGNORE_FILE = ".gitignore"

MAX_SIZE = 1 << 20
"""The size in bytes from which on a file of patterns is left out; git's own limit is 100 MB."""

_MAX_STARS = 4
"""The maximum number of `*` in a component of a pattern, and of `**` in a pattern. Others are left out, because
the time to match grows exponentially with the number."""


class Patterns:
    """The patterns of one file, which are relative to a folder."""

    def __init__(self, folder: str, lines: Sequence[str]) -> None:
        self._start = len(os.path.join(folder, ""))
        self._patterns = [pattern for pattern in map(_Pattern.of, reversed(lines)) if pattern is not None]
        """The last ones first, because the last one that matches decides."""
        self._by_name: dict[str, list[_Pattern]] = {}

    def decide(self, path: str, name: str) -> bool | None:
        """Whether the patterns ignore a path; None if none matches.

        Args:
            path: an absolute path, which ends in a slash if it is a folder.
            name: its last component, with this slash.
        """
        candidates = self._by_name.get(name)
        if candidates is None:
            candidates = self._by_name[name] = [each for each in self._patterns if each.last.match_file(name)]
        below = ""
        for pattern in candidates:
            below = below or path[self._start :].replace(os.sep, "/")
            if pattern.matches(below):
                return pattern.ignores
        return None


class _Pattern(NamedTuple):
    """A pattern, which matches a path but, other than for pathspec, not what is in the folders that it matches."""

    ignores: bool
    last: RegexPattern
    """Its last component."""
    whole: RegexPattern | None
    """None if it has one component, and so matches at any depth."""
    depth: int | None
    """The number of its components; None if it contains `**`."""

    @classmethod
    def of(cls, line: str) -> _Pattern | None:
        """The pattern of a line; None if git would ignore the line."""
        from pathspec import GitIgnoreSpec  # takes 20 ms; a project without patterns does not need it

        text = line.rstrip() if not line.rstrip().endswith("\\") else line
        # For pathspec `a/**` matches the folder `a`, too; for git only what it contains.
        text = re.sub(r"/\*\*(/?)$", r"/**/*\1", text)
        body = text.removeprefix("!")
        inner = body.rstrip("/").removeprefix("/")
        components = inner.split("/")
        if max(each.count("*") for each in components) > _MAX_STARS or components.count("**") > _MAX_STARS:
            return None
        ending = "/" * body.endswith("/")
        try:
            last, whole = GitIgnoreSpec.from_lines([inner.rpartition("/")[2] + ending, body]).patterns
        except ValueError:
            return None
        if last.include is None or whole.include is None:
            return None
        placed = "/" in body.rstrip("/")
        depth = None if "**" in inner else inner.count("/") + 1
        return cls(body == text, last, whole if placed else None, depth)

    def matches(self, path: str) -> bool:
        """Whether it matches a path whose last component it matches."""
        if self.whole is None:
            return True
        if self.depth is not None and path.rstrip("/").count("/") + 1 != self.depth:
            return False
        return bool(self.whole.match_file(path))


class Level(NamedTuple):
    """The patterns that hold in a folder, the strongest ones first."""

    stack: tuple[Patterns, ...] = ()

    def ignores(self, path: str, name: str, *, is_folder: bool) -> bool:
        """Whether git ignores a file or folder, given its absolute path and its name."""
        if not self.stack:
            return False
        end = "/" if is_folder else ""
        for patterns in self.stack:
            decided = patterns.decide(path + end, name + end)
            if decided is not None:
                return decided
        return False

    def entered(self, folder: str, names: Iterable[str]) -> Level:
        """The patterns in a folder that is entered, given the names of what it contains."""
        found = set(names) & {".git", IGNORE_FILE}
        level = Level(_excluded(folder)) if ".git" in found else self
        if IGNORE_FILE in found:
            return Level((*_read(folder, os.path.join(folder, IGNORE_FILE)), *level.stack))
        return level


def level_above(folder: str) -> Level:
    """The patterns that hold in an absolute folder, without its own: those of the folders above it in its repository.

    None of them counts if they ignore the folder itself: it was given although it is ignored.
    """
    if os.path.lexists(os.path.join(folder, ".git")):
        return Level()
    above = os.path.dirname(folder)
    chain = [above]
    while not os.path.lexists(os.path.join(chain[-1], ".git")):
        parent = os.path.dirname(chain[-1])
        if parent == chain[-1]:
            return Level()  # not in a repository
        chain.append(parent)
    level = Level()
    for one, below in zip(reversed(chain), [*reversed(chain[:-1]), folder], strict=True):
        level = level.entered(one, [name for name in (".git", IGNORE_FILE) if os.path.lexists(os.path.join(one, name))])
        if level.ignores(below, os.path.basename(below), is_folder=True):
            return Level()
    return level


def _excluded(root: str) -> tuple[Patterns, ...]:
    """The patterns of `info/exclude` of a repository."""
    git = os.path.join(root, ".git")
    if os.path.isfile(git):  # a worktree or a submodule
        pointer = _text(git).partition("gitdir:")[2].strip()
        git = os.path.normpath(os.path.join(root, pointer))
        common = _text(os.path.join(git, "commondir")).strip()
        git = os.path.normpath(os.path.join(git, common))
    return _read(root, os.path.join(git, "info", "exclude"))


def _read(folder: str, file: str) -> tuple[Patterns, ...]:
    """The patterns of a file, if it has any."""
    lines = [line for line in _text(file).split("\n") if line.strip() and not line.startswith("#")]
    return (Patterns(folder, lines),) if lines else ()


def _text(file: str) -> str:
    """The content of a small file; empty if it cannot be read. As for git, that is no error."""
    try:
        if not os.path.isfile(file) or os.path.getsize(file) > MAX_SIZE:
            return ""
        with open(file, encoding="utf-8-sig", errors="surrogateescape", newline=None) as stream:
            return stream.read()
    except OSError:
        return ""
