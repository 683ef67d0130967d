"""The ``gpusync.lint/1`` document."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusync_lint.model import Edit, Fix, Span
    from gpusync_lint.runner import Outcome
    from gpusync_lint.selection import Reported

SCHEMA = "gpusync.lint/1"


def render(outcome: Outcome, *, show_suppressed: bool = False, statistics: bool = False, fixed: bool = False) -> str:
    """The document, ending in a newline.

    Lines and columns count from 1, columns in characters, ends are exclusive. What a comment or the baseline accepts is
    included on request. ``statistics`` (warnings per code) and ``fixed`` are keys of their own, present on request.
    """
    shown = [one for one in outcome.reported if show_suppressed or one.accepted is None]
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "findings": [_finding(one) for one in shown],
        "errors": [{"path": one.path, "line": one.line, "message": one.message} for one in outcome.errors],
        "files": outcome.files,
    }
    if statistics:
        document["statistics"] = {one.code: one.count for one in outcome.statistics}
    if fixed:
        document["fixed"] = outcome.fixed
    return json.dumps(document, indent=2) + "\n"


def _finding(reported: Reported) -> dict[str, Any]:
    finding = reported.finding
    return {
        "code": finding.code,
        "name": finding.name,
        "path": finding.path,
        **_span(finding.span),
        "message": finding.message,
        "remedy": finding.remedy,
        "level": reported.level.value,
        "heat": finding.heat.value,
        "confidence": finding.confidence.value,
        "framework": finding.framework,
        "fix": None if finding.fix is None else _fix(finding.fix),
        "suppressed": finding.suppressed,
        "baselined": reported.baselined,
        "key": finding.key,
    }


def _span(span: Span) -> dict[str, int]:
    return {
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
    }


def _fix(fix: Fix) -> dict[str, Any]:
    return {"title": fix.title, "safe": fix.safe, "hazard": fix.hazard, "edits": [_edit(edit) for edit in fix.edits]}


def _edit(edit: Edit) -> dict[str, Any]:
    return {**_span(edit.span), "replacement": edit.replacement}
