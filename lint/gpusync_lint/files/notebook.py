"""Jupyter notebooks, as one Python source that maps back to cells and to the file.

The code cells are joined in order, with a blank line and a comment line between them, so that they share one scope. A
change of the joined source is written back into the ``source`` of the cells that it affects; no other byte of the file
changes. Cells are numbered from 1, including those without code.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpusync_lint.files.ipython_magics import mask
from gpusync_lint.model.spans import Edit, Span
from gpusync_lint.syntax.parsing import parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

OLDEST_FORMAT = 4
"""The oldest supported format; in older ones, cells are inside worksheets."""

_BLANK = re.compile(r"[ \t\n\r]*")
_ESCAPE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL)
_UNICODE_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u(?!00[0-7])[0-9a-fA-F]{4}")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")


def _integer(digits: str) -> float:
    """An integer in a notebook. Python refuses to convert integers of thousands of digits."""
    return int(digits) if len(digits) < 20 else float(digits)


_DECODER = json.JSONDecoder(parse_int=_integer)


class NotebookError(ValueError):
    """A file is not a notebook. The message is one line for the user."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class OtherLanguageError(ValueError):
    """The cells of a notebook are not Python."""


@dataclass(frozen=True, slots=True)
class _String:
    """A string in the JSON document."""

    start: int
    """The offset of the opening quote."""
    end: int
    """The offset after the closing quote."""
    value: str


@dataclass(frozen=True, slots=True)
class _Cell:
    number: int
    start: int
    end: int
    """The end of the value of ``source`` in the document; `start` is its beginning."""
    strings: tuple[_String, ...]
    listed: bool
    """Whether the value is a list of strings, rather than one string."""

    @property
    def source(self) -> str:
        return "".join(one.value for one in self.strings)


@dataclass(frozen=True, slots=True)
class CellError:
    """A cell that is not valid Python. It is left out of the joined source."""

    cell: int
    line: int | None
    message: str


