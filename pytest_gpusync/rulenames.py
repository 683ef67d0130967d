"""From a line that synced to the linter's rule for it, by asking the linter about that one file.

Asked only when a report is drawn, since it loads libcst. A file that the linter cannot read has no rules: a report is
never lost for want of a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusync_lint.model import Finding


@dataclass(frozen=True, slots=True)
class Rule:
    """What the linter knows about a line."""

    code: str
    name: str
    remedy: str
    expression: str | None
    """Source text of the barrier, where it stands on one line."""


def rule_for(path: str, line: int) -> Rule | None:
    """Return the rule for a line of the file at `path`, if the linter has one."""
    resolved = Path(path).resolve()
    try:
        stamp = resolved.stat().st_mtime_ns
    except OSError:
        return None
    return _rules_by_line(str(resolved), path, stamp).get(line)


@lru_cache(maxsize=256)
def _rules_by_line(resolved: str, shown: str, stamp: int) -> dict[int, Rule]:
    """Lint one file; `stamp` makes an edited file a new key."""
    try:
        text = Path(resolved).read_text(encoding="utf-8")
        findings = _findings(shown, text)
    except Exception:
        # Whatever ails the file or the linter, the syncs were counted and must be reported.
        return {}
    source = text.splitlines()
    rules: dict[int, Rule] = {}
    # The finding that starts on a line names it; one that spans several names the lines no other finding starts on.
    for finding in sorted(findings, key=lambda f: (f.confidence.rank, f.span)):
        rules.setdefault(finding.span.line, _rule(finding, source))
    for finding in sorted(findings, key=lambda f: f.span.end_line - f.span.line):
        for line in range(finding.span.line + 1, finding.span.end_line + 1):
            rules.setdefault(line, _rule(finding, source))
    return rules


def _findings(path: str, text: str) -> tuple[Finding, ...]:
    from gpusync_lint.engine import analyze
    from gpusync_lint.model import Source

    return analyze([Source(path, text)]).findings


def _rule(finding: Finding, source: list[str]) -> Rule:
    span = finding.span
    expression = None
    if span.line == span.end_line and span.line <= len(source):
        expression = source[span.line - 1][span.column - 1 : span.end_column - 1].strip() or None
    return Rule(finding.code, finding.name, finding.remedy, expression)
