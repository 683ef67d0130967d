"""A run as one self-contained HTML page, from the Jinja templates in ``page/``.

The page loads nothing. Its policy permits only its own style sheet and script, by their hashes, in case a text of the
run were not escaped. Without the script it shows everything; the script adds filter, sorting and zoom.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from gpusync_lint import __version__
from gpusync_lint.model.codes import page_of

from pytest_gpusync.reporting import html_charts
from pytest_gpusync.reporting.by_device import merged, place_text
from pytest_gpusync.reporting.page_model import (
    BREAKS_GRAPH,
    EVENT_NAMES,
    OUTCOME_NAMES,
    failed_sentences,
    limit,
    page_model,
)
from pytest_gpusync.reporting.site_rows import source_text
from pytest_gpusync.reporting.sources import OUTSIDE, locate
from pytest_gpusync.reporting.templates import fill, page_assets
from pytest_gpusync.reporting.terminal import plural
from pytest_gpusync.reporting.timeline import timeline

if TYPE_CHECKING:
    from pytest_gpusync.model.document import Document
    from pytest_gpusync.reporting.page_model import PageModel, RegionGroup
    from pytest_gpusync.reporting.timeline import Timeline

REGIONS_SHOWN: Final = 500
DETAILS_SHOWN: Final = 40
LINES_SHOWN: Final = 200
"""What is left out is counted on the page and is in the JSON report."""

NAMES_SOUGHT: Final = 20
"""Most regions of a line by whose names the filter finds it."""

SYNCS_SENT: Final = 40_000
"""Most syncs, over all regions, that the script can draw one by one. They take about 10 bytes each."""

_MARKS: Final = {"failed": "✗", "not_measured": "?", "undecided": "≈", "measured": "·", "passed": "✓"}


@dataclass(frozen=True, slots=True)
class _Detail:
    """The charts of one region."""

    region: Document
    is_nested: bool
    is_open: bool
    chart: html_charts.StepsChart | None
    timeline: Timeline | None
    data: dict[str, Any] | None
    """What the script draws; None if the page would become too large."""
    why_empty: str


def to_html(document: Document, folder: Path | None = None) -> str:
    """Return a run object as an HTML page.

    Args:
        document: the run object.
        folder: where the page will be, for links to source files; None for the working directory.
    """
    run = page_model(document)
    groups = _limited(run.groups)
    shown = [(group, region) for group in groups for region in group.regions]
    measured = [region for group in run.groups for region in group.regions]
    details = _details(shown[:DETAILS_SHOWN])
    numbers = {id(detail.region): number for number, detail in enumerate(details)}
    budgets = [budget.number for region in measured if (budget := limit(region)) is not None]
    devices = run.devices
    origin = document.get("origin") or {}
    return fill(
        "page.html",
        run=run,
        title=f"GPU syncs of {run.subject}" if run.regions else "GPU syncs",
        single=measured[0] if len(run.regions) == len(measured) == 1 and not run.is_of_tests else None,
        notes=[note for note in (run.coverage, run.environment["note"], run.races_not_checked, run.parts) if note],
        origin=_origin_rows(origin),
        has_verdicts=any(region["outcome"] != "measured" for region in run.regions),
        problems=_problems(run),
        races=list(run.races.values()),
        groups=groups,
        left_out_regions=len(measured) - len(shown),
        scale=max([1, *budgets, *(region["syncs_per_step"]["max"] for region in measured)]),
        devices=devices,
        device_columns=list(
            dict.fromkeys(count.device for count in merged(region["devices"] for region, _ in devices))
        ),
        details=details,
        left_out_details=len(measured) - len(details),
        numbers=numbers,
        by_name={detail.region["name"]: number for number, detail in enumerate(details)},
        versions=_versions(run, origin),
        source_address=lambda path, line: _source_address(path, line, origin.get("source_url"), folder or Path.cwd()),
        regions_shown=REGIONS_SHOWN,
        **_CONTEXT,
        **page_assets(),
    )


def _limited(groups: list[RegionGroup]) -> list[RegionGroup]:
    """Return the groups of the first regions, as many as are shown."""
    shown: list[RegionGroup] = []
    left = REGIONS_SHOWN
    for group in groups:
        if left <= 0:
            break
        group.regions = group.regions[:left]
        left -= len(group.regions)
        shown.append(group)
    return shown


def _problems(run: PageModel) -> list[tuple[str, str, bool]]:
    """Return the broken budgets, and what was not measured (False), as name and sentence."""
    found = [(region["name"], sentence, True) for region in run.regions for sentence in failed_sentences(region)]
    missed = [region for region in run.regions if region["outcome"] == "not_measured"]
    return found + [(region["name"], f"Not measured: {region['problem']}", False) for region in missed]


def _details(shown: list[tuple[RegionGroup, Document]]) -> list[_Detail]:
    details = []
    left = SYNCS_SENT
    for number, (group, region) in enumerate(shown):
        drawn = timeline(region)
        data = None
        if drawn is not None and len(drawn.columns.starts) <= left:
            left -= len(drawn.columns.starts)
            data = html_charts.script_data(drawn, region["warmup"])
        chart = None
        if region.get("per_step"):
            chart = html_charts.steps_chart(region["per_step"], first=region["warmup"], budget=limit(region))
        outside = len((region.get("order") or {}).get("sites", ()))
        why_empty = (
            f"No syncs in the measured steps; {plural(outside, 'sync')} outside of them." if outside else "No syncs."
        )
        is_open = number == 0 or (region["outcome"] == "failed" and number < 3)
        details.append(_Detail(region, group.is_nested(region), is_open, chart, drawn, data, why_empty))
    return details


def _origin_rows(origin: Document) -> list[tuple[str, str]]:
    commit = origin.get("commit")
    rows = (
        ("Command", origin.get("command")),
        ("Commit", commit and commit[:12]),
        ("Date", (origin.get("date") or "").replace("T", " ").replace("+00:00", " UTC")),
    )
    return [(name, value) for name, value in rows if value]


def _versions(run: PageModel, origin: Document) -> str:
    named = (
        ("pytest-gpusync", origin.get("version")),
        *((name, run.environment[name.lower()]) for name in ("torch", "Python")),
    )
    return ", ".join(f"{name} {version}" for name, version in named if version)


def _source_address(path: str, line: int, source_url: str | None, folder: Path) -> str | None:
    """Return the address of a line: at the host of the repository if the run has it, otherwise the local file's."""
    pure = PurePosixPath(path)
    if source_url is not None and not pure.is_absolute() and ".." not in pure.parts and not path.startswith("<"):
        return f"{source_url}{quote(path, errors='replace')}#L{line}"
    found = locate(path)
    if found is None:
        return None
    try:
        return quote(Path(os.path.relpath(found, folder.resolve())).as_posix(), errors="replace")
    except ValueError:  # on another drive
        return None


_CONTEXT: Final = {
    "version": __version__,
    "marks": _MARKS,
    "outcome_names": OUTCOME_NAMES,
    "event_names": EVENT_NAMES,
    "breaks_graph": BREAKS_GRAPH,
    "outside": OUTSIDE,
    "lane_height": html_charts.LANE_HEIGHT,
    "details_shown": DETAILS_SHOWN,
    "lines_shown": LINES_SHOWN,
    "names_sought": NAMES_SOUGHT,
    "limit": limit,
    "place_text": place_text,
    "source_text": source_text,
    "rule_address": page_of,
    "caption": html_charts.caption,
    "axis_ticks": html_charts.axis_ticks,
    "step_ticks": html_charts.step_ticks,
    "bands": html_charts.bands,
    "block_class": html_charts.block_class,
    "block_title": html_charts.block_title,
}
"""What the templates use beside the run."""
