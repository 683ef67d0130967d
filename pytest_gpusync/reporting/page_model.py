"""A run object put in the order in which a page shows it: the worst first. No markup; each format has its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.reporting.rule_names import rules_for
from pytest_gpusync.reporting.site_rows import source_text
from pytest_gpusync.reporting.terminal import device_text, environment_from

if TYPE_CHECKING:
    from pytest_gpusync.model.document import Document

_SEVERITY: Final = {"failed": 0, "not_measured": 1, "undecided": 2, "measured": 3, "passed": 4}

OUTCOME_NAMES: Final = {
    "failed": "over budget",
    "not_measured": "not measured",
    "undecided": "too noisy to tell",
    "measured": "no budget",
    "passed": "within budget",
}

COVERAGE_TEXTS: Final = {
    "driver": "Every synchronize call of the process was seen, whichever library made it.",
    "torch": "Only the syncs that torch itself makes were seen; other libraries may have made more.",
    "simulated": "Counted on a simulated CUDA device. It makes the same syncs; how long they take is not known.",
}


@dataclass(frozen=True, slots=True)
class Limit:
    """The sync budget that a region was held to."""

    number: int
    exact: bool

    def __str__(self) -> str:
        return f"exactly {self.number}" if self.exact else str(self.number)


@dataclass
class LineDigest:
    """One source line over all regions of a run."""

    path: str
    line: int
    function: str
    source: str
    """Text of the line; empty where the file cannot be read."""
    codes: tuple[str, ...]
    remedy: str | None
    allowed: str | None
    background: bool
    worst: int = 0
    """Most syncs in one step of any region."""
    syncs: int = 0
    """In all regions, warm-up included."""
    blocked_ms: float | None = None
    regions: int = 0
    via: str | None = None

    @property
    def where(self) -> str:
        """The place as editors open it."""
        return f"{self.path}:{self.line}"


@dataclass
class Digest:
    """What a page shows of a run."""

    environment: Document
    regions: list[Document]
    """The worst first."""
    lines: list[LineDigest] = field(default_factory=list)
    """Lines that a budget limits, those with most syncs in a step first, then those that it does not."""
    parts: str | None = None
    """What a merged run was made of, in one sentence."""

    @property
    def device(self) -> str | None:
        """What was measured on; None if nothing was measured."""
        environment = self.environment
        if environment["recorder"] is None:
            return None
        return device_text(environment_from(environment))

    @property
    def coverage(self) -> str | None:
        """What the recorder could see, in one sentence."""
        return COVERAGE_TEXTS.get(self.environment["coverage"])

    def count(self, outcome: str) -> int:
        """Return the number of regions with an outcome."""
        return sum(1 for region in self.regions if region["outcome"] == outcome)


def digest(document: Document) -> Digest:
    """Return what a page shows of a run object."""
    regions = sorted(document["regions"], key=severity)
    lines: dict[tuple[Any, ...], LineDigest] = {}
    for region in regions:
        _add_lines(region, lines)
    ranked = sorted(
        lines.values(),
        key=lambda line: (line.allowed is not None or line.background, -line.worst, -line.syncs, line.path, line.line),
    )
    labels = [part["label"] for part in document.get("parts") or ()]
    parts = f"Merged from {len(labels)} runs: {', '.join(labels)}" if labels else None
    return Digest(document["environment"], regions, ranked, parts)


def limit(region: Document) -> Limit | None:
    """Return the sync budget that a region was held to, the broken one of several; None without."""
    held = [verdict for verdict in region["verdicts"] if verdict["quantity"] == "syncs"]
    if not held:
        return None
    verdict = next((verdict for verdict in held if verdict["outcome"] == "failed"), held[0])
    if verdict["exact"] is not None:
        return Limit(verdict["exact"], exact=True)
    return None if verdict["max"] is None else Limit(verdict["max"], exact=False)


def broken(region: Document) -> list[str]:
    """Return the sentences of the budgets that a region broke or may have broken, whatever they limit."""
    found = [verdict["sentence"] for verdict in region["verdicts"] if verdict["outcome"] in ("failed", "undecided")]
    return list(dict.fromkeys(found))  # two budgets of one number say it once


def spoken(remedy: str) -> list[tuple[str, bool]]:
    """Return the parts of a remedy, and of each whether it is code: remedies mark code with backticks."""
    return [(part, number % 2 == 1) for number, part in enumerate(remedy.split("`")) if part]


def figure(number: float) -> str:
    """Return a number as people write it: 2, 2.5, 0.031."""
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:,.0f}"


def severity(region: Document) -> tuple[int, float, str]:
    """Return what regions are sorted by, the worst first."""
    most = region["syncs_per_step"]["max"] if region["syncs_per_step"] else 0
    return _SEVERITY[region["outcome"]], -most, region["name"]


def _add_lines(region: Document, lines: dict[tuple[Any, ...], LineDigest]) -> None:
    """Add the sites of a region to the lines of the run: kinds and library frames of a line become one."""
    worst: dict[tuple[Any, ...], int] = {}
    for site in region["sites"]:
        key = (site["path"], site["line"], site["allowed"], site["background"])
        line = lines.get(key)
        if line is None:
            line = lines[key] = _line(site)
        worst[key] = worst.get(key, 0) + site["per_step_max"]
        line.syncs += site["syncs"]
        if site["blocked_ms"] is not None:
            line.blocked_ms = (line.blocked_ms or 0.0) + site["blocked_ms"]
    for key, made in worst.items():
        lines[key].worst = max(lines[key].worst, made)
        lines[key].regions += 1


def _line(site: Document) -> LineDigest:
    rules = rules_for(site["path"], site["line"])
    return LineDigest(
        path=site["path"],
        line=site["line"],
        function=site["function"],
        source=source_text(site["path"], site["line"]),
        # Drawn where the source is not, a line has the code that the run file has for it.
        codes=tuple(rule.code for rule in rules) or ((site["code"],) if site["code"] else ()),
        remedy=rules[0].remedy if rules else None,
        allowed=site["allowed"],
        background=site["background"],
        via=site["via"],
    )
