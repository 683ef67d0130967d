"""The source files that a report shows.

The report of a run that this process measured shows any file: its paths are those of code that ran. A report of a run
file is restricted to Python files below the working directory, see :func:`restricted`: whoever wrote the file could
otherwise have any file of this machine printed, such as a key or a password.
"""

from __future__ import annotations

import linecache
import tokenize
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpusync_lint.files.regular_file import MAX_SOURCE, read_regular

if TYPE_CHECKING:
    from collections.abc import Iterator

OUTSIDE: Final = "source not read: not a Python file below the working directory"


class Restriction:
    """The folder below which sources are read, and the files that were refused because of it."""

    def __init__(self, folder: Path) -> None:
        """Take the folder."""
        self.folder = folder.resolve()
        self.refused: dict[str, None] = {}
        """The paths of existing files that were not read, as the run file names them."""

    def allows(self, path: Path) -> bool:
        """Return whether a resolved path may be read."""
        return path.suffix in (".py", ".pyw") and path.is_relative_to(self.folder)


_restriction: ContextVar[Restriction | None] = ContextVar("gpusync_sources", default=None)


@contextmanager
def restricted(folder: Path) -> Iterator[Restriction]:
    """Read only Python files below a folder in this block, after all symbolic links are resolved."""
    token = _restriction.set(restriction := Restriction(folder))
    try:
        yield restriction
    finally:
        _restriction.reset(token)


def locate(path: str) -> Path | None:
    """Return the resolved path of a source file; None if it is not a file, or must not be read."""
    if path.startswith("<"):  # code without a file, such as <stdin>
        return None
    try:
        found = Path(path).resolve()
        if not found.is_file():
            return None
    except (OSError, ValueError, RuntimeError):  # too long, with a null character, a loop of links
        return None
    restriction = _restriction.get()
    if restriction is not None and not restriction.allows(found):
        restriction.refused[path] = None
        return None
    return found


def is_refused(path: str) -> bool:
    """Return whether a file exists but must not be read."""
    restriction = _restriction.get()
    return locate(path) is None and restriction is not None and path in restriction.refused


def line_of(path: str, line: int) -> str:
    """Return the text of a line, without its end; empty if it cannot be read."""
    found = locate(path)
    if found is not None:
        lines = _lines(found)
        return lines[line - 1] if 0 < line <= len(lines) else ""
    if _restriction.get() is None and (path.startswith("<") or Path(path).is_absolute()):
        return linecache.getline(path, line).rstrip()  # a notebook's cell or a doctest, which has no file
    return ""


def lines_around(path: str, line: int, distance: int) -> list[tuple[int, str]]:
    """Return the numbers and texts of the lines up to `distance` before and after a line; empty without a file."""
    found = locate(path)
    lines = _lines(found) if found is not None else []
    if not 0 < line <= len(lines):
        return []
    first = max(line - distance, 1)
    return list(enumerate(lines[first - 1 : line + distance], start=first))


def read_source(path: Path) -> str:
    """Return the text of a Python file, decoded as Python does; what cannot be decoded is replaced.

    Raises:
        OSError: it is not a regular file, is too large, or cannot be read.
    """
    data = read_regular(path, MAX_SOURCE)
    encoding = "utf-8"
    with suppress(SyntaxError):
        encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
    try:
        return data.decode(encoding, "replace")
    except (LookupError, ValueError):  # not a text encoding, or one that cannot replace
        return data.decode("utf-8", "replace")


def _lines(path: Path) -> list[str]:
    try:
        status = path.stat()
        return _lines_of_version(path, status.st_mtime_ns, status.st_size)
    except OSError:
        return []


@lru_cache(maxsize=256)
def _lines_of_version(path: Path, _changed: int, _size: int) -> list[str]:
    """Return the lines of a file; an edited file has another key."""
    return [line.rstrip() for line in StringIO(read_source(path), newline=None)]
