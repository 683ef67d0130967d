"""A run as Markdown, for the step summary of a CI job or a pull request."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Final

from gpusync_lint.escaping import escaped

from pytest_gpusync.reporting.by_device import counts_text, place_text
from pytest_gpusync.reporting.page_model import (
    BREAKS_GRAPH,
    EVENT_NAMES,
    OUTCOME_NAMES,
    failed_sentences,
    format_number,
    limit,
    page_model,
    text_and_code,
)
from pytest_gpusync.reporting.terminal import plural

if TYPE_CHECKING:
    from pytest_gpusync.model.document import Document
    from pytest_gpusync.reporting.page_model import LineSummary, PageModel

REGIONS_SHOWN: Final = 50
LINES_SHOWN: Final = 30
"""GitHub cuts a step summary off at 1 MiB. What is left out is counted, and is in the JSON report."""

_MARKUP: Final = re.compile(r"([\\`*_\[\]|~])")
_LINKED: Final = re.compile(r"@(?=\w)|https?:(?=//)|\bwww(?=\.)|#(?=\d)", re.IGNORECASE)


def to_markdown(document: Document) -> str:
    """Return a run object as GitHub-flavored Markdown."""
    run = page_model(document)
    blocks = [
        "## GPU syncs",
        _headline(run),
        *_failed_budgets(run),
        *_races(run),
        *_regions(run),
        *_devices(run),
        *_lines(run),
        *_compilations(run),
        *_unmeasured(run),
        _where(run),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _headline(run: PageModel) -> str:
    if not run.regions:
        return "**Nothing was measured:** no test used the GPU."
    parts = [
        f"{run.count(outcome)} {OUTCOME_NAMES[outcome]}"
        for outcome in ("failed", "not_measured", "undecided", "measured", "passed")
        if run.count(outcome)
    ]
    if len(parts) == 1:
        return f"**{plural(len(run.regions), 'region')}, {OUTCOME_NAMES[run.regions[0]['outcome']]}**"
    return f"**{plural(len(run.regions), 'region')}: {', '.join(parts)}**"


def _failed_budgets(run: PageModel) -> list[str]:
    found = [(region["name"], sentence) for region in run.regions for sentence in failed_sentences(region)]
    items = [f"- {code(name)}: {text(sentence)}" for name, sentence in found[:REGIONS_SHOWN]]
    items += _more(len(found) - REGIONS_SHOWN, "broken budget", "- ")
    return ["\n".join(items)] if items else []


def _races(run: PageModel) -> list[str]:
    found = list(run.races)
    items = [f"- {text(message)}" for message in found[:LINES_SHOWN]]
    items += _more(len(found) - LINES_SHOWN, "race", "- ")
    return ["### Races", "\n".join(items)] if items else []


def _regions(run: PageModel) -> list[str]:
    measured = [region for region in run.regions if region["syncs_per_step"] is not None]
    if not measured:
        return []
    rows = ["| verdict | syncs per step | budget | steps | region |", "|---|--:|--:|--:|---|"]
    for region in measured[:REGIONS_SHOWN]:
        most, middle = region["syncs_per_step"]["max"], region["syncs_per_step"]["median"]
        rate = str(most) if most == middle else f"{most} (median {format_number(middle)})"
        budget = limit(region)
        steps = region["steps"] - region["warmup"]
        rows.append(
            f"| {OUTCOME_NAMES[region['outcome']]} | {rate} | {'' if budget is None else budget} | {steps} "
            f"| {code(region['name'])} |"
        )
    return ["### Budgets", "\n".join(rows), *_more(len(measured) - REGIONS_SHOWN, "region")]


def _devices(run: PageModel) -> list[str]:
    found = run.devices
    if not found:
        return []
    items = [f"- {code(region['name'])}: {counts_text(counts)}" for region, counts in found[:REGIONS_SHOWN]]
    items += _more(len(found) - REGIONS_SHOWN, "region", "- ")
    return ["### Syncs by device", "\n".join(items)]


def _lines(run: PageModel) -> list[str]:
    if not run.lines:
        return []
    timed = any(line.blocked_ms is not None for line in run.lines)
    head = ["line", "source", "worst step", *(["waited"] if timed else []), "rule", "remedy"]
    rows = [f"| {' | '.join(head)} |", f"|---|---|--:|{'--:|' if timed else ''}---|---|"]
    for line in run.lines[:LINES_SHOWN]:
        waited = ["" if line.blocked_ms is None else f"{format_number(line.blocked_ms)} ms"] if timed else []
        cells = [
            code(line.where),
            code(line.source) if line.source else f"in {code(line.function)}",
            str(line.worst) if line.worst else "none",
            *waited,
            text(" ".join(line.codes)),
            _remark(line),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return ["### Lines that waited", "\n".join(rows), *_more(len(run.lines) - LINES_SHOWN, "line")]


def _remark(line: LineSummary) -> str:
    if line.allowed is not None:
        return f"allowed: {text(line.allowed)}"
    if line.background:
        return "on another thread: not counted"
    remedy = "".join(code(part) if is_code else text(part) for part, is_code in text_and_code(line.remedy or ""))
    outside = "" if line.worst else "only in warm-up or after the last step"
    device = place_text(line.devices) if line.devices else ""
    broken = BREAKS_GRAPH if line.breaks_graph else ""
    return " — ".join(
        part for part in (remedy, outside, broken, device, f"via {code(line.via)}" if line.via else "") if part
    )


def _compilations(run: PageModel) -> list[str]:
    found = run.compilations
    if found is None:
        return []
    rows = ["| line | what | times | rule | reason |", "|---|---|--:|---|---|"]
    for line in found.lines[:LINES_SHOWN]:
        cells = [
            code(f"{line['path']}:{line['line']}"),
            text(EVENT_NAMES[line["kind"]]),
            f"{line['times']}",
            text(line["code"] or ""),
            text(line["reason"]),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    more = _more(len(found.lines) - LINES_SHOWN, "line")
    return ["### torch.compile", text(found.sentence), "\n".join(rows), *more]


def _unmeasured(run: PageModel) -> list[str]:
    missed = [region for region in run.regions if region["outcome"] == "not_measured"]
    items = [f"- {code(region['name'])}: {text(region['problem'])}" for region in missed[:REGIONS_SHOWN]]
    items += _more(len(missed) - REGIONS_SHOWN, "region", "- ")
    return ["### Not measured", "\n".join(items)] if items else []


def _where(run: PageModel) -> str:
    """Return the environment: a count means little without what could be seen."""
    environment = run.environment
    versions = ", ".join(
        f"{name} {environment[key]}" for name, key in (("torch", "torch"), ("Python", "python")) if environment[key]
    )
    parts = [run.device, versions, run.coverage, environment["note"], run.races_not_checked, run.parts]
    return "\n".join(f"<sub>{text(part)}</sub>  " for part in parts if part).rstrip()


def code(content: str) -> str:
    """Return text as a code span that works in a table cell, whatever it contains."""
    content = escaped(" ".join(content.split())).replace("|", "\\|")
    ticks = max((len(run) for run in re.findall(r"`+", content)), default=0)
    fence = "`" * (ticks + 1)
    space = " " if content.startswith("`") or content.endswith("`") else ""
    return f"{fence}{space}{content}{space}{fence}"


def text(content: str) -> str:
    """Return text with all Markdown and HTML markup escaped, including what GitHub makes a link or a mention of."""
    quoted = html.escape(escaped(re.sub(r"\s+", " ", content)), quote=False)
    return _LINKED.sub("\\g<0>&#8203;", _MARKUP.sub(r"\\\1", quoted))


def _more(left_out: int, noun: str, bullet: str = "") -> list[str]:
    return [f"{bullet}and {plural(left_out, noun)} more, in the JSON report"] if left_out > 0 else []
