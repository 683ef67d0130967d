"""Finds the linter's rule for a line that synced, by linting its file together with the files in the same folder.

It is used only when a report is drawn, because it loads the linter. If the linter cannot read a file, its lines have no
rules: a report is never lost because of a missing name.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpusync.reporting.sources import locate, read_source

if TYPE_CHECKING:
    from gpusync_lint.model.findings import Finding

    from pytest_gpusync.model.measurement import Direction

_HOST_TO_DEVICE: Final = "GS5"
"""Codes of host-to-device copies and construction."""

_NEIGHBORS: Final = 40
"""Most files in a folder for all of them to be linted together: a loader or a model defined in the next file tells the
linter what names hold. In a larger folder, files are rarely related that closely."""


_HEATS: Final = {
    "guarded": "runs in few steps",
    "epoch": "runs once per epoch",
    "once": "not known to repeat",
}
"""How the linter describes lines that it takes to run less often than every step."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What the linter knows about a line."""

    code: str
    name: str
    remedy: str
    end_column: int
    """Column after the barrier on its line, from 1 and including indentation; if it spans several lines, after its
    first."""
    silent: str | None = None
    """Why ``gpusync lint`` has no warning for the line by default; None if it has one."""

    @property
    def advice(self) -> str:
        """The remedy, after the reason why the linter is silent, if it is."""
        return self.remedy if self.silent is None else f"no lint warning ({self.silent}): {self.remedy}"


def rules_for(path: str, line: int) -> tuple[Rule, ...]:
    """Return the rules for a line of the file at `path`, the most certain first, each code once."""
    resolved = locate(path)
    try:
        stamp = resolved.stat().st_mtime_ns if resolved is not None else None
    except OSError:
        return ()
    return () if stamp is None else _rules_by_line(str(resolved), path, stamp).get(line, ())


def rule_for(path: str, line: int, direction: Direction | None = None) -> Rule | None:
    """Return the rule for a sync of a line; if the line has several, the first one for copies in the same direction."""
    rules = rules_for(path, line)
    if direction is not None:
        for rule in rules:
            if rule.code.startswith(_HOST_TO_DEVICE) == (direction == "H2D"):
                return rule
    return rules[0] if rules else None


@lru_cache(maxsize=256)
def _rules_by_line(resolved: str, shown: str, stamp: int) -> dict[int, tuple[Rule, ...]]:
    """Lint one file; `stamp` makes an edited file a different cache key."""
    try:
        findings = _findings(Path(resolved), shown)
    except Exception:
        # Whatever is wrong with the file or the linter, the syncs were counted and must be reported.
        return {}
    starting: dict[int, dict[str, Rule]] = {}
    for finding in sorted(findings, key=lambda f: (_silent(f) is not None, f.confidence.rank, f.span)):
        starting.setdefault(finding.span.line, {}).setdefault(finding.code, _rule(finding))
    rules = {line: tuple(found.values()) for line, found in starting.items()}
    # A finding that spans several lines also applies to those on which no other starts, the shortest finding first.
    for finding in sorted(findings, key=lambda f: f.span.end_line - f.span.line):
        for line in range(finding.span.line + 1, finding.span.end_line + 1):
            rules.setdefault(line, (_rule(finding),))
    return rules


def _findings(file: Path, shown: str) -> list[Finding]:
    from gpusync_lint.model.findings import EngineSettings, Source
    from gpusync_lint.run.engine import analyze

    sources = [Source(shown, read_source(file))]
    for neighbor in _neighbors(file):
        beside = f"{shown.rpartition('/')[0]}/{neighbor.name}".lstrip("/")
        with suppress(OSError):
            if (found := locate(str(neighbor))) is not None:
                sources.append(Source(beside, read_source(found)))
    findings = [finding for finding in analyze(sources, EngineSettings()).findings if finding.path == shown]
    return _allowed(findings, shown, sources[0].text)


def _allowed(findings: list[Finding], shown: str, text: str) -> list[Finding]:
    """Return the findings, those that a comment allows with its reason."""
    from gpusync_lint.model.findings import MARKER

    if MARKER not in text:
        return findings
    from gpusync_lint.accept import allow_comments
    from gpusync_lint.model import codes

    judged = allow_comments.apply(
        findings,
        shown,
        text,
        names=codes.names(),
        enabled=lambda code, path: True,
        today=datetime.now().astimezone().date(),
        alone=True,
    )
    # Without what it says about the comments themselves.
    return [finding for finding in judged if finding.code in {one.code for one in findings}]


def _neighbors(file: Path) -> list[Path]:
    beside = sorted(other for other in file.parent.glob("*.py") if other != file)
    return beside if len(beside) <= _NEIGHBORS else []


def _rule(finding: Finding) -> Rule:
    span = finding.span
    end = span.end_column if span.line == span.end_line else span.column
    return Rule(finding.code, finding.name, finding.remedy, end, _silent(finding))


def _silent(finding: Finding) -> str | None:
    """Return why the linter does not warn about a finding by default; None if it does."""
    if finding.suppressed is not None:
        return f"allowed: {finding.suppressed}"
    if finding.confidence.value == "low":
        return "not certain enough"
    return _HEATS.get(finding.heat.value)
