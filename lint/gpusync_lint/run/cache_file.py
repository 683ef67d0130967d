"""The document that the cache keeps of a run: lines of JSON, of which only those are read that somebody asks for.

First comes what is known of all files, column by column, then of each unit a line, then of each file a line with its
findings. Lines that nobody has asked for are written back as they are.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from gpusync_lint.model.findings import FileError, Finding, Fix
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.operations import Operation, Template
from gpusync_lint.model.spans import Span
from gpusync_lint.run.graph_rows import place_row, read_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from gpusync_lint.model.placement import Place

SCHEMA = "gpusync.cache/7"
_HEATS = tuple(Heat)
_CONFIDENCES = tuple(Confidence)
_OPERATIONS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Operation)}
READ = 1 << len(_HEATS) * len(_CONFIDENCES)
"""Marks a file whose text is needed even when nothing has changed: it has allow comments, or is a notebook."""
_HEADER, _PATHS, _MTIMES, _SIZES, _UNITS, _SHOWN, _DIGESTS, _OUTLINES, _COMPONENTS, _DEPENDS, _ERRORS, _FIRST = range(
    12
)
"""The lines of the document; those of the units follow, and then those of the files."""


class DamagedError(ValueError):
    """A document that does not hold what it should."""


class UnitRow(NamedTuple):
    """What is known of a unit; files go by their numbers in the document."""

    without_framework: list[int]
    uses_device: bool
    parse_only: bool
    dependencies: list[tuple[int, dict[str, str]]]
    """What had a say of other files: digests by label."""


class Document:
    """What is known of the files of a run."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self._parsed: dict[int, Any] = {}
        header = self._column(_HEADER, dict)
        try:
            self.identity = str(header["identity"])
            self.written = int(header["written"])
            self.stamps = [str(stamp) for stamp in header["stamps"]]
            """Of each component that was cut into parts, what the document of its runs begins with."""
            fits = header["schema"] == SCHEMA
        except (LookupError, TypeError, ValueError):
            raise DamagedError from None
        self.paths: list[str] = self._column(_PATHS, list)
        self.mtimes: list[int] = self._column(_MTIMES, list)
        self.sizes: list[int] = self._column(_SIZES, list)
        self.units: list[int] = self._column(_UNITS, list)
        """Of each file the number of its unit; -1 for one that cannot be read, or holds no Python."""
        self.shown: list[int] = self._column(_SHOWN, list)
        """Of each file which kinds of findings it has, as `bit` tells them, and READ."""
        self.components: list[int] = self._column(_COMPONENTS, list)
        """Of each unit that is a part, the number of its component; -1 for a unit that is whole."""
        files = len(self.paths)
        columns = (self.mtimes, self.sizes, self.units, self.shown)
        fits = fits and all(len(column) == files for column in columns)
        fits = fits and len(lines) == _FIRST + len(self.components) + files
        try:
            fits = fits and all(-1 <= unit < len(self.components) for unit in set(self.units))
            fits = fits and all(-1 <= number < len(self.stamps) for number in set(self.components))
        except TypeError:
            raise DamagedError from None
        if not fits:
            raise DamagedError

    @classmethod
    def read(cls, location: Path) -> Document:
        """Raises OSError or DamagedError."""
        return cls(read_lines(location))

    @classmethod
    def new(cls, identity: str, paths: list[str], components: list[int], stamps: list[str]) -> Document:
        """A document of files of which nothing is known yet."""
        header = {"schema": SCHEMA, "identity": identity, "written": 0, "stamps": stamps}
        count = len(paths)
        unknown = [-1] * count
        columns: tuple[object, ...] = (
            header, paths, unknown, unknown, unknown, [0] * count, [""] * count, [""] * count, components,
            [[] for _ in components], [],
        )  # fmt: skip
        return cls([*map(line, columns), *([b"[]"] * (len(components) + count))])

    def write(self, location: Path, now: int) -> None:
        """Raises OSError."""
        self.written = now
        self._parsed[_HEADER] = {
            "schema": SCHEMA, "identity": self.identity, "written": now, "stamps": self.stamps,
        }  # fmt: skip
        for number, value in self._parsed.items():
            self._lines[number] = line(value)
        write_lines(location, self._lines)

    @property
    def digests(self) -> list[str]:
        """Of each file a digest of its text."""
        column: list[str] = self._column(_DIGESTS, list, len(self.paths))
        return column

    @property
    def outlines(self) -> list[str]:
        """Of each file a digest of what decides which files are analyzed together."""
        column: list[str] = self._column(_OUTLINES, list, len(self.paths))
        return column

    @property
    def dependencies(self) -> list[list[int]]:
        """Of each unit the numbers of the other files that had a say in it."""
        column: list[list[int]] = self._column(_DEPENDS, list, len(self.components))
        return column

    @property
    def errors(self) -> list[Any]:
        """Of each error the number of its unit, path, line and message."""
        rows: list[Any] = self._column(_ERRORS, list)
        if not all(isinstance(row, list) and len(row) == 4 for row in rows):
            raise DamagedError
        return rows

    def own(self) -> list[list[int]]:
        """The files of each unit."""
        found: list[list[int]] = [[] for _ in self.components]
        for file, unit in enumerate(self.units):
            if unit >= 0:
                found[unit].append(file)
        return found

    def members(self) -> dict[int, list[int]]:
        """The parts of each component that was cut."""
        found: dict[int, list[int]] = {number: [] for number in range(len(self.stamps))}
        for unit, component in enumerate(self.components):
            if component >= 0:
                found[component].append(unit)
        return found

    def unit(self, number: int) -> UnitRow:
        """What is known of one unit."""
        try:
            idle, device, plain, depends = json.loads(self._lines[_FIRST + number])
            row = UnitRow(idle, bool(device), bool(plain), [(int(file), dict(labels)) for file, labels in depends])
            for file in (*row.without_framework, *(file for file, _ in row.dependencies)):
                self.paths[file]
        except (ValueError, TypeError, LookupError, RecursionError):
            raise DamagedError from None
        return row

    def set_unit(self, number: int, row: UnitRow) -> None:
        """Note what is known of a unit."""
        told = [row.without_framework, int(row.uses_device), int(row.parse_only), row.dependencies]
        self._lines[_FIRST + number] = line(told)
        self.dependencies[number] = [file for file, _ in row.dependencies]

    def set_errors(self, number: int, errors: Iterable[FileError]) -> None:
        """Note the errors of a unit."""
        kept = [row for row in self.errors if row[0] != number]
        self.errors[:] = kept + [[number, one.path, one.line, one.message] for one in errors]

    def errors_of(self, number: int | None = None) -> list[FileError]:
        """The errors of a unit, or of all."""
        return [FileError(path, at, text) for unit, path, at, text in self.errors if number is None or unit == number]

    def set_findings(self, file: int, placed: Iterable[tuple[Finding, Place | None]]) -> None:
        """Note what was found in a file, each finding with its place if it is one of a part."""
        path = self.paths[file]
        shown = self.shown[file] & READ
        rows = []
        for one, place in placed:
            shown |= bit(one.heat, one.confidence)
            rows.append(_row(one, path, place))
        self._lines[self._line_of(file)] = line(rows)
        self.shown[file] = shown

    def take_over(self, file: int, other: Document, its: int) -> None:
        """Note what another document says of a file that is as it was."""
        self._lines[self._line_of(file)] = other._lines[other._line_of(its)]
        self.shown[file] = other.shown[its]
        self.digests[file] = other.digests[its]

    def findings(self, files: Sequence[int], wanted: int) -> Iterator[Finding]:
        """The findings in files: those of the kinds that are wanted, and all in files that are to be read."""
        for file, rows in zip(files, self._rows(files), strict=True):
            path = self.paths[file]
            every = self.shown[file] & READ
            try:
                for row in rows:
                    if every or wanted >> (row[0] * len(_CONFIDENCES) + row[1]) & 1:
                        yield _finding(path, row)
            except (ValueError, TypeError, LookupError):
                raise DamagedError from None

    def placed(self, file: int) -> list[tuple[Finding, Place | None]]:
        """The findings in a file of a part, each with its place."""
        (rows,) = self._rows([file])
        path = self.paths[file]
        try:
            return [(_finding(path, row), read_place(row[-1], path)) for row in rows]
        except (ValueError, TypeError, LookupError):
            raise DamagedError from None

    def _rows(self, files: Sequence[int]) -> list[Any]:
        joined = b",".join([self._lines[self._line_of(file)] for file in files])
        rows: list[Any] = parsed(b"[" + joined + b"]", list)
        if len(rows) != len(files):
            raise DamagedError
        return rows

    def _line_of(self, file: int) -> int:
        return _FIRST + len(self.components) + file

    def _column(self, number: int, kind: type, length: int | None = None) -> Any:
        value = self._parsed.get(number)
        if value is None:
            if number >= len(self._lines):
                raise DamagedError
            value = self._parsed[number] = parsed(self._lines[number], kind)
            if length is not None and len(value) != length:
                raise DamagedError
        return value


