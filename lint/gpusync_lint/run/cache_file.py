"""The format of the cache: lines of JSON that are parsed only when they are needed.

The first line of a file is the code that authenticates it (`run.cache_key`). The next lines are columns with a value
for each file. A line for each unit follows, and a line for each file with its findings. Lines that were not parsed are
written back unchanged.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from gpusync_lint.files.regular_file import read_regular
from gpusync_lint.model.findings import FileError, Finding, Fix, GraphBreak
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.operations import Operation, Template
from gpusync_lint.model.spans import Span
from gpusync_lint.model.units import Unit
from gpusync_lint.run.graph_rows import capture_row, place_row, read_capture, read_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from gpusync_lint.model.placement import Place

SCHEMA = "gpusync.cache/9"
MAX_SIZE = 500_000_000
"""The maximum size of a file of the cache, in bytes."""
_HEATS = tuple(Heat)
_CONFIDENCES = tuple(Confidence)
_REPEATED = (None, *Unit)
"""The units of findings, by which they are stored."""
_OPERATIONS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Operation)}
READ = 1 << len(_HEATS) * len(_CONFIDENCES)
"""The bit of a file whose text is needed even if it has not changed: it has allow comments, or is a notebook."""
_HEADER, _PATHS, _MTIMES, _SIZES, _UNITS, _SHOWN, _DIGESTS, _OUTLINES, _COMPONENTS, _DEPENDS, _ERRORS, _FIRST = range(
    12
)
"""The numbers of the first lines. The lines of the units begin at `_FIRST`, and are followed by those of the files."""


class DamagedError(ValueError):
    """The content of a document is invalid."""


class UnitRow(NamedTuple):
    """The properties of a unit. Files are referred to by their numbers in the document."""

    without_framework: list[int]
    uses_device: bool
    parse_only: bool
    dependencies: list[tuple[int, dict[str, str]]]
    """The sections of other files that it depends on: by file, the digests by section."""


class Document:
    """The stored results of a run."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self._parsed: dict[int, Any] = {}
        header = self._column(_HEADER, dict)
        try:
            self.identity = str(header["identity"])
            self.written = int(header["written"])
            self.stamps = [str(stamp) for stamp in header["stamps"]]
            """By component that is analyzed in parts, the stamp of its own document."""
            fits = header["schema"] == SCHEMA
        except (LookupError, TypeError, ValueError):
            raise DamagedError from None
        self.paths: list[str] = self._column(_PATHS, list)
        self.mtimes: list[int] = self._column(_MTIMES, list)
        self.sizes: list[int] = self._column(_SIZES, list)
        self.units: list[int] = self._column(_UNITS, list)
        """By file, the number of its unit; -1 if it cannot be read, or contains no Python."""
        self.shown: list[int] = self._column(_SHOWN, list)
        """By file, the bits of the kinds of findings that it has, and `READ`."""
        self.components: list[int] = self._column(_COMPONENTS, list)
        """By unit, the number of the component of which it is a part; -1 if it is not a part."""
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
    def read(cls, location: Path, key: bytes) -> Document:
        """Read a document. Raises OSError or DamagedError."""
        return cls(read_lines(location, key))

    @classmethod
    def new(cls, identity: str, paths: list[str], components: list[int], stamps: list[str]) -> Document:
        """A document without results."""
        header = {"schema": SCHEMA, "identity": identity, "written": 0, "stamps": stamps}
        count = len(paths)
        unknown = [-1] * count
        columns: tuple[object, ...] = (
            header, paths, unknown, unknown, unknown, [0] * count, [""] * count, [""] * count, components,
            [[] for _ in components], [],
        )  # fmt: skip
        return cls([*map(line, columns), *([b"[]"] * (len(components) + count))])

    def write(self, location: Path, key: bytes, now: int) -> None:
        """Write the document. Raises OSError."""
        self.written = now
        self._parsed[_HEADER] = {
            "schema": SCHEMA, "identity": self.identity, "written": now, "stamps": self.stamps,
        }  # fmt: skip
        for number, value in self._parsed.items():
            self._lines[number] = line(value)
        write_lines(location, key, self._lines)

    @property
    def digests(self) -> list[str]:
        """By file, the digest of its text; empty after an internal error."""
        column: list[str] = self._column(_DIGESTS, list, len(self.paths))
        return column

    @property
    def outlines(self) -> list[str]:
        """By file, the digest of what decides which files are analyzed together with it."""
        column: list[str] = self._column(_OUTLINES, list, len(self.paths))
        return column

    @property
    def dependencies(self) -> list[list[int]]:
        """By unit, the numbers of the other files that it depends on."""
        column: list[list[int]] = self._column(_DEPENDS, list, len(self.components))
        return column

    @property
    def errors(self) -> list[Any]:
        """The errors: number of the unit, path, line and message."""
        rows: list[Any] = self._column(_ERRORS, list)
        if not all(isinstance(row, list) and len(row) == 4 for row in rows):
            raise DamagedError
        return rows

    def own(self) -> list[list[int]]:
        """By unit, its files."""
        found: list[list[int]] = [[] for _ in self.components]
        for file, unit in enumerate(self.units):
            if unit >= 0:
                found[unit].append(file)
        return found

    def members(self) -> dict[int, list[int]]:
        """By component that is analyzed in parts, its units."""
        found: dict[int, list[int]] = {number: [] for number in range(len(self.stamps))}
        for unit, component in enumerate(self.components):
            if component >= 0:
                found[component].append(unit)
        return found

    def unit(self, number: int) -> UnitRow:
        """The properties of a unit. Raises DamagedError."""
        try:
            without, device, parse_only, depends = json.loads(self._lines[_FIRST + number])
            dependencies = [(int(file), dict(digests)) for file, digests in depends]
            row = UnitRow(without, bool(device), bool(parse_only), dependencies)
            for file in (*row.without_framework, *(file for file, _ in row.dependencies)):
                self.paths[file]
        except (ValueError, TypeError, LookupError, RecursionError):
            raise DamagedError from None
        return row

    def set_unit(self, number: int, row: UnitRow) -> None:
        """Set the properties of a unit."""
        values = [row.without_framework, int(row.uses_device), int(row.parse_only), row.dependencies]
        self._lines[_FIRST + number] = line(values)
        self.dependencies[number] = [file for file, _ in row.dependencies]

    def set_errors(self, number: int, errors: Iterable[FileError]) -> None:
        """Set the errors of a unit."""
        kept = [row for row in self.errors if row[0] != number]
        self.errors[:] = kept + [[number, one.path, one.line, one.message] for one in errors]

    def errors_of(self, number: int | None = None) -> list[FileError]:
        """The errors of a unit, or of all units."""
        return [FileError(path, at, text) for unit, path, at, text in self.errors if number is None or unit == number]

    def set_findings(self, file: int, placed: Iterable[tuple[Finding, Place | None]]) -> None:
        """Set the findings of a file, each with its place if the file belongs to a part of a component."""
        path = self.paths[file]
        shown = self.shown[file] & READ
        rows = []
        for one, place in placed:
            shown |= bit(one.heat, one.confidence)
            rows.append(_row(one, path, place))
        self._lines[self._line_of(file)] = line(rows)
        self.shown[file] = shown

    def copy_file(self, file: int, other: Document, number: int) -> None:
        """Copy the findings and the digest of a file that has not changed, which has a number in another document."""
        self._lines[self._line_of(file)] = other._lines[other._line_of(number)]
        self.shown[file] = other.shown[number]
        self.digests[file] = other.digests[number]

    def findings(self, files: Sequence[int], wanted: int) -> Iterator[Finding]:
        """The findings in files: those of the `wanted` kinds, and all findings in files with the bit `READ`."""
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
        """The findings in a file of a part of a component, each with its place."""
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
    """The bit for findings of a heat and a confidence."""
    return 1 << heat.rank * len(_CONFIDENCES) + confidence.rank


