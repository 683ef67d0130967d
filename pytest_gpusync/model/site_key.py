"""The key of a site: identifies a line that synced across runs, without its number, so edits above it change nothing.

Baselines, comparisons of runs and histories all match sites by this key.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE_LIMIT: Final = 400
"""Longest source text of a site, in characters: a generated line may be a file."""

_SIMILAR: Final = 0.8
"""Least similarity of two versions of a line, by difflib. A line that changed more is one that is gone and a new one,
which hides nothing."""

_PAIRS: Final = 400
"""Most pairs of lines that are compared: in a function of which so much changed, no line is the same."""

_PACKAGES: Final = ("site-packages", "dist-packages")


class Key(NamedTuple):
    """Identifies a line that synced."""

    path: str
    """Relative to the root of the project; for an installed package, starting at site-packages."""
    function: str
    kind: str
    source: str
    """Source text of the line, see :func:`normalized`; empty if it is not known."""

    def __str__(self) -> str:
        return f"{self.path} in {self.function}: {self.source or self.kind}"


class Site(NamedTuple):
    """What tells whether two lines are versions of one."""

    source: str
    code: str | None
    """The linter's rule."""


def normalized(source: str) -> str:
    """Return the text of a line as in a key: white space reduced to single blanks, up to :data:`SOURCE_LIMIT`."""
    return " ".join(source.split())[:SOURCE_LIMIT]


def portable(path: str) -> str:
    """Return a path with forward slashes; that of an installed package from its site-packages on."""
    parts = PurePosixPath(path.replace("\\", "/")).parts
    for name in _PACKAGES:
        if name in parts:
            parts = parts[parts.index(name) :]
    return PurePosixPath(*parts).as_posix()


def edits(gone: Sequence[Site], new: Sequence[Site]) -> list[tuple[int, int]]:
    """Return which lines that are gone from a function are the earlier text of which new ones, as pairs of indices.

    They have the same rule, and similar text; the most similar are paired first.

    Args:
        gone: sites of one path, function and kind.
        new: sites of the same.
    """
    if len(gone) * len(new) > _PAIRS:
        return []
    candidates = []
    for number, (source, code) in enumerate(gone):
        for other, (source_after, code_after) in enumerate(new):
            if code == code_after and source and source_after:
                matcher = SequenceMatcher(None, source[:SOURCE_LIMIT], source_after[:SOURCE_LIMIT], autojunk=False)
                if (similarity := matcher.ratio()) >= _SIMILAR:
                    candidates.append((-similarity, number, other))
    found: dict[int, int] = {}
    for _, number, other in sorted(candidates):
        if number not in found and other not in found.values():
            found[number] = other
    return list(found.items())