class Notebook:
    """An immutable notebook.

    Raises:
        NotebookError: the document is not a notebook.
        OtherLanguageError: its cells are not Python.
    """

    def __init__(self, document: str, mark: str | None = None) -> None:
        self.document = document
        """The text of the file."""
        self._cells = tuple(_code_cells(document))
        sources = [cell.source for cell in self._cells]
        self._mark = mark or _mark(sources)
        self.source = "".join(
            f"{self._separator(cell) if number else ''}{source}\n\n"
            for number, (cell, source) in enumerate(zip(self._cells, sources, strict=True))
        )
        """The code cells as they are written, joined."""
        self.errors: list[CellError] = []
        masked = [self._python(cell.number, source) for cell, source in zip(self._cells, sources, strict=True)]
        self.text = "".join(
            f"{self._separator(cell) if number else ''}{python}\n\n"
            for number, (cell, python) in enumerate(zip(self._cells, masked, strict=True))
        )
        """The same lines, with IPython's syntax replaced, as Python."""

    def _separator(self, cell: _Cell) -> str:
        return f"{self._mark} {cell.number}\n"

    def _python(self, number: int, source: str) -> str:
        python = mask(source.replace("\r\n", "\n").replace("\r", "\n"))
        parsed = parse(python)
        if parsed.tree is not None:
            return python
        self.errors.append(CellError(number, parsed.line, parsed.message))
        return "\n" * python.count("\n")

    def with_source(self, source: str) -> Notebook:
        """The notebook with a new joined source.

        Raises:
            ValueError: the new source does not contain the separators between the cells.
        """
        if source == self.source:
            return self
        pieces = []
        start = 0
        for cell in self._cells[1:]:
            separator = self._separator(cell)
            place = source.find(separator, start)
            if place < 0 or source.count(separator) != 1 or (place and source[place - 1] != "\n"):
                raise ValueError("a change extends beyond the end of a cell")
            pieces.append(source[start:place])
            start = place + len(separator)
        pieces.append(source[start:])
        document = self.document
        for cell, piece in reversed(list(zip(self._cells, pieces, strict=True))):
            new = piece.removesuffix("\n").removesuffix("\n")
            if new != cell.source:
                document = document[: cell.start] + self._value(cell, new) + document[cell.end :]
        return Notebook(document, self._mark)

    def _value(self, cell: _Cell, source: str) -> str:
        """A new source as JSON in the layout of the old one. Unchanged lines keep their bytes."""
        if not cell.listed:
            return self._json(source)
        if not source or not cell.strings:
            return json.dumps(_LINES.findall(source), ensure_ascii=self._ascii)
        old = {one.value: self.document[one.start : one.end] for one in cell.strings}
        first, last = cell.strings[0], cell.strings[-1]
        lead = self.document[cell.start + 1 : first.start]
        between = f",{lead if lead.strip(' ') else ' '}"
        if len(cell.strings) > 1:
            between = self.document[first.end : cell.strings[1].start]
        written = between.join(old.get(line) or self._json(line) for line in _LINES.findall(source))
        return f"[{lead}{written}{self.document[last.end : cell.end]}"

    def _json(self, text: str) -> str:
        return json.dumps(text, ensure_ascii=self._ascii)

    @cached_property
    def _ascii(self) -> bool:
        """Whether the document escapes characters that are not ASCII. Without any, it does not, as Jupyter."""
        return self.document.isascii() and _UNICODE_ESCAPE.search(self.document) is not None

    @cached_property
    def _firsts(self) -> list[int]:
        """The first line of each cell in the joined source."""
        firsts: list[int] = []
        line = 1
        for cell in self._cells:
            line += bool(firsts)
            firsts.append(line)
            line += len(_lines(cell.source)) + 1
        return firsts

    def _index(self, line: int) -> int:
        return max(bisect_right(self._firsts, line) - 1, 0)

    def in_cell(self, span: Span) -> tuple[int, Span]:
        """The number of the cell in which a range of the joined source starts, and the range within that cell."""
        index = self._index(span.line)
        above = self._firsts[index] - 1
        shifted = Span(span.line - above, span.column, span.end_line - above, span.end_column)
        return self._cells[index].number, shifted

    def line_in_file(self, cell: int, line: int) -> int:
        """The line of the file that contains a line of a cell."""
        for one, first in zip(self._cells, self._firsts, strict=True):
            if one.number == cell:
                return self._place(first + line - 1, 1, ends=False)[0]
        raise ValueError(f"cell {cell} is not a code cell")

    def in_file(self, span: Span) -> Span:
        """The range of the file for a range of the joined source."""
        line, column = self._place(span.line, span.column, ends=False)
        return Span(line, column, *self._place(span.end_line, span.end_column, ends=True))

    def edit_in_file(self, edit: Edit) -> Edit:
        """The edit of the file for an edit of the joined source."""
        return Edit(self.in_file(edit.span), self._json(edit.replacement)[1:-1])

    def _place(self, line: int, column: int, *, ends: bool) -> tuple[int, int]:
        """The line and column in the file. A range that ends between two strings ends in the first one."""
        index = self._index(line)
        cell = self._cells[index]
        lines = _lines(cell.source)
        row = line - self._firsts[index]
        left = sum(map(len, lines[:row])) + (column - 1 if row < len(lines) else 0)
        for one in cell.strings:
            if left < len(one.value) or (left == len(one.value) and (ends or one is cell.strings[-1])):
                return self._line_and_column(one.start + 1 + _raw_length(self.document[one.start + 1 : one.end], left))
            left -= len(one.value)
        return self._line_and_column(max(cell.end - 1, cell.start))

    def _line_and_column(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.document))]

    @cached_property
    def _untouchable(self) -> frozenset[int]:
        """Lines that no fix may change: lines that are not Python, and separators between cells."""
        written = self.source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        python = self.text.split("\n")
        masked = {number for number, pair in enumerate(zip(written, python, strict=True), 1) if pair[0] != pair[1]}
        return frozenset(masked | {first - 1 for first in self._firsts[1:]})

    def allows(self, spans: Iterable[Span]) -> bool:
        """Whether these ranges of the joined source are in lines that contain only Python inside cells."""
        return all(self._untouchable.isdisjoint(range(span.line, span.end_line + 1)) for span in spans)