def bits(wanted: Callable[[Heat, Confidence], bool]) -> int:
    """The bits for findings of all wanted heats and confidences."""
    return sum(bit(heat, confidence) for heat in _HEATS for confidence in _CONFIDENCES if wanted(heat, confidence))


def read_lines(location: Path, key: bytes) -> list[bytes]:
    """The lines of a file. Raises OSError or DamagedError, which is also raised if it was written with another key."""
    code, _, body = read_regular(location, MAX_SIZE, follow=False).partition(b"\n")
    if code != authentication_code(location.name, key, body):
        raise DamagedError
    lines = body.split(b"\n")
    if lines.pop():
        raise DamagedError
    return lines


def write_lines(location: Path, key: bytes, lines: Sequence[bytes]) -> None:
    """Write lines to a file. Raises OSError."""
    from gpusync_lint.files.atomic_write import replace_file

    body = b"\n".join([*lines, b""])
    replace_file(location, authentication_code(location.name, key, body) + b"\n" + body)


def authentication_code(name: str, key: bytes, body: bytes) -> bytes:
    """The code that authenticates the content of a file, and that it belongs to its name."""
    from hashlib import blake2b

    code = blake2b(name.encode(), key=key, digest_size=24)
    code.update(b"\n")
    code.update(body)
    return code.hexdigest().encode()


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
    """The values of a finding, without its path. The first two are the ranks of heat and confidence."""
    fix = one.fix
    return [
        one.heat.rank, one.confidence.rank, one.code, one.name,
        one.span, one.message, one.remedy, one.framework, one.key.removeprefix(path),
        None if fix is None else _fix_row(fix), _REPEATED.index(one.unit), capture_row(one.capture),
        None if one.graph_break is None else astuple(one.graph_break), place_row(place),
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
    """A span is stored as four numbers, a template as its text and its spans."""
    if not isinstance(value, list):
        return value
    if isinstance(value[0], str):
        text, parts = value
        return Template(text, tuple(Span(*part) for part in parts))
    return Span(*value)


def _finding(path: str, row: list[Any]) -> Finding:
    heat, confidence, code, name, span, message, remedy, framework, key, fix, unit, capture, broken, _ = row
    return Finding(
        code, name, path, Span(*span), message, remedy, _HEATS[heat], _CONFIDENCES[confidence], framework, path + key,
        None if fix is None else _fix(fix), unit=_REPEATED[unit], capture=read_capture(capture),
        graph_break=None if broken is None else GraphBreak(*broken),
    )  # fmt: skip
