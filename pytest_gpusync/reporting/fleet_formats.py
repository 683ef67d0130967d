"""Groups of runs as text, Markdown, JSON and an HTML page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from gpusync_lint import __version__
from gpusync_lint.escaping import escaped
from gpusync_lint.model.codes import page_of

from pytest_gpusync.reporting.fleet import sites_of
from pytest_gpusync.reporting.markdown import code, text
from pytest_gpusync.reporting.page_model import format_number
from pytest_gpusync.reporting.run_file import escape_surrogates
from pytest_gpusync.reporting.terminal import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.model.site_key import Key
    from pytest_gpusync.reporting.baseline_file import Change
    from pytest_gpusync.reporting.fleet import Fleet, FleetSite, Group, Worst

SCHEMA: Final = "gpusync.fleet/1"

SITES_SHOWN: Final = 5
"""Sites of a group in the text and in Markdown."""

PAGE_SITES: Final = 30
PAGE_GROUPS: Final = 500
OVER_SHOWN: Final = 5

OUTCOMES: Final = {
    "failed": "over budget",
    "not_measured": "not measured",
    "passed": "within budget",
    "measured": "no budget",
}


def to_text(fleet: Fleet) -> str:
    """Return the groups for the terminal."""
    lines = [headline(fleet)]
    for group in fleet.groups:
        lines += ["", f"{title(fleet, group)}: {OUTCOMES[group.outcome]}", f"  {facts(group)}"]
        lines += [f"  {sentence}" for sentence in problems(group)]
        sites = sites_of(group)
        lines += [f"    {site_text(key, site, group)}" for key, site in sites[:SITES_SHOWN]]
        if len(sites) > SITES_SHOWN:
            lines.append(f"    and {plural(len(sites) - SITES_SHOWN, 'site')} more")
    return "\n".join(map(escaped, lines)) + "\n"


def to_markdown(fleet: Fleet) -> str:
    """Return the groups as GitHub-flavored Markdown."""
    rows = ["| group | verdict | runs | worst step | median | sites |", "|---|---|--:|--:|--:|--:|"]
    for group in fleet.groups[:PAGE_GROUPS]:
        worst = "" if group.worst is None else str(group.worst.syncs)
        middle = "" if group.median is None else format_number(group.median)
        rows.append(
            f"| {text(title(fleet, group))} | {OUTCOMES[group.outcome]} | {group.runs} | {worst} | {middle} "
            f"| {len(group.sites)} |"
        )
    blocks = ["### GPU syncs by group", f"**{text(headline(fleet))}**", "\n".join(rows)]
    left = len(fleet.groups) - PAGE_GROUPS
    blocks += [f"and {plural(left, 'group')} more, in the JSON form"] if left > 0 else []
    for group in fleet.groups[:PAGE_GROUPS]:
        if group.outcome == "failed":
            items = [f"- {text(sentence)}" for sentence in problems(group)]
            items += [f"- {code(site_text(key, site, group))}" for key, site in sites_of(group)[:SITES_SHOWN]]
            blocks += [f"#### {text(title(fleet, group))}", "\n".join(items)]
    return "\n\n".join(blocks) + "\n"


def to_json(fleet: Fleet) -> str:
    """Return the groups as JSON."""
    document = {"schema": SCHEMA, "by": fleet.by, "runs": fleet.runs, "groups": [_group(each) for each in fleet.groups]}
    return escape_surrogates(json.dumps(document, ensure_ascii=False)) + "\n"


def to_html(fleet: Fleet) -> str:
    """Return the groups as an HTML page, in the style of a run's."""
    from pytest_gpusync.reporting.templates import fill, page_assets

    shown = fleet.groups[:PAGE_GROUPS]
    return fill(
        "fleet.html",
        fleet=fleet,
        headline=headline(fleet),
        groups=shown,
        left_out=len(fleet.groups) - len(shown),
        scale=max([1, *(group.worst.syncs for group in shown if group.worst is not None)]),
        outcomes=OUTCOMES,
        group_title=lambda group: title(fleet, group),
        facts=facts,
        problems=problems,
        sites_of=sites_of,
        site_facts=site_facts,
        sites_shown=PAGE_SITES,
        rule_address=page_of,
        version=__version__,
        **page_assets(),
    )


