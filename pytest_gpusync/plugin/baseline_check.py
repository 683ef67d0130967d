"""Holding a session to its baseline: a test that waits more fails, what waits less asks to tighten the file.

The process that runs a test judges it, so that it fails like any other; what a session must decide (stale entries, the
new file) is decided where reports are drawn, from the counts that travel home with the tests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpusync.model.budgets import WHOLE_REGION, Budget, BudgetExceeded, Verdict
from pytest_gpusync.model.line_counts import lines
from pytest_gpusync.model.measurement import Site
from pytest_gpusync.plugin.baseline_file import (
    Baseline,
    BaselineError,
    Change,
    Counts,
    Folders,
    Key,
    count,
    decreases,
    increases,
    key_of,
    read_baseline,
    to_text,
)
from pytest_gpusync.reporting.run_file import write_atomic
from pytest_gpusync.reporting.site_rows import draw, row
from pytest_gpusync.reporting.terminal import device_text, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pytest_gpusync.model.line_counts import Line
    from pytest_gpusync.model.measurement import Measurement
    from pytest_gpusync.plugin.measured_test import TestRun

    _Grown = tuple[Change, list[Line]]
    """A line of the baseline that made more syncs, and where it stands now."""

SOURCE: Final = "--gpu-sync-baseline"
_CHANGES_SHOWN: Final = 5
_REWRITE: Final = "--gpu-sync-update-baseline rewrites it"


class Ratchet:
    """The baseline of a session and what its tests made of it."""

    def __init__(self, path: Path, folders: Folders, *, update: bool) -> None:
        self.path = path
        self.update = update
        self._folders = folders
        self._old = _read(path, may_be_missing=update)
        self._counts: dict[str, Counts] = {}
        """Of the tests that ran to their end and were measured."""
        self._unmeasured: set[str] = set()
        self._gone: set[str] = set()
        """Tests of the baseline that are no longer there."""

    def count(self, run: TestRun, ran: TestRatchet) -> list[Measurement]:
        """Count the syncs of a test that ran to its end, and return what they were counted in."""
        document = run.document()
        regions = document["regions"] if document is not None else []
        if any(region["outcome"] == "not_measured" for region in regions):
            ran.unmeasured = run.device.refusal is None or run.insistent
            return []
        measurements = [kept.measurement for kept in run.runs or run.records[:1]]
        ran.counts = count(measurements, self._folders)
        return measurements

    def judge(self, run: TestRun, ran: TestRatchet) -> None:
        """Hold a test that ran to its end to the baseline.

        Raises:
            BudgetExceeded: a line made more syncs than the baseline has for it.
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
        """Return the tests of the baseline that are no longer there.

        Args:
            collected: node ids of this session.
            whole_files: False if tests may have been left out of the files that were collected.
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
        """Take the tests that a process found to be no longer there."""
        self._gone.update(tests)

    def take(self, nodeid: str, document: dict[str, Any] | None) -> None:
        """Take what a test made of the baseline, as its report brought it home; a repeated test replaces its own."""
        self._counts.pop(nodeid, None)
        self._unmeasured.discard(nodeid)
        if document is None:
            return
        if document["unmeasured"]:
            self._unmeasured.add(nodeid)
        elif document["counts"] is not None:
            self._counts[nodeid] = {Key(*key): syncs for *key, syncs in document["counts"]}

    def stale(self) -> list[str]:
        """Return a line for each entry that nothing answers to any more, and for each test that was not measured."""
        if self.update:
            return []
        found = [f"{test} is no longer there" for test in sorted(self._gone)]
        for test, change in self._fewer():
            if change.now == 0:
                found.append(f"{test} no longer waits at {change.key}")
        if found:
            found.append(f"the file is stale; {_REWRITE}")
        found += [
            f"{test} has entries and was not measured" for test in sorted(self._unmeasured & set(self._old.tests))
        ]
        return [f"{self.path.name}: {line}" for line in found]

    def notes(self, coverage: str | None) -> list[str]:
        """Return what a session should say of its baseline without failing for it.

        Args:
            coverage: what the recorder could see; None if nothing was measured.
        """
        if self.update:
            return []
        found = []
        if coverage is not None and self._old.coverage not in (None, coverage):
            found.append(
                f"{self.path.name} was written with coverage {self._old.coverage}, this session has {coverage}: "
                "keep one baseline for each"
            )
        fewer = [(test, change) for test, change in self._fewer() if change.now]
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
        """Write the file anew and return a line that says so. Tests that did not run to their end keep their entries.

        Raises:
            OSError: the file cannot be written; the old one is untouched.
        """
        tests = {test: counts for test, counts in self._old.tests.items() if test not in self._gone}
        tests.update(self._counts)
        tests = {test: counts for test, counts in tests.items() if counts}
        write_atomic(self.path, to_text(Baseline(tests, coverage or self._old.coverage)))
        entries = sum(len(counts) for counts in tests.values())
        noun = "entry" if entries == 1 else "entries"
        return f"baseline written: {self.path.name}, {entries} {noun} of {plural(len(tests), 'test')}"

    def _fewer(self) -> list[tuple[str, Change]]:
        return [
            (test, change)
            for test, counts in sorted(self._counts.items())
            for change in decreases(self._old.tests.get(test, {}), counts)
        ]

    def _verdict(self, measurements: Sequence[Measurement], found: Sequence[_Grown]) -> Verdict:
        now, before = sum(change.now for change, _ in found), sum(change.before for change, _ in found)
        whole = all(measurement.step_source == WHOLE_REGION for measurement in measurements)
        where = "1 line" if len(found) == 1 else f"{len(found)} lines"
        sentence = f"{'Test' if whole else 'Training step'} made {plural(now, 'sync')} on {where}, baseline {before}"
        offenders = tuple(line for _, grown in found for line in grown)
        return Verdict("failed", sentence, Budget(max=before, source=SOURCE), syncs=now, offenders=offenders)

    def _text(
        self, measurements: Sequence[Measurement], found: Sequence[_Grown], verdict: Verdict, limit: int | None
    ) -> str:
        rows = [
            replace(row(line, whole_region=False), rate=f"{change.now} per step, baseline {change.before}")
            for change, grown in found
            for line in grown
        ]
        shown = rows if limit is None else rows[:limit]
        rest = [f"  and {plural(len(rows) - len(shown), 'line')} more (-v shows all)"] if len(shown) < len(rows) else []
        environment = f"  {device_text(measurements[0].environment)}, baseline {self.path.name}"
        return "\n".join([verdict.sentence, *draw(shown), *rest, environment])

    def _lines(self, measurements: Sequence[Measurement], change: Change) -> list[Line]:
        """Return the lines that one entry stands for; several lines may read the same."""
        found: dict[tuple[str, int], Line] = {}
        for measurement in measurements:
            for line in lines(measurement):
                site = Site(line.path, line.line, line.function)
                if line.counted and any(line.by_step) and self._same_line(key_of(site, "", self._folders), change.key):
                    found.setdefault((line.path, line.line), line)
        return list(found.values())

    @staticmethod
    def _same_line(one: Key, other: Key) -> bool:
        return one._replace(kind="") == other._replace(kind="")


class TestRatchet:
    """What one run of one test made of the baseline."""

    __test__ = False

    def __init__(self) -> None:
        self.counts: Counts | None = None
        """None until the test ran to its end and was measured."""
        self.unmeasured = False
        """True if it ran to its end and could not be measured."""
        self.verdict: Verdict | None = None
        """The broken one."""
        self.region = 0
        """Which of the test's regions it is shown at."""

    def annotate(self, regions: list[dict[str, Any]]) -> None:
        """Add a broken verdict to the region objects of the test, as every report shows it."""
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
        """Return it as plain data that travels with the test's report."""
        counts = None if self.counts is None else [[*key, syncs] for key, syncs in self.counts.items()]
        return {"counts": counts, "unmeasured": self.unmeasured}


def _read(path: Path, *, may_be_missing: bool) -> Baseline:
    if may_be_missing and not path.exists():
        return Baseline({}, None)
    try:
        return read_baseline(path)
    except BaselineError as error:
        raise pytest.UsageError(f"{SOURCE}: {error}") from None
