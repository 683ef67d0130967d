"""GitHub's workflow commands, which become annotations when they are printed to the log of a job.

https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusync_lint.escaping import escaped, escaped_lines
from gpusync_lint.output.base.format import Format, Shows
from gpusync_lint.settings.selection import Level

if TYPE_CHECKING:
    from gpusync_lint.model.findings import FileError, Finding
    from gpusync_lint.output.base.format import Options
    from gpusync_lint.run.outcome import Outcome


class GitHub(Format):
    """One command per line.

    Columns count from 1, in characters; GitHub's ``endColumn`` is the last marked column. Notes are left out, because a
    job shows only ten annotations of a kind.
    """

    audience = "annotations in the log of a GitHub job"
    shows = Shows("`::warning`", suppressed="`::notice`", errors="`::error`", statistics="one `::notice`")

    def render(self, outcome: Outcome, options: Options) -> str:
        """Errors first, then warnings, then counts."""
        lines = [_error(error, outcome) for error in outcome.errors]
        for one in outcome.reported:
            finding = one.finding
            if one.level is not Level.WARNING:
                continue
            if one.accepted is None:
                lines.append(_annotation("warning", finding, f"{finding.message}\nremedy: {finding.advice}", outcome))
            elif options.show_suppressed:
                lines.append(_annotation("notice", finding, f"{finding.message}\n{one.accepted}", outcome))
        if options.statistics:
            counts = "\n".join(f"{one.count} {one.code} {one.name}" for one in outcome.statistics) or "no warnings"
            lines.append(_command("notice", {"title": "gpusync lint"}, counts))
        if options.fixed:
            lines.append(_command("notice", {"title": "gpusync lint"}, f"fixed: {outcome.fixed}"))
        return "".join(f"{line}\n" for line in lines)


def _annotation(kind: str, finding: Finding, message: str, outcome: Outcome) -> str:
    span = outcome.in_file(finding.path, finding.span)
    properties = {"file": finding.path, "line": str(span.line)}
    if span.end_line == span.line:
        properties |= {"col": str(span.column), "endLine": str(span.line)}
        properties["endColumn"] = str(max(span.column, span.end_column - 1))
    else:
        # GitHub ignores columns of a range of several lines.
        properties["endLine"] = str(span.end_line)
    cell, within = outcome.in_cell(finding.path, finding.span)
    where = "" if cell is None else f" (cell {cell}, line {within.line})"
    return _command(kind, {**properties, "title": f"{finding.code} {finding.name}{where}"}, message)


def _error(error: FileError, outcome: Outcome) -> str:
    properties = {"file": error.path}
    line = outcome.error_line(error)
    if line is not None:
        properties["line"] = str(line)
    return _command("error", {**properties, "title": "gpusync lint"}, error.message_with_cell)


def _command(kind: str, properties: dict[str, str], message: str) -> str:
    listed = ",".join(f"{name}={_escaped(value, property_=True)}" for name, value in properties.items())
    return f"::{kind} {listed}::{_escaped(message)}"


def _escaped(text: str, *, property_: bool = False) -> str:
    # The path has to be that of the file, but the log shows it as well.
    text = escaped(text) if property_ else escaped_lines(text)
    text = text.replace("%", "%25").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if property_ else text