def headline(fleet: Fleet) -> str:
    """Return the result in one clause."""
    failed = sum(group.outcome == "failed" for group in fleet.groups)
    what = f", {failed} over budget or baseline" if failed else ""
    return f"{plural(fleet.runs, 'run')} in {plural(len(fleet.groups), 'group')} by {', '.join(fleet.by)}{what}"


def title(fleet: Fleet, group: Group) -> str:
    """Return the name of a group: ``model gpt-2, gpu NVIDIA H200``."""
    return ", ".join(f"{name} {value}" for name, value in zip(fleet.by, group.values, strict=True))


def facts(group: Group) -> str:
    """Return how many runs a group has, and the syncs of their worst step."""
    parts = [plural(group.runs, "run")]
    if group.measured < group.runs:
        parts.append(f"{group.runs - group.measured} of them not measured")
    if group.commits:
        parts.append(plural(len(group.commits), "commit"))
    if group.first:
        parts.append(f"{group.first[:10]} to {group.last[:10]}")
    if group.worst is not None and group.median is not None:
        parts.append(f"worst step {group.worst.syncs}, {format_number(group.median)} in the median run")
    if group.coverages:
        parts.append(f"coverage {', '.join(sorted(group.coverages))}")
    return "; ".join(parts)


def problems(group: Group) -> list[str]:
    """Return a sentence for each broken budget that is named, and for each site with more syncs than its baseline."""
    found = [f"over budget: {_worst(worst)}" for worst in sorted(group.over, key=lambda one: -one.syncs)[:OVER_SHOWN]]
    if group.over_number > OVER_SHOWN:
        found.append(f"and {group.over_number - OVER_SHOWN} more over budget")
    found += [
        f"more than the baseline: {change.before} -> {change.now} per step  {change.key}" for change in group.increases
    ]
    return found


def site_text(key: Key, site: FleetSite, group: Group) -> str:
    """Return a site in one line."""
    rule = f"  {site.code}" if site.code else ""
    return f"{key.path}:{site.line}  {key.source or key.function}{rule}  {site_facts(site, group)}"


def site_facts(site: FleetSite, group: Group) -> str:
    """Return how often a site waits, and in how many runs."""
    time = f", {format_number(site.ms_per_step / site.timed)} ms per step" if site.timed else ""
    return f"up to {site.worst} per step, in {site.runs} of {plural(group.measured, 'run')}{time}"


def _worst(worst: Worst) -> str:
    commit = f", commit {worst.commit[:12]}" if worst.commit else ""
    return f"{plural(worst.syncs, 'sync')} in the worst step of {worst.test} ({worst.run}{commit})"


def _group(group: Group) -> dict[str, Any]:
    return {
        "values": group.values,
        "outcome": group.outcome,
        "runs": group.runs,
        "measured": group.measured,
        "tests": len(group.tests),
        "commits": sorted(group.commits),
        "first": group.first or None,
        "last": group.last or None,
        "coverages": dict(group.coverages),
        "budgets": sorted(group.budgets),
        "median": group.median,
        "worst": None if group.worst is None else group.worst._asdict(),
        "over": [worst._asdict() for worst in group.over],
        "over_number": group.over_number,
        "increases": [
            {**change.key._asdict(), "before": change.before, "now": change.now} for change in group.increases
        ],
        "decreases": [
            {**change.key._asdict(), "before": change.before, "now": change.now} for change in group.decreases
        ],
        "sites": [
            {
                **key._asdict(),
                "line": site.line,
                "code": site.code,
                "per_step_max": site.worst,
                "runs": site.runs,
                "ms_per_step": site.ms_per_step / site.timed if site.timed else None,
            }
            for key, site in sites_of(group)
        ],
    }


def _changes(changes: Sequence[Change]) -> list[dict[str, Any]]:
    return [{**change.key._asdict(), "before": change.before, "now": change.now} for change in changes]
