"""The summary of a session, from the region objects of its tests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from gpusync_lint.escaping import escaped

from pytest_gpusync.reporting.by_device import counts_text, merged, uses_other_devices
from pytest_gpusync.reporting.compilation import compilation_lines
from pytest_gpusync.reporting.not_counted import SET_UP, not_counted_lines
from pytest_gpusync.reporting.rule_names import rules_for
from pytest_gpusync.reporting.site_rows import Row, align, codes, shortened_source
from pytest_gpusync.reporting.terminal import device_text, environment_from, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpusync.model.document import Document

WORST_SHOWN: Final = 5
"""Most tests, and most lines, shown."""


def is_measured(region: Document) -> bool:
    """Return whether a region counted the syncs of something that ran on the device."""
    if region["step_source"] == SET_UP:
        return False
    return region["outcome"] != "not_measured" and bool(region["device_used"])


def summary_lines(environment: Document | None, tests: dict[str, list[Document]], *, noun: str = "test") -> list[str]:
    """Return the summary of a session; empty if there is nothing to report.

    Args:
        environment: where the tests were measured; None if nothing was.
        tests: the region objects of each test, by node id.
        noun: what the keys of `tests` are.
    """
    every_region = [region for found in tests.values() for region in found]
    if not every_region:
        return []
    tests = {name: [one for one in found if one["step_source"] != SET_UP] for name, found in tests.items()}
    tests = {name: found for name, found in tests.items() if found}
    regions = [region for found in tests.values() for region in found]
    lines = []
    if environment is not None:
        lines.append(device_text(environment_from(environment)))
        if environment["note"]:
            lines.append(f"  {environment['note']}")
    lines.append(_counts(tests, noun))
    lines += _races(regions)
    lines += compilation_lines(regions, WORST_SHOWN)
    by_device = merged(region.get("devices") for region in regions)
    if uses_other_devices(by_device):
        lines.append(f"by device: {counts_text(by_device)}")
    lines += _worst_tests(tests)
    lines += _worst_lines(regions)
    lines += not_counted_lines(every_region)
    lines += _undecided(regions)
    lines += _not_measured(regions)
    return [escaped(line) for line in lines]


def document_lines(document: Document) -> list[str]:
    """Return the summary of a run object, by region."""
    environment = document["environment"]
    regions: dict[str, list[Document]] = {}
    for region in document["regions"]:
        regions.setdefault(region["name"], []).append(region)
    lines = summary_lines(environment if environment["recorder"] is not None else None, regions, noun="region")
    return lines or ["nothing was measured"]


def _counts(tests: dict[str, list[Document]], noun: str) -> str:
    measured = sum(1 for regions in tests.values() if any(is_measured(region) for region in regions))
    over = sum(1 for regions in tests.values() if any(region["outcome"] == "failed" for region in regions))
    missed = sum(1 for regions in tests.values() if any(r["outcome"] == "not_measured" for r in regions))
    parts = [f"{plural(measured, noun)} measured"]
    if over:
        parts.append(f"{over} over budget")
    if missed:
        parts.append(f"{missed} not measured")
    return ", ".join(parts)


def _races(regions: Sequence[Document]) -> list[str]:
    """Return the races of all regions, each once."""
    found = list(dict.fromkeys(race["message"] for region in regions for race in region.get("races") or ()))
    rows = [f"  {message}" for message in found[:WORST_SHOWN]]
    if len(found) > WORST_SHOWN:
        rows.append(f"  and {plural(len(found) - WORST_SHOWN, 'race')} more")
    return ["races:", *rows] if rows else []


def _worst_tests(tests: dict[str, list[Document]]) -> list[str]:
    """Return one row per test: its worst region; of equally bad ones, the one that broke its budget."""
    syncing = []
    for regions in tests.values():
        found = [region for region in regions if region["syncs_per_step"] and region["syncs_per_step"]["max"]]
        if found:
            syncing.append(max(found, key=lambda r: (r["syncs_per_step"]["max"], r["outcome"] == "failed")))
    syncing.sort(key=lambda region: -region["syncs_per_step"]["max"])
    if not syncing:
        return []
    rows = [
        f"  {region['syncs_per_step']['max']:>4}{_budget(region)}  {region['name']}" for region in syncing[:WORST_SHOWN]
    ]
    return ["most syncs in a step:", *rows]


def _budget(region: Document) -> str:
    verdicts: list[dict[str, Any]] = [v for v in region["verdicts"] if v["quantity"] == "syncs"]
    if not verdicts:
        return ""
    verdict = next((v for v in verdicts if v["outcome"] == "failed"), verdicts[0])
    limit = f"budget {verdict['max']}" if verdict["exact"] is None else f"exactly {verdict['exact']}"
    return f"  {limit}"


def _worst_lines(regions: Sequence[Document]) -> list[str]:
    worst: Counter[tuple[str, int]] = Counter()
    seen: Counter[tuple[str, int]] = Counter()
    in_all: Counter[tuple[str, int]] = Counter()
    for region in regions:
        made = _syncs_by_line(region)
        seen.update(made.keys())
        worst |= made
        for site in region["sites"]:
            in_all[site["path"], site["line"]] += site["syncs"]
    if not worst:
        return []
    ranked = sorted(worst, key=lambda line: (-worst[line], -seen[line], -in_all[line], line))
    rows = []
    for path, line in ranked[:WORST_SHOWN]:
        rules = rules_for(path, line)
        rows.append(
            Row(
                where=f"{path}:{line}",
                source=shortened_source(path, line, rules),
                code=codes(rules),
                rate=f"up to {worst[path, line]} in a step",
                remark=f"in {plural(seen[path, line], 'region')}",
            )
        )
    return ["lines with most syncs:", *align(rows)]


def _syncs_by_line(region: Document) -> Counter[tuple[str, int]]:
    """Add up the worst steps of a line's kinds and library frames: an upper bound of its syncs in one step."""
    made: Counter[tuple[str, int]] = Counter()
    for site in region["sites"]:
        if site["allowed"] is None and not site["background"] and site["per_step_max"]:
            made[site["path"], site["line"]] += site["per_step_max"]
    return made


def _undecided(regions: Sequence[Document]) -> list[str]:
    rows = dict.fromkeys(
        f"  {region['name']}: {verdict['sentence']}"
        for region in regions
        for verdict in region["verdicts"]
        if verdict["outcome"] == "undecided"
    )
    return ["undecided:", *rows] if rows else []


def caught_lines(passed: Iterable[Sequence[Document]]) -> list[str]:
    """Return the budgets that were broken, or not measured, in tests that passed: the test caught the failure.

    Args:
        passed: the region objects of each test that passed.
    """
    rows = dict.fromkeys(
        f"  {region['name']}: {verdict['sentence']}"
        for regions in passed
        for region in regions
        for verdict in region["verdicts"]
        if verdict["outcome"] in ("failed", "not_measured")
    )
    return ["caught by the test, which passed:", *map(escaped, rows)] if rows else []


def _not_measured(regions: Sequence[Document]) -> list[str]:
    """Return one line per reason, because one reason often holds for a whole session."""
    missed: dict[str, list[str]] = {}
    for region in regions:
        if region["outcome"] == "not_measured":
            missed.setdefault(region["problem"], []).append(region["name"])
    rows = []
    for problem, names in missed.items():
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        rows.append(f"  {names[0]}{others}: {problem}")
    return ["not measured:", *rows] if rows else []
