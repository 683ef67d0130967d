"""Compares a session with its baseline: a test with more syncs fails, one with fewer asks to tighten the file.

The process that runs a test compares it, so that it fails like any other. What the session decides (stale entries, the
new file) is decided where reports are drawn, from the counts sent with the tests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpusync.model.budgets import WHOLE_REGION, Budget, BudgetExceeded, Verdict
from pytest_gpusync.model.line_counts import line_counts
from pytest_gpusync.model.measurement import Site
from pytest_gpusync.model.site_key import Key
from pytest_gpusync.reporting.baseline_file import (
    Baseline,
    BaselineError,
    Change,
    Counts,
    Folders,
    count,
    decreases,
    increases,
    key_of,
    read_baseline,
    to_text,
)
from pytest_gpusync.reporting.run_file import write_atomic
from pytest_gpusync.reporting.site_rows import align, line_row
from pytest_gpusync.reporting.terminal import device_text, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pytest_gpusync.model.line_counts import LineCount
    from pytest_gpusync.model.measurement import Measurement
    from pytest_gpusync.plugin.measured_test import MeasuredTest

    _Increase = tuple[Change, list[LineCount]]
    """A baseline entry with more syncs, and the lines it now applies to."""

SOURCE: Final = "--gpu-sync-baseline"
_CHANGES_SHOWN: Final = 5
_REWRITE: Final = "--gpu-sync-update-baseline rewrites it"


class BaselineCheck:
    """The baseline of a session, and how its tests compare with it."""

    def __init__(self, path: Path, folders: Folders, *, update: bool) -> None:
        self.path = path
        self.update = update
        self._folders = folders
        self._old = _read(path, may_be_missing=update)
        self._counts: dict[str, Counts] = {}
        """Syncs of the tests that ran to their end and were measured."""
        self._unmeasured: set[str] = set()
        self._missing: set[str] = set()
        """Baseline tests that no longer exist."""

    def count(self, run: MeasuredTest, ran: BaselineResult) -> list[Measurement]:
        """Count the syncs of a test that ran to its end, and return the measurements they were counted in."""
        document = run.document()
        regions = document["regions"] if document is not None else []
        if any(region["outcome"] == "not_measured" for region in regions):
            ran.unmeasured = run.device.unavailable is None or run.must_measure
            return []
        kept = run.runs or run.records[:1]
        measurements = [one.measurement for record in kept for one in (record, *record.children)]
        ran.counts = count(measurements, self._folders)
        return measurements

    def judge(self, run: MeasuredTest, ran: BaselineResult) -> None:
        """Compare a test that ran to its end with the baseline.

        Raises:
            BudgetExceeded: a line made more syncs than its baseline entry allows.
        """
        __tracebackhide__ = True
        measurements = self.count(run, ran)
        if ran.counts is None:
            return
        more = increases(self._old.tests.get(run.nodeid, {}), ran.counts)
        if not more or self.update:
            return
        found = [(change, self._lines(measurements, change)) for change in more]
        ran.verdict = self._verdict(measurements, found)
        ran.region = run.records.index((run.runs or run.records)[0])
        raise BudgetExceeded(self._text(measurements, found, ran.verdict, run.limit), ran.verdict)

    def missing_tests(self, collected: Iterable[str], *, whole_files: bool) -> list[str]:
        """Return the baseline tests that no longer exist.

        Args:
            collected: node ids of this session.
            whole_files: False if tests of collected files may have been deselected.
        """
        present = set(collected)
        files = {nodeid.partition("::")[0] for nodeid in present}
        found = []
        for test in self._old.tests:
            file = test.partition("::")[0]
            left_its_file = whole_files and file in files and test not in present
            if left_its_file or not (self._folders.root / file).exists():
                found.append(test)
        return found

    def take_missing(self, tests: Iterable[str]) -> None:
        """Add tests that a process found to be missing."""
        self._missing.update(tests)

    def take(self, nodeid: str, document: dict[str, Any] | None) -> None:
        """Add the result of a test from its report; a repeated test replaces its own."""
        self._counts.pop(nodeid, None)
        self._unmeasured.discard(nodeid)
        if document is None:
            return
        if document["unmeasured"]:
            self._unmeasured.add(nodeid)
        elif document["counts"] is not None:
            self._counts[nodeid] = {Key(*key): syncs for *key, syncs in document["counts"]}

    def stale(self) -> list[str]:
        """Return a line for each entry without syncs, and for each test with entries that was not measured."""
        if self.update:
            return []
        found = [f"{test} no longer exists" for test in sorted(self._missing)]
        for test, change in self._decreases():
            if change.now == 0:
                found.append(f"{test} no longer waits at {change.key}")
        if found:
            found.append(f"the file is stale; {_REWRITE}")
        found += [
            f"{test} has entries but was not measured" for test in sorted(self._unmeasured & set(self._old.tests))
        ]
        return [f"{self.path.name}: {line}" for line in found]

    def notes(self, coverage: str | None) -> list[str]:
        """Return what a session reports about its baseline without failing.

        Args:
            coverage: what the recorder could see; None if nothing was measured.
        """
        if self.update:
            return []
        found = []
        if coverage is not None and self._old.coverage not in (None, coverage):
            found.append(
                f"{self.path.name} was written with coverage {self._old.coverage}, this session has {coverage}: "
                "keep a separate baseline for each"
            )
        fewer = [(test, change) for test, change in self._decreases() if change.now]
        if fewer:
            found.append(f"{self.path.name} can be tightened ({_REWRITE}):")
            found += [
                f"  {change.before} -> {change.now} per step  {change.key}  {test}"
                for test, change in fewer[:_CHANGES_SHOWN]
            ]
            if len(fewer) > _CHANGES_SHOWN:
                found.append(f"  and {len(fewer) - _CHANGES_SHOWN} more")
        return found

    def write(self, coverage: str | None) -> str:
        """Write the file and return a line that says so. Tests that did not run to their end keep their entries.

        Raises:
            OSError: the file cannot be written; the existing file is unchanged.
        """
        tests = {test: counts for test, counts in self._old.tests.items() if test not in self._missing}
        tests.update(self._counts)
        tests = {test: counts for test, counts in tests.items() if counts}
        write_atomic(self.path, to_text(Baseline(tests, coverage or self._old.coverage)))
        entries = sum(len(counts) for counts in tests.values())
        noun = "entry" if entries == 1 else "entries"
        return f"baseline written: {self.path.name}, {entries} {noun} of {plural(len(tests), 'test')}"

    def _decreases(self) -> list[tuple[str, Change]]:
        return [
            (test, change)
            for test, counts in sorted(self._counts.items())
            for change in decreases(self._old.tests.get(test, {}), counts)
        ]

    def _verdict(self, measurements: Sequence[Measurement], found: Sequence[_Increase]) -> Verdict:
        now, before = sum(change.now for change, _ in found), sum(change.before for change, _ in found)
        whole = all(measurement.step_source == WHOLE_REGION for measurement in measurements)
        where = "1 line" if len(found) == 1 else f"{len(found)} lines"
        sentence = f"{'Test' if whole else 'Training step'} made {plural(now, 'sync')} on {where}, baseline {before}"
        offenders = tuple(line for _, grown in found for line in grown)
        return Verdict("failed", sentence, Budget(max=before, source=SOURCE), syncs=now, offenders=offenders)

    def _text(
        self, measurements: Sequence[Measurement], found: Sequence[_Increase], verdict: Verdict, limit: int | None
    ) -> str:
        rows = [
            replace(line_row(line, whole_region=False), rate=f"{change.now} per step, baseline {change.before}")
            for change, grown in found
            for line in grown
        ]
        shown = rows if limit is None else rows[:limit]
        rest = [f"  and {plural(len(rows) - len(shown), 'line')} more (-v shows all)"] if len(shown) < len(rows) else []
        environment = f"  {device_text(measurements[0].environment)}, baseline {self.path.name}"
        return "\n".join([verdict.sentence, *align(shown), *rest, environment])

    def _lines(self, measurements: Sequence[Measurement], change: Change) -> list[LineCount]:
        """Return the lines that one entry applies to; several lines may have the same text."""
        found: dict[tuple[str, int], LineCount] = {}
        for measurement in measurements:
            for line in line_counts(measurement):
                site = Site(line.path, line.line, line.function)
                if line.counted and any(line.by_step) and self._same_line(key_of(site, "", self._folders), change.key):
                    found.setdefault((line.path, line.line), line)
        return list(found.values())

    @staticmethod
    def _same_line(one: Key, other: Key) -> bool:
        return one._replace(kind="") == other._replace(kind="")


class BaselineResult:
    """The result of comparing one run of a test with the baseline."""

    __test__ = False

    def __init__(self) -> None:
        self.counts: Counts | None = None
        """None until the test ran to its end and was measured."""
        self.unmeasured = False
        """True if it ran to its end and could not be measured."""
        self.verdict: Verdict | None = None
        """The failed verdict."""
        self.region = 0
        """Index of the test's region that shows it."""

    def annotate(self, regions: list[dict[str, Any]]) -> None:
        """Add a failed verdict to the region objects of the test, for all reports."""
        if self.verdict is None:
            return
        verdict = self.verdict
        shown = {
            "quantity": "baseline",
            "outcome": verdict.outcome,
            "max": verdict.budget.max,
            "exact": None,
            "source": SOURCE,
            "measured": verdict.syncs,
            "sentence": verdict.sentence,
            "lines": [{"path": line.path, "line": line.line} for line in verdict.offenders],
        }
        regions[self.region]["verdicts"].append(shown)
        regions[self.region]["outcome"] = "failed"

    def document(self) -> dict[str, Any]:
        """Return the result as plain data, which is sent with the test's report."""
        counts = None if self.counts is None else [[*key, syncs] for key, syncs in self.counts.items()]
        return {"counts": counts, "unmeasured": self.unmeasured}


def _read(path: Path, *, may_be_missing: bool) -> Baseline:
    if may_be_missing and not path.exists():
        return Baseline({}, None)
    try:
        return read_baseline(path)
    except BaselineError as error:
        raise pytest.UsageError(f"{SOURCE}: {error}") from None
