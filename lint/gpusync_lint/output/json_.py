"""The ``gpusync.lint/1`` document."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusync_lint.accept.observed_runs import Observation
    from gpusync_lint.model.findings import FileError, Finding, Fix
    from gpusync_lint.model.spans import Span
    from gpusync_lint.run.runner import Outcome
    from gpusync_lint.settings.selection import Reported

SCHEMA = "gpusync.lint/1"


def render(outcome: Outcome, *, show_suppressed: bool = False, statistics: bool = False, fixed: bool = False) -> str:
    """The document, ending in a newline.

    Lines and columns count from 1, columns in characters, ends are exclusive; in a notebook lines count within
    ``cell``, which is null elsewhere. What a comment or the baseline accepts is included on request. ``statistics``
    (warnings per code) and ``fixed`` are keys of their own, present on request.
    """
    shown = [one for one in outcome.reported if show_suppressed or one.accepted is None]
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "findings": [_finding(one, outcome) for one in shown],
        "errors": [_error(one) for one in outcome.errors],
        "files": outcome.files,
    }
    if outcome.observed is not None:
        document["observed"] = {"runs": outcome.observed.shown, "gaps": [asdict(gap) for gap in outcome.observed.gaps]}
    if statistics:
        document["statistics"] = {one.code: one.count for one in outcome.statistics}
    if fixed:
        document["fixed"] = outcome.fixed
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {_written(value)}" for key, value in document.items()) + "\n}\n"


def _written(value: object) -> str:
    """A value as JSON, each item of a list of objects on a line: with `indent` the encoder is ten times slower.

    The items are parted where one ends and another begins with the first key that they all have. Within a string its
    quotation marks would be escaped, and what objects lie deeper begins with another key.
    """
    text = json.dumps(value)
    if not isinstance(value, list) or not value:
        return text
    first = json.dumps(next(iter(value[0]))) if isinstance(value[0], dict) else ""
    return f"[\n    {text[1:-1]}\n  ]".replace(f"}}, {{{first}: ", f"}},\n    {{{first}: ")


def observation(seen: Observation) -> dict[str, Any]:
    """What runs saw of a finding, as both this document and SARIF hold it."""
    return {**asdict(seen), "evidence": seen.evidence.value}


def _error(error: FileError) -> dict[str, Any]:
    return {"path": error.path, "cell": error.cell, "line": error.line, "message": error.message}


def _finding(reported: Reported, outcome: Outcome) -> dict[str, Any]:
    finding = reported.finding
    seen = None if outcome.observed is None else outcome.observed.observations.get(finding.key)
    return {
        "code": finding.code,
        "name": finding.name,
        "path": finding.path,
        **_place(finding.path, finding.span, outcome),
        "message": finding.message,
        "remedy": finding.remedy,
        "level": reported.level.value,
        "heat": finding.heat.value,
        "confidence": finding.confidence.value,
        "framework": finding.framework,
        "fix": None if finding.fix is None else _fix(finding, finding.fix, outcome),
        "suppressed": finding.suppressed,
        "baselined": reported.baselined,
        "observed": None if seen is None else observation(seen),
        "key": finding.key,
    }


def _place(path: str, span: Span, outcome: Outcome) -> dict[str, int | None]:
    cell, span = outcome.in_cell(path, span)
    return {
        "cell": cell,
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
    }


def _fix(finding: Finding, fix: Fix, outcome: Outcome) -> dict[str, Any]:
    edits = [
        {**_place(finding.path, edit.span, outcome), "replacement": edit.replacement}
        for edit in outcome.edits_of(finding)
    ]
    return {"title": fix.title, "safe": fix.safe, "hazard": fix.hazard, "edits": edits}
