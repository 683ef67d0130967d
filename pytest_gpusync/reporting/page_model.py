"""The content of a report page, in its order: the worst first. No markup, which differs between formats."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.reporting.by_device import counts_from, merged, uses_other_devices
from pytest_gpusync.reporting.compilation import compilations
from pytest_gpusync.reporting.rule_names import rules_for
from pytest_gpusync.reporting.site_rows import source_text
from pytest_gpusync.reporting.sources import is_refused, lines_around
from pytest_gpusync.reporting.terminal import device_text, environment_from, plural

if TYPE_CHECKING:
    from pytest_gpusync.model.document import Document
    from pytest_gpusync.model.measurement import DeviceCount
    from pytest_gpusync.reporting.compilation import Compilations

_SEVERITY: Final = {"failed": 0, "not_measured": 1, "undecided": 2, "measured": 3, "passed": 4}

OUTCOME_NAMES: Final = {
    "failed": "over budget",
    "not_measured": "not measured",
    "undecided": "too noisy to tell",
    "measured": "no budget",
    "passed": "within budget",
}

BREAKS_GRAPH: Final = "breaks a graph of torch.compile"

EVENT_NAMES: Final = {"graph_break": "graph break", "recompilation": "compiled again"}

RACES_NOT_CHECKED: Final = "Races were not checked: they are found on the simulated device."

SOURCE_AROUND: Final = 4
"""Lines of source kept before and after a line that waited."""

COVERAGE_TEXTS: Final = {
    "driver": "The recorder saw every synchronize call of the process, from any library.",
    "torch": "The recorder saw only the syncs that torch itself makes; other libraries may have made more.",
    "dispatcher": "The recorder saw only reads, copies and synchronize calls, in torch's dispatcher.",
    "simulated": "Counted on a simulated CUDA device. It makes the same syncs, but not in the time a GPU takes.",
}


_BRACKETS: Final = re.compile(r" \[[^\[\]]*\]\Z")
"""What merging adds to a region's name."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The sync budget of a region."""

    number: int
    exact: bool

    def __str__(self) -> str:
        return f"exactly {self.number}" if self.exact else str(self.number)


@dataclass
class LineSummary:
    """One source line over all regions of a run."""

    path: str
    line: int
    function: str
    source: str
    """Text of the line; empty if the file cannot be read."""
    around: list[tuple[int, str]]
    """The lines around it and the line itself, with their numbers; empty if the file cannot be read."""
    is_refused: bool
    """Whether the file exists but must not be read, see :mod:`.sources`."""
    codes: tuple[str, ...]
    remedy: str | None
    allowed: str | None
    background: bool
    worst: int = 0
    """Most syncs in one step of any region."""
    syncs: int = 0
    """In all regions, including warm-up."""
    blocked_ms: float | None = None
    regions: list[str] = field(default_factory=list)
    """The names of the regions in which it waited."""
    via: str | None = None
    devices: list[DeviceCount] = field(default_factory=list)
    """Its syncs by device; empty if the run has none of another device than ``cuda:0``."""
    breaks_graph: bool = False
    """Whether `torch.compile` broke a graph at it."""

    @property
    def where(self) -> str:
        """``path:line``, which editors can open."""
        return f"{self.path}:{self.line}"


@dataclass
class RegionGroup:
    """The measured regions of one test, or a region that belongs to none."""

    test: str | None
    """The test's node id."""
    regions: list[Document]
    """That of the test itself first, if there is one."""

    @property
    def has_head(self) -> bool:
        """Whether the first region is the test's own."""
        return bool(self.regions[0]["name"] == self.test)

    def is_nested(self, region: Document) -> bool:
        """Return whether a region is shown below its test."""
        return len(self.regions) > 1 and region["name"] != self.test

    def shown_name(self, region: Document) -> str:
        """Return the name of a region, without its test's if it is nested."""
        name: str = region["name"]
        return name.removeprefix(f"{self.test} ") if self.is_nested(region) else name


