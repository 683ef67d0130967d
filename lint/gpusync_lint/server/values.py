"""Findings as values of the Language Server Protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

from gpusync_lint.model.codes import page_of
from gpusync_lint.model.spans import Edit, Span
from gpusync_lint.settings.selection import Level

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusync_lint.accept.observed_runs import Observation
    from gpusync_lint.catalogue.schema import RuleDoc
    from gpusync_lint.model.findings import FileError, Finding
    from gpusync_lint.server.analysis import Checked
    from gpusync_lint.settings.selection import Reported

SOURCE = "gpusync"
_UNNECESSARY = frozenset({"GS902", "GS903", "GS905"})
"""The codes about text that serves no purpose any more, which editors show faded."""


class Positions:
    """Places in a document as the client counts them: lines from 0, columns in the units that it has chosen."""

    def __init__(self, checked: Checked, encoding: str) -> None:
        self.checked = checked
        self._encoding = encoding
        document = checked.document if checked.notebook is None else checked.notebook.document
        self._lines = document.replace("\r\n", "\n").replace("\r", "\n").split("\n")

    def range(self, span: Span) -> types.Range:
        """The range of a span of the text of the document."""
        if self.checked.notebook is not None:
            span = self.checked.notebook.in_file(span)
        return self._in_file(span)

    def line(self, error: FileError) -> types.Range:
        """The line that an error is about."""
        line = error.line or 1
        if self.checked.notebook is not None and error.cell is not None:
            line = self.checked.notebook.line_in_file(error.cell, line)
        line = max(1, min(line, len(self._lines)))
        return self._in_file(Span(line, 1, line, len(self._lines[line - 1]) + 1))

    def edit(self, edit: Edit) -> types.TextEdit:
        """An edit of the text of the document. The client writes line ends like those of the document."""
        notebook = self.checked.notebook
        edit = edit if notebook is None else notebook.edit_in_file(edit)
        return types.TextEdit(range=self._in_file(edit.span), new_text=edit.replacement)

    def _in_file(self, span: Span) -> types.Range:
        return types.Range(
            start=types.Position(line=span.line - 1, character=self._units(span.line, span.column)),
            end=types.Position(line=span.end_line - 1, character=self._units(span.end_line, span.end_column)),
        )

    def _units(self, line: int, column: int) -> int:
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        before = text[: column - 1]
        if self._encoding == "utf-8":
            return len(before.encode("utf-8", "surrogatepass"))
        if self._encoding == "utf-32":
            return len(before)
        return len(before) + sum(char > "\uffff" for char in before)


def diagnostics(positions: Positions, uri_of: Callable[[str], str]) -> list[types.Diagnostic]:
    """The diagnostics of a document. `uri_of` gives the address of a displayed path."""
    checked = positions.checked
    errors = [
        types.Diagnostic(
            range=positions.line(error), severity=types.DiagnosticSeverity.Error, source=SOURCE, message=error.message
        )
        for error in checked.errors
    ]
    return errors + [_diagnostic(one, positions, uri_of) for one in checked.reported]


def _diagnostic(one: Reported, positions: Positions, uri_of: Callable[[str], str]) -> types.Diagnostic:
    finding = one.finding
    severity = types.DiagnosticSeverity.Warning if one.level is Level.WARNING else types.DiagnosticSeverity.Information
    return types.Diagnostic(
        range=positions.range(finding.span),
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


def overlaps(one: types.Range, other: types.Range) -> bool:
    """Whether two ranges have a position in common."""
    return _pair(one.start) <= _pair(other.end) and _pair(other.start) <= _pair(one.end)


def _pair(position: types.Position) -> tuple[int, int]:
    return position.line, position.character
