"""A run as one self-contained HTML page: no script, no network, for light and dark, wide and narrow screens."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from pytest_gpusync.reporting.by_device import device_label, merged, place_text
from pytest_gpusync.reporting.html_charts import lanes, steps_chart
from pytest_gpusync.reporting.html_style import STYLE
from pytest_gpusync.reporting.page_model import (
    OUTCOME_NAMES,
    failed_sentences,
    format_number,
    limit,
    page_model,
    text_and_code,
)
from pytest_gpusync.reporting.site_rows import source_text
from pytest_gpusync.reporting.terminal import plural
from pytest_gpusync.reporting.timeline import timeline

if TYPE_CHECKING:
    from pytest_gpusync.model.document import Document
    from pytest_gpusync.model.measurement import DeviceCount
    from pytest_gpusync.reporting.page_model import LineSummary, PageModel

REGIONS_SHOWN: Final = 500
DETAILS_SHOWN: Final = 40
LINES_SHOWN: Final = 200
"""What is left out is counted on the page and is in the JSON report."""

_MARKS: Final = {"failed": "✗", "not_measured": "?", "undecided": "≈", "measured": "·", "passed": "✓"}

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""The page's permissions, in case a path or a source line is not escaped: none."""


def to_html(document: Document) -> str:
    """Return a run object as an HTML page."""
    run = page_model(document)
    body = "\n".join(
        [
            _header(run),
            _failed_budgets(run),
            _races(run),
            _regions(run),
            _devices(run),
            _lines(run),
            _details(run),
            _footer(run),
        ]
    )
    return (
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>GPU syncs</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
        )
        .encode("utf-8", "backslashreplace")
        .decode()
    )


def _header(run: PageModel) -> str:
    chips = [
        f'<span class="chip {outcome}">{_MARKS[outcome]} {run.count(outcome)} {OUTCOME_NAMES[outcome]}</span>'
        for outcome in ("failed", "not_measured", "undecided", "measured", "passed")
        if run.count(outcome)
    ]
    said = run.device or "Nothing was measured: no test used the GPU."
    notes = "".join(
        f"<p class=note>{escape(note)}</p>"
        for note in (run.coverage, run.environment["note"], run.races_not_checked, run.parts)
        if note
    )
    return f"<header><h1>GPU syncs</h1><p>{escape(said)}</p>{notes}<p class=chips>{''.join(chips)}</p></header>"


def _failed_budgets(run: PageModel) -> str:
    items = [
        f"<li><code>{escape(region['name'])}</code> {escape(sentence)}</li>"
        for region in run.regions
        for sentence in failed_sentences(region)
    ]
    missed = [
        f"<li class=unknown><code>{escape(region['name'])}</code> Not measured: {escape(region['problem'])}</li>"
        for region in run.regions
        if region["outcome"] == "not_measured"
    ]
    found = items + missed
    if not found:
        return ""
    listed = "".join(found[:DETAILS_SHOWN])
    return f"<ul class=broken>{listed}</ul>{_more(len(found) - DETAILS_SHOWN, 'sentence')}"


def _races(run: PageModel) -> str:
    found = list(run.races.values())
    if not found:
        return ""
    items = "".join(_race(race) for race in found[:LINES_SHOWN])
    return (
        f"<section><h2>Races</h2><p class=note>Accesses of the same bytes that nothing orders, at least one of them a "
        f"write</p><ol class=lines>{items}</ol>{_more(len(found) - LINES_SHOWN, 'race')}</section>"
    )


def _race(race: Document) -> str:
    places = "".join(
        f"<div class=where><code>{escape(place['path'])}:{place['line']}</code> in {escape(place['function'])}, "
        f"{escape(place['stream'])}</div>" + (f"<pre>{escape(source)}</pre>" if source else "")
        for place in (race, race["other"])
        for source in (source_text(place["path"], place["line"]),)
    )
    times = f"<div class=facts>{plural(race['times'], 'time')}</div>"
    kind = escape(race["kind"])
    return f"<li>{places}<div class=said><b class=code>{kind}</b> {escape(race['message'])}</div>{times}</li>"


def _regions(run: PageModel) -> str:
    measured = [region for region in run.regions if region["syncs_per_step"] is not None]
    if not measured:
        return ""
    budgets = [budget.number for region in measured if (budget := limit(region)) is not None]
    scale = max([1, *budgets, *(region["syncs_per_step"]["max"] for region in measured)])
    rows = "".join(_region_row(region, number, scale) for number, region in enumerate(measured[:REGIONS_SHOWN]))
    return (
        "<section><h2>Budget per test</h2><div class=scroll><table class=regions><thead><tr><th>verdict<th>region"
        "<th class=n>worst<th class=n>median<th class=n>budget<th class=bar>syncs in the worst step"
        f"<th class=n>steps</tr></thead><tbody>{rows}</tbody></table></div>"
        f"{_more(len(measured) - REGIONS_SHOWN, 'region')}</section>"
    )