def bit(heat: Heat, confidence: Confidence) -> int:
    """Stands for the findings of a heat and a confidence."""
    return 1 << heat.rank * len(_CONFIDENCES) + confidence.rank


def bits(wanted: Callable[[Heat, Confidence], bool]) -> int:
    """Stands for the findings of all heats and confidences that are wanted."""
    return sum(bit(heat, confidence) for heat in _HEATS for confidence in _CONFIDENCES if wanted(heat, confidence))


def read_lines(location: Path) -> list[bytes]:
    """The lines of a file. Raises OSError or DamagedError."""
    lines = location.read_bytes().split(b"\n")
    if lines.pop():
        raise DamagedError
    return lines


def write_lines(location: Path, lines: Sequence[bytes]) -> None:
    """The reverse of `read_lines`. Raises OSError."""
    from gpusync_lint.files.atomic_write import replace_file

    replace_file(location, b"\n".join([*lines, b""]))


def line(value: object) -> bytes:
    """A value as JSON, without line ends."""
    return json.dumps(value, separators=(",", ":")).encode()


def parsed(data: bytes, kind: type) -> Any:
    """A value from JSON. Raises DamagedError."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise DamagedError from None
    if type(value) is not kind:
        raise DamagedError
    return value


def _row(one: Finding, path: str, place: Place | None) -> list[Any]:
    """A finding without its path, heat and confidence first, as ranks; its place comes last."""
    fix = one.fix
    return [
        one.heat.rank, one.confidence.rank, one.code, one.name,
        one.span, one.message, one.remedy, one.framework, one.key.removeprefix(path),
        None if fix is None else _fix_row(fix), place_row(place),
    ]  # fmt: skip


def _fix_row(fix: Fix) -> list[Any]:
    rows = [[type(one).__name__, *astuple(one)] for one in fix.operations]
    return [fix.title, rows, fix.safe, fix.hazard]


def _fix(row: list[Any]) -> Fix:
    title, rows, safe, hazard = row
    return Fix(title, tuple(_operation(*row) for row in rows), safe, hazard)


def _operation(kind: str, *fields: Any) -> Operation:
    operation: Operation = _OPERATIONS[kind](*map(_field, fields))
    return operation


def _field(value: Any) -> Any:
    """A range is four numbers, a template begins with its text."""
    if not isinstance(value, list):
        return value
    if isinstance(value[0], str):
        text, parts = value
        return Template(text, tuple(Span(*part) for part in parts))
    return Span(*value)


def _finding(path: str, row: list[Any]) -> Finding:
    heat, confidence, code, name, span, message, remedy, framework, key, fix, _ = row
    return Finding(
        code, name, path, Span(*span), message, remedy, _HEATS[heat], _CONFIDENCES[confidence], framework, path + key,
        None if fix is None else _fix(fix),
    )  # fmt: skip
