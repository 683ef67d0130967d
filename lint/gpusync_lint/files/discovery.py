"""Finding the Python files and notebooks to lint, and decoding them."""

from __future__ import annotations

import codecs
import io
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.files.atomic_write import TEMPORARY
from gpusync_lint.files.gitignore import Level, level_above
from gpusync_lint.files.regular_file import MAX_DOCUMENT, MAX_SOURCE, TooLargeError, read_regular
from gpusync_lint.model.findings import FileError, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusync_lint.files.notebook import Notebook

SKIPPED_FOLDERS = frozenset({"node_modules", "build", "dist", "__pycache__", "site-packages"})
"""Folders that are never searched. Hidden folders and virtual environments (those with a pyvenv.cfg) are not either."""

SUFFIX = ".ipynb"
"""The suffix of notebooks."""

SUFFIXES = (".py", ".pyw", SUFFIX)

_ENVIRONMENT = "pyvenv.cfg"
"""The file that marks a virtual environment."""


class Listed(NamedTuple):
    """A file to lint that has not been read yet."""

    path: str
    """As displayed."""
    at: str
    """The absolute path."""
    named: bool
    """Whether the user gave the file itself, rather than a folder above it."""
    size: int
    """In bytes; -1 if it is not known."""
    mtime: int
    """The time of its last change, in nanoseconds."""

    @property
    def location(self) -> Path:
        """The absolute path."""
        return Path(self.at)

    @property
    def notebook(self) -> bool:
        """Whether it is read as a notebook."""
        return self.at.endswith(SUFFIX)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to lint, with everything that is needed to write it back with nothing changed but a fix."""

    source: Source
    location: Path
    """The absolute path; for standard input, that of the file name it was given."""
    raw: str
    """The decoded text with its original line ends; `source.text` has `\\n` only. For a notebook, its joined source."""
    encoding: str
    bom: bool
    stdin: bool = False
    notebook: Notebook | None = None
    named: bool = False
    """Whether the user gave the file itself, rather than a folder above it: the rest of its project may be missing."""


@dataclass(frozen=True, slots=True)
class Found:
    """The files found for the given paths."""

    files: tuple[SourceFile, ...]
    errors: tuple[FileError, ...]
    excluded: int
    """The number of given paths that the configuration excludes."""
    empty: tuple[str, ...]
    """Given folders without a Python file or notebook."""
    folders: tuple[Path, ...] = ()
    """The given folders, as absolute paths."""
    unread: tuple[Listed, ...] = ()
    """Files that were not read because they did not have to be."""
    abandoned: tuple[str, ...] = ()
    """Temporary files in the folders, which a killed run that changed files has left; absolute paths."""


def display_path(path: Path, cwd: Path) -> str:
    """A path as displayed: relative to the working directory if it is below it, with forward slashes."""
    try:
        return path.relative_to(cwd).as_posix()
    except ValueError:
        return path.as_posix()


def discover(
    paths: Sequence[str],
    *,
    cwd: Path,
    excludes: Callable[[str], bool],
    stdin: Callable[[], bytes],
    stdin_filename: str | None = None,
    respect_gitignore: bool = True,
    unneeded: Callable[[Sequence[Listed]], frozenset[str]] = lambda listed: frozenset(),
) -> Found:
    """Find and read the Python files and notebooks among `paths` and below the folders among them.

    Other files, and notebooks in other languages, are ignored, so that a hook can be given any list of files. A file
    that does not exist or cannot be read becomes an error; the others are still returned. A file that is reached twice
    is read once. Files that git ignores are left out below folders, unless `respect_gitignore` is False; a path that is
    given is linted in any case. `unneeded` gets the files that were found, and returns the paths of those that need not
    be read.
    """
    walk = _Walk(cwd, excludes, respect_gitignore=respect_gitignore)
    for given in paths:
        if given == "-":
            walk.add_stdin(stdin(), stdin_filename)
        else:
            walk.add(given)
    listed = sorted(walk.listed.values(), key=lambda one: one.path)
    skipped = unneeded(listed)
    for one in listed:
        if one.path not in skipped:
            walk.read(one)
    return Found(
        tuple(sorted(walk.files, key=lambda one: one.source.path)),
        tuple(walk.errors),
        walk.excluded,
        tuple(walk.empty),
        tuple(walk.folders),
        tuple(one for one in listed if one.path in skipped),
        tuple(walk.abandoned),
    )


def read(listed: Listed) -> SourceFile | None:
    """Read one file; None if it cannot be read or contains nothing to lint."""
    walk = _Walk(Path(), lambda at: False)
    walk.read(listed)
    return walk.files[0] if walk.files else None


def in_memory(listed: Listed, text: str) -> tuple[SourceFile | None, list[FileError]]:
    """A file with the text that an editor holds, and the errors in it; None if it cannot be linted."""
    if listed.notebook:
        walk = _Walk(Path(), lambda at: False)
        walk._decode(text.encode("utf-8", "replace"), listed.path, listed.location, stdin=False, named=listed.named)
        return (walk.files[0] if walk.files else None), walk.errors
    raw = text.removeprefix("\ufeff")
    normalized = raw.replace("\r\n", "\n").replace("\r", "\n")
    return SourceFile(Source(listed.path, normalized), listed.location, raw, "utf-8", False, named=listed.named), []


def enters(folder: Path, excludes: Callable[[str], bool]) -> bool:
    """Whether a folder is searched for files."""
    return _may_enter(folder.name) and not (folder / _ENVIRONMENT).exists() and not excludes(str(folder))


def _may_enter(name: str) -> bool:
    return not (name.startswith(".") or name in SKIPPED_FOLDERS or name.endswith(".egg-info"))


class _Walk:
    def __init__(self, cwd: Path, excludes: Callable[[str], bool], *, respect_gitignore: bool = False) -> None:
        self.cwd = cwd
        self.excludes = excludes
        self.respect_gitignore = respect_gitignore
        self.files: list[SourceFile] = []
        self.listed: dict[str, Listed] = {}
        """The files by real path, so that no file is read twice."""
        self._stdin: str | None = None
        """The real path of the file whose text standard input is."""
        self.errors: list[FileError] = []
        self.excluded = 0
        self.empty: list[str] = []
        self.folders: list[Path] = []
        self.abandoned: list[str] = []

    def add(self, given: str) -> None:
        path = Path(os.path.normpath(self.cwd / given))
        if self.excludes(str(path)):
            self.excluded += 1
        elif path.is_dir():
            self.folders.append(path)
            if not self._add_below(path):
                self.empty.append(given)
        elif not path.exists():
            self.errors.append(FileError(given, None, "no such file or folder"))
        elif path.suffix in SUFFIXES or (not path.suffix and path.is_file() and _has_python_shebang(path)):
            self._list(os.path.realpath(path), display_path(path, self.cwd), str(path), path.stat, named=True)

    def _add_below(self, top: Path) -> bool:
        """List the files below a folder, and return whether there are any. Paths are joined as strings, for speed."""
        above = display_path(top, self.cwd)
        reached = False
        ignored = level_above(str(top)) if self.respect_gitignore else Level()
        folders = [(str(top), os.path.realpath(top), "" if above == "." else f"{above}/", ignored)]
        while folders:
            here, real, above, ignored = folders.pop()
            at, real = (name if name.endswith(os.sep) else name + os.sep for name in (here, real))
            entries = self._entries(here, above, is_top=here == str(top))
            if self.respect_gitignore:
                ignored = ignored.entered(here, [entry.name for entry in entries])
            for entry in entries:
                name = entry.name
                if entry.is_dir():
                    if (
                        _may_enter(name)
                        and not entry.is_symlink()
                        and not self.excludes(at + name)
                        and not ignored.ignores(at + name, name, is_folder=True)
                    ):
                        folders.append((at + name, real + name, f"{above}{name}/", ignored))
                elif name.startswith("."):
                    if name.endswith(".gpusync.tmp") and TEMPORARY.fullmatch(name):
                        self.abandoned.append(at + name)
                elif (
                    name.endswith(SUFFIXES)
                    and not self.excludes(at + name)
                    and not ignored.ignores(at + name, name, is_folder=False)
                ):
                    reached = True
                    target = os.path.realpath(at + name) if entry.is_symlink() else real + name
                    self._list(target, above + name, at + name, entry.stat, named=False)
        return reached

    def _entries(self, folder: str, displayed: str, *, is_top: bool) -> list[os.DirEntry[str]]:
        """The entries of a folder; none if it is a virtual environment, unless it was given."""
        try:
            with os.scandir(folder) as inside:
                entries = list(inside)
        except OSError as error:
            self.errors.append(FileError(displayed[:-1] or ".", None, f"cannot be read: {error.strerror}"))
            return []
        is_environment = not is_top and any(entry.name == _ENVIRONMENT for entry in entries)
        return [] if is_environment else entries

    def _list(self, real: str, path: str, at: str, status_of: Callable[[], os.stat_result], *, named: bool) -> None:
        if real == self._stdin:
            return
        if real in self.listed:
            if not named:
                self.listed[real] = self.listed[real]._replace(named=False)
            return
        try:
            status = status_of()
        except OSError:
            self.listed[real] = Listed(path, at, named, -1, 0)
        else:
            self.listed[real] = Listed(path, at, named, status.st_size, status.st_mtime_ns)

    def read(self, listed: Listed) -> None:
        """Read a file that was listed."""
        try:
            data = read_regular(listed.at, MAX_DOCUMENT if listed.notebook else MAX_SOURCE)
        except TooLargeError as error:
            message = f"not read, because it is {error.strerror}; to leave it out, add it to exclude in [tool.gpusync]"
            self.errors.append(FileError(listed.path, None, message))
            return
        except OSError as error:
            self.errors.append(FileError(listed.path, None, f"cannot be read: {error.strerror or error}"))
            return
        self._decode(data, listed.path, listed.location, stdin=False, named=listed.named)

    def add_stdin(self, data: bytes, filename: str | None) -> None:
        path = Path(os.path.normpath(self.cwd / (filename or "<stdin>")))
        if filename is not None and self.excludes(str(path)):
            self.excluded += 1
            return
        self._stdin = os.path.realpath(path)
        self.listed.pop(self._stdin, None)
        self._decode(data, display_path(path, self.cwd), path, stdin=True, named=True)

    def _decode(self, data: bytes, name: str, path: Path, *, stdin: bool, named: bool) -> None:
        try:
            file = self._notebook(data, name, path) if path.suffix == SUFFIX else decode(data, name, path)
            if file is not None:
                self.files.append(replace(file, stdin=stdin, named=named))
        except DecodeError as error:
            self.errors.append(FileError(name, error.line, f"cannot be decoded: {error}"))
        except (RecursionError, MemoryError):
            self.errors.append(FileError(name, None, "nested too deeply to read"))

    def _notebook(self, data: bytes, name: str, path: Path) -> SourceFile | None:
        """Read a notebook; None if it is not a notebook, or in another language."""
        from gpusync_lint.files.notebook import Notebook, NotebookError, OtherLanguageError

        bom = data.startswith(codecs.BOM_UTF8)
        try:
            notebook = Notebook(_decoded(data[len(codecs.BOM_UTF8) * bom :], "utf-8"))
        except OtherLanguageError:
            return None
        except NotebookError as error:
            self.errors.append(FileError(name, error.line, str(error)))
            return None
        self.errors += [FileError(name, one.line, one.message, one.cell) for one in notebook.errors]
        return SourceFile(Source(name, notebook.text), path, notebook.source, "utf-8", bom, notebook=notebook)


class DecodeError(ValueError):
    """The bytes of a file are not text. The message is one line for the user."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def decode(data: bytes, name: str, path: Path) -> SourceFile:
    """Decode a file as Python does: by its byte-order mark or encoding line, else as UTF-8.

    Raises:
        DecodeError: the encoding is unknown or cannot be used for source code, or the bytes do not fit it.
    """
    bom = data.startswith(codecs.BOM_UTF8)
    encoding = "utf-8"
    if any(b"coding" in first for first in data.split(b"\n", 2)[:2]):
        import tokenize

        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        except SyntaxError as error:
            # Python raises this for an unknown encoding, and for a first line that is not UTF-8, which has a position.
            _decoded(data, "utf-8")
            raise DecodeError(error.msg) from None
    raw = _decoded(data[len(codecs.BOM_UTF8) :], "utf-8") if bom else _decoded(data, encoding)
    text = raw.replace("\r\n", "\n").replace("\r", "\n") if "\r" in raw else raw
    return SourceFile(Source(name, text), path, raw, "utf-8" if bom else encoding, bom)


_NOT_OF_SOURCE = frozenset({"idna", "punycode", "undefined"})
"""Codecs that take quadratic time, or exist only to raise errors. No source code is written in them."""


def _decoded(data: bytes, encoding: str) -> str:
    """Decode bytes. Raises DecodeError, whatever the codec raises."""
    try:
        if encoding not in ("utf-8", "utf-8-sig") and codecs.lookup(encoding).name in _NOT_OF_SOURCE:
            raise DecodeError(f"{encoding} is not an encoding of source code")
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DecodeError(f"byte {data[error.start]:#04x} is not {error.encoding}", line) from None
    except DecodeError:
        raise
    except Exception as error:  # a codec may raise anything: it may not be one of text, or come from another package
        raise DecodeError(f"{encoding}: {' '.join(str(error).split())}") from None


def _has_python_shebang(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            first = file.readline(200)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" in first
