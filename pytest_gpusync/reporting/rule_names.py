"""From a line that synced to the linter's rule for it, by asking the linter about its file and the files beside it.

Asked only when a report is drawn, since it loads the linter. A file that the linter cannot read has no rules: a report
is never lost for want of a name.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpusync_lint.model.findings import Finding

    from pytest_gpusync.model.measurement import Direction

_HOST_TO_DEVICE: Final = "GS5"
"""Codes of host-to-device copies and construction."""

_NEIGHBOURS: Final = 40
"""Files of a folder that the linter is shown beside the one it is asked about: a loader or a model defined next door
tells what the names in it hold. In a folder of more files that is not what they are."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What the linter knows about a line."""

    code: str
    name: str
    remedy: str
    end_column: int
    """Column after the barrier on its line, from 1, indentation included; on several lines, after the first of them."""


def rules_for(path: str, line: int) -> tuple[Rule, ...]:
    """Return the rules for a line of the file at `path`, the surest first, each code once."""
    resolved = Path(path).resolve()
    try:
        stamp = resolved.stat().st_mtime_ns
    except OSError:
        return ()
    return _rules_by_line(str(resolved), path, stamp).get(line, ())


def rule_for(path: str, line: int, direction: Direction | None = None) -> Rule | None:
    """Return the rule for a sync of a line; where the line has several, the first that copies the same way."""
    rules = rules_for(path, line)
    if direction is not None:
        for rule in rules:
            if rule.code.startswith(_HOST_TO_DEVICE) == (direction == "H2D"):
                return rule
    return rules[0] if rules else None


@lru_cache(maxsize=256)
def _rules_by_line(resolved: str, shown: str, stamp: int) -> dict[int, tuple[Rule, ...]]:
    """Lint one file; `stamp` makes an edited file a new key."""
    try:
        findings = _findings(Path(resolved), shown)
    except Exception:
        # Whatever ails the file or the linter, the syncs were counted and must be reported.
        return {}
    starting: dict[int, dict[str, Rule]] = {}
    for finding in sorted(findings, key=lambda f: (f.confidence.rank, f.span)):
        starting.setdefault(finding.span.line, {}).setdefault(finding.code, _rule(finding))
    rules = {line: tuple(found.values()) for line, found in starting.items()}
    # A finding over several lines names those on which no other starts, the narrowest first.
    for finding in sorted(findings, key=lambda f: f.span.end_line - f.span.line):
        for line in range(finding.span.line + 1, finding.span.end_line + 1):
            rules.setdefault(line, (_rule(finding),))
    return rules


def _findings(file: Path, shown: str) -> list[Finding]:
    from gpusync_lint.model.findings import EngineSettings, Source
    from gpusync_lint.run.engine import analyze

    sources = [Source(shown, file.read_text(encoding="utf-8"))]
    for neighbour in _neighbours(file):
        with suppress(OSError, UnicodeDecodeError):
            beside = f"{shown.rpartition('/')[0]}/{neighbour.name}".lstrip("/")
            sources.append(Source(beside, neighbour.read_text(encoding="utf-8")))
    return [finding for finding in analyze(sources, EngineSettings()).findings if finding.path == shown]


def _neighbours(file: Path) -> list[Path]:
    beside = sorted(other for other in file.parent.glob("*.py") if other != file)
    return beside if len(beside) <= _NEIGHBOURS else []


def _rule(finding: Finding) -> Rule:
    span = finding.span
    end = span.end_column if span.line == span.end_line else span.column
    return Rule(finding.code, finding.name, finding.remedy, end)
