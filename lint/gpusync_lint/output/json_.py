"""The ``gpusync.lint/1`` document."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from gpusync_lint.escaping import escaped_json
from gpusync_lint.model.levels import Heat
from gpusync_lint.model.unit_messages import unit_name
from gpusync_lint.output.base.format import MergeableFormat, Shows
from gpusync_lint.output.base.merging import MergeError, distinct, once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusync_lint.accept.observed_runs import Observation
    from gpusync_lint.model.findings import FileError, Finding, Fix
    from gpusync_lint.model.placement import Capture
    from gpusync_lint.model.spans import Span
    from gpusync_lint.output.base.format import Document, Options
    from gpusync_lint.run.outcome import Outcome
    from gpusync_lint.settings.selection import Reported

SCHEMA = "gpusync.lint/1"


_EVIDENCE: Final = ("waited", None, "not_recorded", "not_run", "did_not_wait")
"""The order of findings by what runs show about them."""


class Json(MergeableFormat):
    """A document of the schema ``gpusync.lint/1``.

    Lines and columns count from 1, columns in characters; ends are exclusive. In a notebook lines count within
    ``cell``, which is null in other files.
    """

    audience = "programs"
    shows = Shows(
        "findings",
        notes="findings",
        suppressed="findings with `suppressed` or `baselined`",
        errors="`errors`",
        statistics="`statistics`",
        observed="`observed`",
    )
    shows_edits = True
    kind = "findings as JSON"

    def render(self, outcome: Outcome, options: Options) -> str:
        """The document. It has the keys ``observed``, ``statistics`` and ``fixed`` only if they are asked for."""
        shown = [one for one in outcome.reported if options.show_suppressed or one.accepted is None]
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "findings": [_finding(one, outcome) for one in shown],
            "errors": [_error(one) for one in outcome.errors],
            "files": outcome.files,
        }
        seen = outcome.observed
        if seen is not None:
            document["observed"] = {"runs": seen.runs, "gaps": [asdict(gap) for gap in seen.gaps]}
        if options.statistics:
            document["statistics"] = {one.code: one.count for one in outcome.statistics}
        if options.fixed:
            document["fixed"] = outcome.fixed
        members = ",\n".join(f"  {json.dumps(key)}: {_written(value)}" for key, value in document.items())
        return escaped_json(f"{{\n{members}\n}}\n")

    def recognizes(self, document: Document) -> bool:
        """Whether the document names the schema."""
        return isinstance(document, dict) and document.get("schema") == SCHEMA

    def merge(self, documents: Sequence[tuple[str, Document]]) -> Document:
        """One document with all findings. `files` is the sum over the shards.

        ``observed``, ``statistics`` and ``fixed`` are left out unless every shard has them.
        """
        found: list[dict[str, Any]] = []
        errors: list[dict[str, Any]] = []
        for name, document in documents:
            try:
                found += [_checked(finding) for finding in document["findings"]]
                errors += [_checked_error(error) for error in document["errors"]]
                int(document["files"])
            except (KeyError, TypeError, ValueError, AttributeError):
                raise MergeError(
                    f"{name}: not findings as {document['schema']} describes them; write the file again"
                ) from None
        shards = [document for _, document in documents]
        merged: dict[str, Any] = {
            "schema": shards[0]["schema"],
            "findings": once(found, key=lambda finding: finding["key"], heat=lambda finding: finding["heat"]),
            "errors": sorted(distinct(errors), key=lambda error: (error["path"], error["line"] or 0, error["message"])),
            "files": sum(shard["files"] for shard in shards),
        }
        merged["findings"].sort(key=_order)
        observed = _shared("observed", shards)
        if observed is not None:
            merged["findings"].sort(key=_observed_rank)
            merged["observed"] = {
                "runs": sorted({run for one in observed for run in one["runs"]}),
                "gaps": sorted(distinct(gap for one in observed for gap in one["gaps"]), key=_gap_rank),
            }
        if _shared("statistics", shards) is not None:
            merged["statistics"] = _statistics(merged["findings"])
        fixed = _shared("fixed", shards)
        if fixed is not None:
            merged["fixed"] = sum(fixed)
        return merged


def _statistics(findings: Sequence[dict[str, Any]]) -> dict[str, int]:
    """The number of warnings by code. They are counted again, because a finding may be in several shards."""
    codes = [finding["code"] for finding in findings if _is_warning(finding)]
    return {code: codes.count(code) for code in sorted(set(codes))}


def _written(value: object) -> str:
    """A value as JSON, with each object of a list on its own line. With `indent` the encoder is ten times slower.

    The text is split where an object ends and another one starts with the first key that they all have. This cannot
    match inside a string, where quotation marks are escaped, nor a nested object, which starts with another key.
    """
    text = json.dumps(value)
    if not isinstance(value, list) or not value:
        return text
    first = json.dumps(next(iter(value[0]))) if isinstance(value[0], dict) else ""
    return f"[\n    {text[1:-1]}\n  ]".replace(f"}}, {{{first}: ", f"}},\n    {{{first}: ")


def observation(seen: Observation) -> dict[str, Any]:
    """What runs show about a finding, as in this document and in SARIF."""
    return {**asdict(seen), "evidence": seen.evidence.value}


def compiler(finding: Finding) -> dict[str, Any]:
    """The capture that a finding is in and the graph that it breaks, as in this document and in SARIF."""
    return {
        "capture": None if finding.capture is None else _capture(finding.capture),
        "graph_break": None if finding.graph_break is None else asdict(finding.graph_break),
    }


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
        "unit": unit_name(finding),
        "confidence": finding.confidence.value,
        "framework": finding.framework,
        "fix": None if finding.fix is None else _fix(finding, finding.fix, outcome),
        **compiler(finding),
        "suppressed": finding.suppressed,
        "baselined": reported.baselined,
        "observed": None if seen is None else observation(seen),
        "key": finding.key,
    }


def _capture(capture: Capture) -> dict[str, Any]:
    return {"kind": capture.kind.value, "path": capture.path, "line": capture.line, "calls": list(capture.calls)}


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


def _checked(finding: dict[str, Any]) -> dict[str, Any]:
    for key in ("code", "path", "line", "column", "level", "key"):
        finding[key]
    Heat(finding["heat"])
    return finding


def _checked_error(error: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(error["path"], str) or not isinstance(error["message"], str):
        raise TypeError
    return {"path": error["path"], "cell": error["cell"], "line": error["line"], "message": error["message"]}


def _shared(key: str, shards: Sequence[dict[str, Any]]) -> list[Any] | None:
    """The values of a key in all shards; None if a shard does not have it."""
    values = [shard.get(key) for shard in shards]
    return None if any(value is None for value in values) else values


def _is_warning(finding: dict[str, Any]) -> bool:
    return finding["level"] == "warning" and finding["suppressed"] is None and not finding["baselined"]


def _order(finding: dict[str, Any]) -> tuple[Any, ...]:
    return finding["path"], finding.get("cell") or 0, finding["line"], finding["column"], finding["code"]


def _observed_rank(finding: dict[str, Any]) -> tuple[int, float, int]:
    seen = finding["observed"] or {"evidence": None, "blocked_ms": None, "syncs": None}
    return _EVIDENCE.index(seen["evidence"]), -(seen["blocked_ms"] or 0.0), -(seen["syncs"] or 0)


def _gap_rank(gap: dict[str, Any]) -> tuple[Any, ...]:
    return -(gap["blocked_ms"] or 0.0), -gap["syncs"], gap["path"], gap["line"]
