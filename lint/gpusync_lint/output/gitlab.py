"""GitLab's code quality report: https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from gpusync_lint.escaping import escaped_json
from gpusync_lint.output.base.format import MergeableFormat, Shows
from gpusync_lint.output.base.merging import MergeError
from gpusync_lint.settings.selection import Level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusync_lint.model.findings import FileError, Finding
    from gpusync_lint.output.base.format import Document, Options
    from gpusync_lint.run.outcome import Outcome


class GitLab(MergeableFormat):
    """A list of issues.

    The fingerprint of an issue is a digest of the finding's key, so an issue keeps its identity when its line moves.
    The format cannot contain counts, nor the number of fixes.
    """

    audience = "a GitLab code quality report"
    shows = Shows("minor issues", suppressed="issues of severity info", errors="critical issues")
    kind = "a GitLab code quality report"

    def render(self, outcome: Outcome, options: Options) -> str:
        """Errors first, then warnings."""
        issues = [_error(error, outcome) for error in outcome.errors]
        for one in outcome.reported:
            finding = one.finding
            if one.level is not Level.WARNING:
                continue
            if one.accepted is None:
                issues.append(_issue(finding, "minor", f"{finding.message}; remedy: {finding.advice}", outcome))
            elif options.show_suppressed:
                issues.append(_issue(finding, "info", f"{finding.message}; {one.accepted}", outcome))
        _make_unique(issues)
        return escaped_json(json.dumps(issues, indent=2)) + "\n"

    def recognizes(self, document: Document) -> bool:
        """Whether this is a list of issues."""
        return isinstance(document, list) and all(isinstance(one, dict) and "fingerprint" in one for one in document)

    def merge(self, documents: Sequence[tuple[str, Document]]) -> Document:
        """The issues of all files, once per fingerprint: errors first, then by path and line."""
        found: dict[str, tuple[Any, ...]] = {}
        for name, document in documents:
            try:
                for number, issue in enumerate(document):
                    location = issue["location"]
                    error = issue["severity"] == "critical"
                    place = (not error, location["path"], location["lines"]["begin"], number, repr(issue))
                    known = found.get(issue["fingerprint"], (place,))
                    found[issue["fingerprint"]] = (place, issue) if place <= known[0] else known
            except (KeyError, TypeError):
                raise MergeError(f"{name}: not issues as gpusync lint writes them; write the file again") from None
        return [issue for _, issue in sorted(found.values(), key=lambda placed: placed[0])]


def _issue(finding: Finding, severity: str, description: str, outcome: Outcome) -> dict[str, Any]:
    span = outcome.in_file(finding.path, finding.span)
    return {
        "description": description,
        "check_name": f"{finding.code} {finding.name}",
        "fingerprint": _digest(finding.key),
        "severity": severity,
        "location": {"path": finding.path, "lines": {"begin": span.line, "end": span.end_line}},
    }


def _error(error: FileError, outcome: Outcome) -> dict[str, Any]:
    return {
        "description": error.message_with_cell,
        "check_name": "gpusync-lint-error",
        "fingerprint": _digest(f"{error.path}::{error.message_with_cell}"),
        "severity": "critical",
        "location": {"path": error.path, "lines": {"begin": outcome.error_line(error) or 1}},
    }


def _make_unique(issues: list[dict[str, Any]]) -> None:
    """Make the fingerprints unique, because GitLab drops an issue with the fingerprint of another one."""
    seen: dict[str, int] = {}
    for issue in issues:
        fingerprint = issue["fingerprint"]
        seen[fingerprint] = seen.get(fingerprint, 0) + 1
        if seen[fingerprint] > 1:
            issue["fingerprint"] = _digest(f"{fingerprint}::{seen[fingerprint]}")


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