@dataclass
class PageModel:
    """The content of a page for one run."""

    environment: Document
    regions: list[Document]
    """The worst first."""
    lines: list[LineSummary] = field(default_factory=list)
    """Lines that budgets count, ordered by most syncs in a step, then lines that they do not count."""
    parts: str | None = None
    """What a merged run was made of, in one sentence."""
    compilations: Compilations | None = None
    """The graph breaks and recompilations of all regions; None if there were none."""

    @property
    def races(self) -> dict[str, Document]:
        """The races of all regions by message, each once."""
        return {race["message"]: race for region in self.regions for race in region.get("races") or ()}

    @property
    def races_not_checked(self) -> str | None:
        """A sentence, if races were not looked for."""
        return RACES_NOT_CHECKED if self.environment["device"] == "cuda" else None

    @property
    def device(self) -> str | None:
        """The device that was measured; None if nothing was measured."""
        environment = self.environment
        if environment["recorder"] is None:
            return None
        return device_text(environment_from(environment))

    @property
    def coverage(self) -> str | None:
        """What the recorder could see, in one sentence."""
        return COVERAGE_TEXTS.get(self.environment["coverage"])

    @property
    def devices(self) -> list[tuple[Document, list[DeviceCount]]]:
        """The measured regions, each with its syncs by device; empty if all syncs are of ``cuda:0``."""
        found = [(region, counts_from(region.get("devices"))) for region in self.regions]
        used = any(uses_other_devices(counts) for _, counts in found)
        return [(region, counts) for region, counts in found if counts] if used else []

    @property
    def groups(self) -> list[RegionGroup]:
        """The measured regions, those of a test together; the worst test first."""
        found: dict[object, RegionGroup] = {}
        for number, region in enumerate(self.regions):
            if region["syncs_per_step"] is not None:
                test = region.get("test")
                group = found.setdefault(number if test is None else test, RegionGroup(test, []))
                group.regions.insert(0 if region["name"] == test else len(group.regions), region)
        return list(found.values())

    @property
    def is_of_tests(self) -> bool:
        """Whether tests were measured, and not a program."""
        return any(region.get("test") is not None or "::" in region["name"] for region in self.regions)

    @property
    def subject(self) -> str:
        """What was measured: the program, or the number of tests."""
        if self.is_of_tests:
            return plural(len({region.get("test") or region["name"] for region in self.regions}), "test")
        names = {_BRACKETS.sub("", region["name"]) for region in self.regions}
        return names.pop() if len(names) == 1 else plural(len(names), "region")

    def count(self, outcome: str) -> int:
        """Return the number of regions with an outcome."""
        return sum(1 for region in self.regions if region["outcome"] == outcome)


def page_model(document: Document) -> PageModel:
    """Return the page content for a run object."""
    regions = sorted(document["regions"], key=severity)
    lines: dict[tuple[Any, ...], LineSummary] = {}
    for region in regions:
        _add_lines(region, lines)
    ranked = sorted(
        lines.values(),
        key=lambda line: (line.allowed is not None or line.background, -line.worst, -line.syncs, line.path, line.line),
    )
    found = PageModel(document["environment"], regions, ranked, compilations=compilations(regions))
    if found.compilations is not None:
        for line in ranked:
            line.breaks_graph = found.compilations.breaks_at(line.path, line.line)
    if found.devices:
        _add_devices(found)
    labels = [part["label"] for part in document.get("parts") or ()]
    found.parts = f"Merged from {len(labels)} runs: {', '.join(labels)}" if labels else None
    return found


def limit(region: Document) -> Limit | None:
    """Return the sync budget of a region, the broken one if there are several; None if there is none."""
    held = [verdict for verdict in region["verdicts"] if verdict["quantity"] == "syncs"]
    if not held:
        return None
    verdict = next((verdict for verdict in held if verdict["outcome"] == "failed"), held[0])
    if verdict["exact"] is not None:
        return Limit(verdict["exact"], exact=True)
    return None if verdict["max"] is None else Limit(verdict["max"], exact=False)


def failed_sentences(region: Document) -> list[str]:
    """Return the sentences of the failed and undecided budgets of a region, whatever they limit."""
    found = [verdict["sentence"] for verdict in region["verdicts"] if verdict["outcome"] in ("failed", "undecided")]
    return list(dict.fromkeys(found))  # two budgets of the same number have the same sentence


def text_and_code(remedy: str) -> list[tuple[str, bool]]:
    """Return the parts of a remedy, each with whether it is code: remedies mark code with backticks."""
    return [(part, number % 2 == 1) for number, part in enumerate(remedy.split("`")) if part]


def format_number(number: float) -> str:
    """Return a number with three significant digits: 2, 2.5, 0.031."""
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:,.0f}"


def severity(region: Document) -> tuple[int, float, str]:
    """Return the sort key of a region: the worst first."""
    most = region["syncs_per_step"]["max"] if region["syncs_per_step"] else 0
    return _SEVERITY[region["outcome"]], -most, region["name"]


def _add_lines(region: Document, lines: dict[tuple[Any, ...], LineSummary]) -> None:
    """Add the sites of a region to the lines of the run; kinds and library frames of a line are merged."""
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
        lines[key].regions.append(region["name"])


def _add_devices(run: PageModel) -> None:
    """Add to each line its syncs by device."""
    sites: dict[tuple[Any, ...], list[Any]] = {}
    for region in run.regions:
        for site in region["sites"]:
            key = (site["path"], site["line"], site["allowed"], site["background"])
            sites.setdefault(key, []).append(site.get("devices"))
    for line in run.lines:
        line.devices = merged(sites[line.path, line.line, line.allowed, line.background])


def _line(site: Document) -> LineSummary:
    rules = rules_for(site["path"], site["line"])
    return LineSummary(
        path=site["path"],
        line=site["line"],
        function=site["function"],
        source=source_text(site["path"], site["line"]),
        around=lines_around(site["path"], site["line"], SOURCE_AROUND),
        is_refused=is_refused(site["path"]),
        # If the source file is not available, use the code from the run file.
        codes=tuple(rule.code for rule in rules) or ((site["code"],) if site["code"] else ()),
        remedy=rules[0].remedy if rules else None,
        allowed=site["allowed"],
        background=site["background"],
        via=site["via"],
    )
