"""A comparison of two runs as text, Markdown and JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from gpusync_lint.escaping import escaped

from pytest_gpusync.reporting.markdown import code, text
from pytest_gpusync.reporting.page_model import format_number
from pytest_gpusync.reporting.run_file import escape_surrogates
from pytest_gpusync.reporting.terminal import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.reporting.run_diff import RunDiff, SiteChange, TestChange
    from pytest_gpusync.reporting.run_figures import Interval, Rate, RunFigures, SiteFigures

SCHEMA: Final = "gpusync.diff/1"

ROWS_SHOWN: Final = 50
"""Most sites and tests in a table of Markdown: a comment of GitHub has at most 65,536 characters."""

SOURCE_SHOWN: Final = 80
"""Longest source text in a table, in characters."""

TITLES: Final = {
    "new": "New",
    "more": "More often",
    "unseen": "Not seen by the second run",
    "edited": "Edited, as often as before",
    "allowed": "Now allowed",
    "fewer": "Less often",
    "gone": "Gone",
}

NOTHING: Final = "No test was measured in both runs."


def to_text(diff: RunDiff) -> str:
    """Return a comparison for the terminal."""
    lines = [f"before: {_where(diff.before)}", f"after:  {_where(diff.after)}"]
    lines += [f"note: {difference}" for difference in diff.differences]
    for state, title in TITLES.items():
        sites = [site for site in diff.sites if site.state == state]
        if sites:
            lines += ["", f"{title}:"]
            for site in sites:
                lines += _site_lines(site)
    timed = [(test, name, *both) for test in diff.tests for name, both in test.times().items()]
    if timed:
        lines += ["", "Times (median and its interval):"]
        lines += [f"  {test.name}: {time_text(name, one, other)}" for test, name, one, other in timed]
    if diff.not_compared:
        lines += ["", "Not compared:", *(f"  {name}: {reason}" for name, reason in diff.not_compared)]
    lines += ["", diff.headline() if diff.tests else f"{diff.headline()}. {NOTHING}"]
    return "\n".join(map(escaped, lines)) + "\n"


def to_markdown(diff: RunDiff) -> str:
    """Return a comparison as GitHub-flavored Markdown, which GitLab understands too."""
    blocks = ["### GPU syncs compared", f"**{text(diff.headline())}**"]
    if not diff.tests:
        blocks.append(NOTHING)
    worse = [site for site in diff.sites if site.state in ("new", "more", "unseen")]
    better = [site for site in diff.sites if site not in worse]
    blocks += _table(worse)
    if better:
        blocks += ["<details><summary>Less often, gone, allowed or edited</summary>", *_table(better), "</details>"]
    tests = [test for test in diff.tests if test.before.worst != test.after.worst or test.times()]
    if tests:
        rows = ["| test | worst step before | after | times |", "|---|--:|--:|---|"]
        for test in tests[:ROWS_SHOWN]:
            times = "; ".join(time_text(name, *both) for name, both in test.times().items())
            rows.append(f"| {code(test.name)} | {test.before.worst} | {test.after.worst} | {text(times)} |")
        blocks += ["\n".join(rows), *_left_out(len(tests), "test")]
    if diff.not_compared:
        items = [f"- {code(name)}: {text(reason)}" for name, reason in diff.not_compared[:ROWS_SHOWN]]
        title = f"<details><summary>{plural(len(diff.not_compared), 'test')} not compared</summary>"
        blocks += [title, "\n".join(items), *_left_out(len(diff.not_compared), "test"), "</details>"]
    notes = [f"before: {_where(diff.before)}", f"after: {_where(diff.after)}", *diff.differences]
    blocks.append("\n".join(f"<sub>{text(note)}</sub>  " for note in notes).rstrip())
    return "\n\n".join(blocks) + "\n"


def to_json(diff: RunDiff) -> str:
    """Return a comparison as JSON."""
    document = {
        "schema": SCHEMA,
        "before": run_document(diff.before),
        "after": run_document(diff.after),
        "differences": diff.differences,
        "sites": [_site_document(site) for site in diff.sites],
        "tests": [_test_document(test) for test in diff.tests],
        "not_compared": [{"test": name, "reason": reason} for name, reason in diff.not_compared],
    }
    return escape_surrogates(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"


def run_document(run: RunFigures) -> dict[str, Any]:
    """Return where a run comes from and where it was measured."""
    origin, environment = run.origin, run.environment
    return {
        "name": run.name,
        "commit": origin and origin.commit,
        "date": origin and origin.date,
        "device": run.device if environment.recorder is not None else None,
        "recorder": environment.recorder,
        "coverage": environment.coverage,
        "torch": environment.torch,
    }


def rate_document(rate: Rate) -> dict[str, Any]:
    """Return how often a site waits."""
    return {"per_step": rate.per_step, "per_step_max": rate.worst, "steps": rate.steps, "of": rate.of}


def interval_document(interval: Interval) -> dict[str, float | None]:
    """Return a figure and its interval; a bound that is not known is null."""
    low, high = (None if abs(bound) == float("inf") else bound for bound in interval[1:])
    return {"value": interval.value, "low": low, "high": high}


def time_text(name: str, before: Interval, after: Interval) -> str:
    """Return a time of both runs, and whether the intervals are apart."""
    unit = " ms" if name == "step time" else ""
    if after.low > before.high:
        result = "longer" if unit else "higher"
    elif after.high < before.low:
        result = "shorter" if unit else "lower"
    else:
        result = "no difference that can be told"
    return f"{name} {before}{unit}, and now {after}{unit}: {result}"


def _where(run: RunFigures) -> str:
    origin, environment = run.origin, run.environment
    parts = [run.name]
    if origin is not None and origin.commit:
        parts.append(f"commit {origin.commit[:12]}")
    if origin is not None and origin.date:
        parts.append(origin.date.replace("T", " ").replace("+00:00", " UTC"))
    if environment.recorder is None:
        return ", ".join([*parts, "nothing was measured"])
    torch = f"torch {environment.torch}" if environment.torch else ""
    return ", ".join(part for part in [*parts, run.device, f"coverage {environment.coverage}", torch] if part)


def _site_lines(site: SiteChange) -> list[str]:
    rule = f"  {site.code}" if site.code else ""
    where = f"  {site.key.path}:{site.line}  {site.key.source or f'in {site.key.function}: {site.key.kind}'}{rule}"
    facts = [_change(site)]
    if (waited := _waited(site)) is not None:
        facts.append(waited)
    facts.append(_tests(site))
    lines = [where, f"    {'; '.join(facts)}"]
    if site.source_before is not None:
        lines.insert(1, f"    was: {site.source_before}")
    if site.reason is not None:
        lines.append(f"    allowed: {site.reason}")
    return lines


def _change(site: SiteChange) -> str:
    before, after = site.rates()
    if before is None:
        return str(after)
    if after is None:
        return f"was {before}"
    return str(after) if before == after else f"{before} -> {after}"


def _waited(site: SiteChange) -> str | None:
    before, after = (None if time is None else f"{format_number(time)} ms" for time in site.times())
    if before and after:
        return f"waited {before} -> {after} per step"
    return f"waited {after or before} per step" if after or before else None


def _tests(site: SiteChange) -> str:
    more = f" and {len(site.tests) - 1} more" if len(site.tests) > 1 else ""
    return f"in {site.tests[0]}{more}"


def _table(sites: Sequence[SiteChange]) -> list[str]:
    if not sites:
        return []
    timed = any(_waited(site) for site in sites)
    head = ["change", "line", "source", "before", "after", *(["waited per step"] if timed else []), "rule", "test"]
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for site in sites[:ROWS_SHOWN]:
        times = [f"{format_number(time)} ms" if time is not None else "" for time in site.times()]
        more = f" and {len(site.tests) - 1} more" if len(site.tests) > 1 else ""
        note = f": {text(site.reason)}" if site.reason is not None else ""
        cells = [
            f"{TITLES[site.state].lower()}{note}",
            code(f"{site.key.path}:{site.line}"),
            code(_cut(site.key.source)) if site.key.source else f"in {code(site.key.function)}",
            *(str(rate or "") for rate in site.rates()),
            *([" → ".join(time for time in times if time)] if timed else []),
            text(site.code or ""),
            f"{code(site.tests[0])}{more}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return ["\n".join(rows), *_left_out(len(sites), "line")]


def _cut(source: str) -> str:
    return source if len(source) <= SOURCE_SHOWN else source[: SOURCE_SHOWN - 1] + "…"


def _left_out(number: int, noun: str) -> list[str]:
    left = number - ROWS_SHOWN
    return [f"and {plural(left, noun)} more, in the text and JSON forms"] if left > 0 else []


def _site_document(site: SiteChange) -> dict[str, Any]:
    return {
        "state": site.state,
        **site.key._asdict(),
        "line": site.line,
        "code": site.code,
        "before": _site_figures(site.before),
        "after": _site_figures(site.after),
        "source_before": site.source_before,
        "allowed": site.reason,
        "tests": site.tests,
    }


def _site_figures(site: SiteFigures | None) -> dict[str, Any] | None:
    return None if site is None else {**rate_document(site.rate), "ms_per_step": site.ms_per_step}


def _test_document(test: TestChange) -> dict[str, Any]:
    return {
        "name": test.name,
        "change": {1: "more", 0: "same", -1: "fewer"}[test.change],
        "before": _figures(test, "before"),
        "after": _figures(test, "after"),
        "times": {
            name: {"before": interval_document(one), "after": interval_document(other)}
            for name, (one, other) in test.times().items()
        },
    }


def _figures(test: TestChange, which: str) -> dict[str, Any]:
    figures = getattr(test, which)
    return {"worst": figures.worst, "median": figures.median, "steps": figures.steps, "warmup": figures.warmup}
