"""Logging commands of Azure Pipelines, which become issues of the job when they are printed to its log.

https://learn.microsoft.com/azure/devops/pipelines/scripts/logging-commands#logissue-log-an-error-or-warning
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusync_lint.escaping import escaped
from gpusync_lint.output.base.format import Format, Shows
from gpusync_lint.settings.selection import Level

if TYPE_CHECKING:
    from gpusync_lint.output.base.format import Options
    from gpusync_lint.run.outcome import Outcome


class Azure(Format):
    """One command per line. Lines and columns count from 1; a range has no end."""

    audience = "issues in the log of an Azure Pipelines job"
    shows = Shows("`task.logissue type=warning`", errors="`task.logissue type=error`")

    def render(self, outcome: Outcome, options: Options) -> str:
        """Errors first, then warnings."""
        lines = []
        for error in outcome.errors:
            line = outcome.error_line(error)
            lines.append(_issue("error", error.path, line, None, "", error.message_with_cell))
        for one in outcome.reported:
            if one.level is Level.WARNING and one.accepted is None:
                finding = one.finding
                span = outcome.in_file(finding.path, finding.span)
                cell, within = outcome.in_cell(finding.path, finding.span)
                where = "" if cell is None else f" (cell {cell}, line {within.line})"
                message = f"{finding.message}{where}; remedy: {finding.advice}"
                lines.append(_issue("warning", finding.path, span.line, span.column, finding.code, message))
        return "".join(f"{line}\n" for line in lines)


def _issue(kind: str, path: str, line: int | None, column: int | None, code: str, message: str) -> str:
    properties = {"type": kind, "sourcepath": path, "linenumber": line, "columnnumber": column, "code": code or None}
    written = "".join(f"{name}={_escaped(str(value))};" for name, value in properties.items() if value is not None)
    return f"##vso[task.logissue {written}]{_escaped(message, property_=False)}"


def _escaped(text: str, *, property_: bool = True) -> str:
    text = escaped(text).replace("%", "%AZP25")
    return text.replace(";", "%3B").replace("]", "%5D") if property_ else text