def _region_row(region: Document, number: int, scale: int) -> str:
    most, middle = region["syncs_per_step"]["max"], region["syncs_per_step"]["median"]
    outcome, budget, name = region["outcome"], limit(region), escape(region["name"])
    linked = f'<a href="#region-{number}">{name}</a>' if number < DETAILS_SHOWN else name
    mark = "" if budget is None else f'<i style="left:{100 * budget.number / scale:.2f}%"></i>'
    return (
        f'<tr><td><span class="chip {outcome}">{_MARKS[outcome]} {OUTCOME_NAMES[outcome]}</span>'
        f"<td class=name>{linked}<td class=n>{most}<td class=n>{format_number(middle)}"
        f"<td class=n>{'' if budget is None else budget}"
        f'<td class=bar><div class="meter {outcome}"><b style="width:{100 * most / scale:.2f}%"></b>{mark}</div>'
        f"<td class=n>{region['steps'] - region['warmup']}</tr>"
    )


def _devices(run: PageModel) -> str:
    """Return a table of the syncs by region and device; empty if all of them are of ``cuda:0``."""
    found = run.devices
    if not found:
        return ""
    columns = list(dict.fromkeys(count.device for count in merged(region["devices"] for region, _ in found)))
    head = "".join(f"<th class=n>{escape(device_label(device))}" for device in columns)
    rows = "".join(_device_row(region, counts, columns) for region, counts in found[:REGIONS_SHOWN])
    return (
        "<section><h2>Syncs by device</h2><div class=scroll><table class=devices>"
        f"<thead><tr><th>region{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"{_more(len(found) - REGIONS_SHOWN, 'region')}</section>"
    )


def _device_row(region: Document, counts: list[DeviceCount], columns: list[int | None]) -> str:
    by_device = {count.device: count for count in counts}
    cells = []
    for device in columns:
        count = by_device.get(device)
        time = "" if count is None or count.blocked_ms is None else f" ({format_number(count.blocked_ms)} ms)"
        cells.append(f"<td class=n>{0 if count is None else count.syncs}{time}")
    return f"<tr><td class=name>{escape(region['name'])}{''.join(cells)}</tr>"


def _lines(run: PageModel) -> str:
    if not run.lines:
        return ""
    items = "".join(_line(line) for line in run.lines[:LINES_SHOWN])
    return (
        f"<section><h2>Lines that waited</h2><ol class=lines>{items}</ol>"
        f"{_more(len(run.lines) - LINES_SHOWN, 'line')}</section>"
    )


def _line(line: LineSummary) -> str:
    facts = [
        f"<b>{line.worst}</b> in the worst step" if line.worst else "only in warm-up or after the last step",
        f"{plural(line.syncs, 'sync')} in {plural(line.regions, 'region')}",
    ]
    facts.append("not timed" if line.blocked_ms is None else f"<b>{format_number(line.blocked_ms)} ms</b> waited")
    if line.devices:
        facts.append(escape(place_text(line.devices)))
    if line.allowed is not None:
        said = f"allowed: {escape(line.allowed)}"
    elif line.background:
        said = "on another thread than the test's: not counted"
    else:
        codes = "".join(f"<b class=code>{escape(code)}</b> " for code in line.codes)
        said = codes + _remedy(line.remedy or "") if codes else "<em>the linter has no rule for this line</em>"
    via = f" <span class=via>via {escape(line.via)}</span>" if line.via else ""
    source = f"<pre>{escape(line.source)}</pre>" if line.source else ""
    excused = " class=excused" if line.allowed is not None or line.background else ""
    return (
        f"<li{excused}><div class=where><code>{escape(line.where)}</code> in {escape(line.function)}{via}</div>{source}"
        f"<div class=said>{said}</div><div class=facts>{' · '.join(facts)}</div></li>"
    )


def _remedy(remedy: str) -> str:
    return "".join(f"<code>{escape(part)}</code>" if code else escape(part) for part, code in text_and_code(remedy))


def _details(run: PageModel) -> str:
    measured = [region for region in run.regions if region["syncs_per_step"] is not None]
    parts = [_detail(region, number) for number, region in enumerate(measured[:DETAILS_SHOWN])]
    if not parts:
        return ""
    more = _more(len(measured) - DETAILS_SHOWN, "region")
    return f"<section><h2>Step by step</h2>{''.join(parts)}{more}</section>"


def _detail(region: Document, number: int) -> str:
    unfolded = " open" if number == 0 or (region["outcome"] == "failed" and number < 3) else ""
    budget, drawn = limit(region), timeline(region)
    steps = f"a step ends at {region['step_source']}" if region["step_source"] != "whole region" else "one step"
    parts = [f"<p class=note>{escape(steps)}, {plural(region['warmup'], 'step')} of warm-up left out</p>"]
    if region.get("per_step"):
        parts.append(steps_chart(region["per_step"], first=region["warmup"], budget=budget))
    parts.append(lanes(drawn, number, region["warmup"]) if drawn is not None else "<p class=note>No syncs.</p>")
    return (
        f'<details id="region-{number}"{unfolded}><summary><span class="chip {region["outcome"]}">'
        f"{_MARKS[region['outcome']]} {OUTCOME_NAMES[region['outcome']]}</span> {escape(region['name'])}</summary>"
        f"{''.join(parts)}</details>"
    )


def _footer(run: PageModel) -> str:
    versions = [
        f"{name} {run.environment[key]}"
        for name, key in (("torch", "torch"), ("Python", "python"))
        if run.environment[key]
    ]
    return f"<footer>pytest-gpusync, {escape(', '.join(versions))}</footer>"


def _more(left_out: int, noun: str) -> str:
    return f"<p class=note>and {plural(left_out, noun)} more, in the JSON report</p>" if left_out > 0 else ""
