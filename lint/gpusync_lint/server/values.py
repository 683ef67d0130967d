"""Findings as values of the Language Server Protocol."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from lsprotocol import types

from gpusync_lint.model.codes import page_of
from gpusync_lint.settings.selection import Level

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusync_lint.accept.observed_runs import Observation
    from gpusync_lint.catalogue.schema import RuleDoc
    from gpusync_lint.model.findings import FileError, Finding
    from gpusync_lint.model.spans import Edit, Span
    from gpusync_lint.server.analysis import Checked
    from gpusync_lint.settings.selection import Reported

SOURCE = "gpusync"
_LINE_END = re.compile(r"\r\n|\n|\r")
_UNNECESSARY = frozenset({"GS902", "GS903", "GS905"})
"""The codes about text that serves no purpose any more, which editors show faded."""


class Cell(NamedTuple):
    """A cell of a notebook that is open in an editor."""

    uri: str
    text: str
    version: int | None
    is_code: bool


class Positions:
    """Places in a document as the client counts them: lines from 0, columns in the units that it has chosen."""

    def __init__(self, uri: str, checked: Checked, encoding: str, cells: Sequence[Cell] | None = None) -> None:
        """`cells` are those of a notebook that the client has opened as such."""
        self.uri = uri
        self.checked = checked
        self._encoding = encoding
        self._cells = cells
        document = checked.document if checked.notebook is None else checked.notebook.document
        self._lines = _lines(document)

    def place(self, span: Span) -> types.Location:
        """The place of a span of the analyzed text: in the document, or in a cell of it."""
        uri, span, lines = self._located(span)
        start = types.Position(line=span.line - 1, character=self._units(lines, span.line, span.column))
        end = types.Position(line=span.end_line - 1, character=self._units(lines, span.end_line, span.end_column))
        return types.Location(uri=uri, range=types.Range(start=start, end=end))

    def _located(self, span: Span) -> tuple[str, Span, Sequence[str]]:
        notebook = self.checked.notebook
        if notebook is None:
            return self.uri, span, self._lines
        if self._cells is None:
            return self.uri, notebook.in_file(span), self._lines
        number, span = notebook.in_cell(span)
        cell = self._cells[number - 1]
        return cell.uri, span, _lines(cell.text)

    def line(self, error: FileError) -> types.Location:
        """The line that an error is about."""
        line, uri, lines = error.line or 1, self.uri, self._lines
        if error.cell is not None and self._cells is not None:
            cell = self._cells[error.cell - 1]
            uri, lines = cell.uri, _lines(cell.text)
        elif error.cell is not None and self.checked.notebook is not None:
            line = self.checked.notebook.line_in_file(error.cell, line)
        line = max(1, min(line, len(lines)))
        end = self._units(lines, line, len(lines[line - 1]) + 1)
        return types.Location(uri=uri, range=types.Range(types.Position(line - 1, 0), types.Position(line - 1, end)))

    def edit(self, edit: Edit) -> tuple[str, types.TextEdit]:
        """An edit of the analyzed text, with the address of what it edits. The client writes its own line ends."""
        notebook = self.checked.notebook
        replacement = edit.replacement
        if notebook is not None and self._cells is None:
            replacement = notebook.edit_in_file(edit).replacement
        place = self.place(edit.span)
        return place.uri, types.TextEdit(range=place.range, new_text=replacement)

    def _units(self, lines: Sequence[str], line: int, column: int) -> int:
        text = lines[line - 1] if line <= len(lines) else ""
        before = text[: column - 1]
        if self._encoding == "utf-8":
            return len(before.encode("utf-8", "surrogatepass"))
        if self._encoding == "utf-32":
            return len(before)
        return len(before) + sum(char > "\uffff" for char in before)


def changed_text(text: str, change: types.TextDocumentContentChangeEvent, encoding: str) -> str:
    """A text after a change by the client. Lines end as the protocol says, and not, for example, with a form feed."""
    if not isinstance(change, types.TextDocumentContentChangePartial):
        return change.text
    starts = [0, *(match.end() for match in _LINE_END.finditer(text))]

    def offset(position: types.Position) -> int:
        if position.line >= len(starts):
            return len(text)
        end = starts[position.line + 1] if position.line + 1 < len(starts) else len(text)
        line = text[starts[position.line] : end].rstrip("\r\n")
        return starts[position.line] + _characters(line, position.character, encoding)

    return text[: offset(change.range.start)] + change.text + text[offset(change.range.end) :]


def _characters(line: str, units: int, encoding: str) -> int:
    """The number of characters in the first units of a line."""
    if encoding == "utf-32":
        return min(units, len(line))
    width = 2 if encoding == "utf-16" else 1
    encoded = line.encode("utf-16-le" if width == 2 else "utf-8", "surrogatepass")[: units * width]
    return len(encoded.decode("utf-16-le" if width == 2 else "utf-8", "ignore"))


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def diagnostics(positions: Positions, uri_of: Callable[[str], str]) -> dict[str, list[types.Diagnostic]]:
    """The diagnostics of a document, by its address or those of its cells. `uri_of` is that of a displayed path."""
    found: dict[str, list[types.Diagnostic]] = {}
    for error in positions.checked.errors:
        place = positions.line(error)
        diagnostic = types.Diagnostic(
            range=place.range, severity=types.DiagnosticSeverity.Error, source=SOURCE, message=error.message
        )
        found.setdefault(place.uri, []).append(diagnostic)
    for one in positions.checked.reported:
        place = positions.place(one.finding.span)
        found.setdefault(place.uri, []).append(_diagnostic(one, place.range, uri_of))
    return found


def _diagnostic(one: Reported, where: types.Range, uri_of: Callable[[str], str]) -> types.Diagnostic:
    finding = one.finding
    severity = types.DiagnosticSeverity.Warning if one.level is Level.WARNING else types.DiagnosticSeverity.Information
    return types.Diagnostic(
        range=where,
        severity=severity,
        code=finding.code,
        code_description=types.CodeDescription(href=page_of(finding.code)),
        source=SOURCE,
        message=f"{finding.message}; remedy: {finding.remedy}",
        tags=[types.DiagnosticTag.Unnecessary] if finding.code in _UNNECESSARY else None,
        related_information=_causes(finding, uri_of) or None,
        data={"key": finding.key, "heat": finding.heat.value},
    )


def _causes(finding: Finding, uri_of: Callable[[str], str]) -> list[types.DiagnosticRelatedInformation]:
    """Where the cause of a finding is, if that is another line: a capture, or a compiled function."""
    causes = []
    if finding.capture is not None:
        causes.append((finding.capture.path, finding.capture.line, "the CUDA graph is captured here"))
    if finding.graph_break is not None:
        causes.append((finding.graph_break.path, finding.graph_break.line, "it is compiled here"))
    return [
        types.DiagnosticRelatedInformation(location=_line_of(uri_of(path), line), message=message)
        for path, line, message in causes
    ]


def _line_of(uri: str, line: int) -> types.Location:
    position = types.Position(line=line - 1, character=0)
    return types.Location(uri=uri, range=types.Range(start=position, end=position))


def hover(finding: Finding, doc: RuleDoc | None, observation: Observation | None, runs: str) -> str:
    """What a rule reports and why, with the cost if a run has measured it, as Markdown."""
    parts = [f"**{finding.code} {finding.name}**: {finding.message}", f"Remedy: {finding.remedy}."]
    if observation is not None:
        from gpusync_lint.output.text import observed

        parts.append(f"Measured: {observed(observation)} ({runs}).")
    if finding.fix is not None and finding.fix.hazard is not None:
        parts.append(f"The fix is unsafe: {finding.fix.hazard}.")
    if doc is not None:
        parts += [" ".join(doc.summary.split()), " ".join(doc.why.split())]
    parts.append(f"[{finding.code}]({page_of(finding.code)})")
    return "\n\n".join(parts)


def overlaps(place: types.Location, uri: str, within: types.Range) -> bool:
    """Whether a place and a range of a document have a position in common."""
    one = place.range
    return place.uri == uri and _pair(one.start) <= _pair(within.end) and _pair(within.start) <= _pair(one.end)


def _pair(position: types.Position) -> tuple[int, int]:
    return position.line, position.character