def _lines(source: str) -> list[str]:
    """The lines of a cell with their ends, at least one. A carriage return ends a line, as in the joined source."""
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", source)
    return lines if source and source[-1] not in "\r\n" else [*lines, ""]


def _raw_length(raw: str, characters: int) -> int:
    """The length of the JSON at the start of `raw` that encodes a number of characters."""
    end = 0
    for _ in range(characters):
        match = _ESCAPE.match(raw, end)
        if match is None:
            break
        end = match.end()
    return end


def _mark(sources: Sequence[str]) -> str:
    """The start of a comment line that no cell contains."""
    dashes = 4
    while any(f"# {'-' * dashes} cell" in source for source in sources):
        dashes += 1
    return f"# {'-' * dashes} cell"


def _code_cells(document: str) -> Iterator[_Cell]:
    try:
        content = _DECODER.decode(document)
    except json.JSONDecodeError as error:
        raise NotebookError(f"not a notebook: not valid JSON: {error.msg}", error.lineno) from None
    except RecursionError:
        raise NotebookError("not a notebook: nested too deeply") from None
    _check(content)
    root = {key: start for key, _, start, _ in _members(document, _skip(document, 0))}
    for number, (cell, start, _) in enumerate(_elements(document, root["cells"]), 1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        places = {key: (value, start, end) for key, value, start, end in _members(document, start)}
        value, start, end = places.get("source", (None, 0, 0))
        if isinstance(value, str):
            yield _Cell(number, start, end, (_String(start, end, value),), listed=False)
        elif isinstance(value, list) and all(isinstance(one, str) for one in value):
            strings = tuple(_String(start, end, one) for one, start, end in _elements(document, start))
            yield _Cell(number, start, end, strings, listed=True)
        else:
            raise NotebookError(f"not a notebook: the source of cell {number} is not text")


def _check(content: Any) -> None:
    """Check that this is a notebook, of a supported format, in Python."""
    if not isinstance(content, dict) or "nbformat" not in content:
        raise NotebookError("not a notebook: it has no nbformat")
    nbformat = content["nbformat"]
    if not isinstance(nbformat, int) or nbformat < OLDEST_FORMAT:
        raise NotebookError(f"its format {nbformat!r} is too old; `jupyter nbconvert --to notebook` makes a new one")
    if not isinstance(content.get("cells"), list):
        raise NotebookError("not a notebook: it has no list of cells")
    metadata = content.get("metadata")
    if isinstance(metadata, dict):
        for table, key in (("language_info", "name"), ("kernelspec", "language")):
            about = metadata.get(table)
            language = about.get(key) if isinstance(about, dict) else None
            if isinstance(language, str) and "python" not in language.lower():
                raise OtherLanguageError(language)


def _skip(document: str, position: int) -> int:
    match = _BLANK.match(document, position)
    return match.end() if match else position


def _members(document: str, position: int) -> Iterator[tuple[str, Any, int, int]]:
    """For each member of the object at an offset: its key, its value, and the offsets of the value."""
    position = _skip(document, position + 1)
    while document[position] != "}":
        key, position = _DECODER.raw_decode(document, position)
        start = _skip(document, _skip(document, position) + 1)
        value, end = _DECODER.raw_decode(document, start)
        yield key, value, start, end
        position = _skip(document, end)
        if document[position] == ",":
            position = _skip(document, position + 1)


def _elements(document: str, position: int) -> Iterator[tuple[Any, int, int]]:
    """For each element of the list at an offset: its value and its offsets."""
    position = _skip(document, position + 1)
    while document[position] != "]":
        value, end = _DECODER.raw_decode(document, position)
        yield value, position, end
        position = _skip(document, end)
        if document[position] == ",":
            position = _skip(document, position + 1)
