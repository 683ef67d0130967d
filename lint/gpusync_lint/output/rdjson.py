"""reviewdog's diagnostic format, for comments on pull requests: ``reviewdog -f=rdjson``.

https://github.com/reviewdog/reviewdog/tree/master/proto/rdf
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gpusync_lint._address import SOURCE
from gpusync_lint.escaping import escaped_json
from gpusync_lint.model.codes import page_of
from gpusync_lint.output.base.format import Format, Shows
from gpusync_lint.settings.selection import Level

if TYPE_CHECKING:
    from gpusync_lint.model.findings import FileError, Finding
    from gpusync_lint.model.spans import Span
    from gpusync_lint.output.base.format import Options
    from gpusync_lint.run.outcome import Outcome


class RdJson(Format):
    """One diagnostic result. Columns count bytes of UTF-8 from 1; ends are exclusive."""

    audience = "reviewdog: comments on pull requests"
    shows = Shows("diagnostics", notes="diagnostics of severity INFO", errors="diagnostics of severity ERROR")
    shows_edits = True

    def render(self, outcome: Outcome, options: Options) -> str:
        """The document."""
        diagnostics = [_error(error, outcome) for error in outcome.errors]
        diagnostics += [
            _diagnostic(one.finding, "WARNING" if one.level is Level.WARNING else "INFO", outcome)
            for one in outcome.reported
            if one.accepted is None
        ]
        source = {"name": "gpusync", "url": SOURCE}
        document = {"source": source, "severity": "WARNING", "diagnostics": diagnostics}
        return escaped_json(json.dumps(document, indent=2)) + "\n"


def _diagnostic(finding: Finding, severity: str, outcome: Outcome) -> dict[str, Any]:
    cell, within = outcome.in_cell(finding.path, finding.span)
    where = "" if cell is None else f" (cell {cell}, line {within.line})"
    lines = outcome.file_text(finding.path).split("\n")
    diagnostic: dict[str, Any] = {
        "message": f"{finding.message}{where}; remedy: {finding.advice}",
        "location": {
            "path": finding.path,
            "range": _range(outcome.in_file(finding.path, finding.span), lines),
        },
        "severity": severity,
        "code": {"value": finding.code, "url": page_of(finding.code)},
    }
    if finding.fix is not None:
        edits = [outcome.edit_in_file(finding.path, edit) for edit in outcome.edits_of(finding)]
        # reviewdog takes suggestions for alternatives, so a fix of several edits is none.
        if len(edits) == 1:
            diagnostic["suggestions"] = [{"range": _range(edits[0].span, lines), "text": edits[0].replacement}]
    return diagnostic


def _error(error: FileError, outcome: Outcome) -> dict[str, Any]:
    line = outcome.error_line(error)
    location: dict[str, Any] = {"path": error.path}
    if line is not None:
        location["range"] = {"start": {"line": line}}
    return {"message": error.message_with_cell, "location": location, "severity": "ERROR"}


def _range(span: Span, lines: list[str]) -> dict[str, Any]:
    return {
        "start": {"line": span.line, "column": _column(span.line, span.column, lines)},
        "end": {"line": span.end_line, "column": _column(span.end_line, span.end_column, lines)},
    }


def _column(line: int, column: int, lines: list[str]) -> int:
    """The column in bytes for a column in characters."""
    before = lines[line - 1][: column - 1] if line <= len(lines) else ""
    return column + len(before.encode("utf-8", "surrogatepass")) - len(before)
