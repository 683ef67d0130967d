"""What changed between two runs: sites that are new, gone, or wait more or less often, and tests with them.

Sites are matched by their key, so a line that only moved is no change. What one of the runs did not measure is listed
as not compared: not measured is not zero.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pytest_gpusync.model.measurement import COVERAGES
from pytest_gpusync.model.site_key import Site, edits
from pytest_gpusync.reporting.run_figures import joined, without_source
from pytest_gpusync.reporting.terminal import plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpusync.model.site_key import Key
    from pytest_gpusync.reporting.run_figures import Interval, Rate, RunFigures, SiteFigures, TestFigures

STATES: Final = ("new", "more", "unseen", "edited", "allowed", "fewer", "gone")
"""What can have happened to a site, the worst first.

``edited``: the text of its line changed, and it syncs as often as before. ``allowed``: an author marked it with a
reason. ``unseen``: it has no syncs in the second run, which sees less than the first."""

MORE: Final = ("new", "more")
"""The states of sites that sync more often than before."""

_COMPARED: Final = ("gpu", "driver", "recorder", "coverage", "torch", "python")


@dataclass(frozen=True, slots=True)
class SiteChange:
    """A site that changed, in all tests in which it changed in the same way."""

    state: str
    key: Key
    before: SiteFigures | None
    """Its figures in the first of `tests`."""
    after: SiteFigures | None
    tests: list[str] = field(default_factory=list)
    source_before: str | None = None
    """The text of an edited line in the first run."""
    reason: str | None = None
    """Why it is allowed."""

    @property
    def line(self) -> int:
        """Its number in the second run; in the first run if it is gone."""
        shown = self.after or self.before
        return shown.line if shown is not None else 0

    @property
    def code(self) -> str | None:
        """The linter's rule for the line."""
        return next((site.code for site in (self.after, self.before) if site is not None and site.code), None)

    def rates(self) -> tuple[Rate | None, Rate | None]:
        """Return how often it syncs in both runs."""
        before, after = (None if site is None else site.rate for site in (self.before, self.after))
        return before, after

    def times(self) -> tuple[float | None, float | None]:
        """Return the milliseconds that the host waited per step, in the mean, in both runs."""
        before, after = (None if site is None else site.ms_per_step for site in (self.before, self.after))
        return before, after


@dataclass(frozen=True, slots=True)
class TestChange:
    """A test that both runs measured, with its figures in both."""

    __test__ = False

    name: str
    before: TestFigures
    after: TestFigures
    change: int
    """1 if its worst step, or any of its sites, makes more syncs; -1 if they make fewer; 0 if nothing changed."""

    def times(self) -> dict[str, tuple[Interval, Interval]]:
        """Return the times that both runs measured."""
        return {
            name: (time, self.after.times[name]) for name, time in self.before.times.items() if name in self.after.times
        }


@dataclass(slots=True)
class RunDiff:
    """What changed from one run to another."""

    before: RunFigures
    after: RunFigures
    differences: list[str] = field(default_factory=list)
    """What else differs between the runs, such as the device: a sentence each."""
    sites: list[SiteChange] = field(default_factory=list)
    """The worst first."""
    tests: list[TestChange] = field(default_factory=list)
    not_compared: list[tuple[str, str]] = field(default_factory=list)
    """Tests that only one of the runs measured, or that cannot be compared, with the reason."""
    lost: list[str] = field(default_factory=list)
    """Of these, the tests that the first run measured and the second could not."""

    @property
    def is_more(self) -> bool:
        """Whether a site syncs more often, or the worst step of a test makes more syncs."""
        return any(test.change > 0 for test in self.tests)

    def headline(self) -> str:
        """Return the result in one clause."""
        if not self.tests:
            return "Nothing could be compared"
        counted = Counter(site.state for site in self.sites)
        parts = [f"{counted[state]} {_NOUNS[state]}" for state in STATES if counted[state]]
        what = ", ".join(parts) if parts else "no site changed"
        return f"{plural(len(self.tests), 'test')} compared: {what}"


_NOUNS: Final = {
    "new": "new",
    "more": "more often",
    "unseen": "not seen",
    "edited": "edited",
    "allowed": "now allowed",
    "fewer": "less often",
    "gone": "gone",
}


def compare(before: Sequence[RunFigures], after: Sequence[RunFigures]) -> RunDiff:
    """Compare two runs; the parts of a merged run are compared as one, with the worst figure of any part.

    Args:
        before: the parts of the first run.
        after: the parts of the second run.
    """
    first, second = joined(before), joined(after)
    found = RunDiff(first, second, _differences(before, after))
    pairs = _pairs(first, second, found)
    sees_less = _coverage(after) < _coverage(before)
    steps: Counter[tuple[int, int, int, int]] = Counter()
    changes: defaultdict[tuple[object, ...], list[tuple[str, SiteChange]]] = defaultdict(list)
    for one, other in pairs:
        if (one.steps, one.warmup) != (other.steps, other.warmup):
            steps[one.steps, one.warmup, other.steps, other.warmup] += 1
        sites = _changes(one, other, sees_less=sees_less)
        for site in sites:
            identity = (site.state, site.key, site.rates(), site.source_before)
            changes[identity].append((other.name, site))
        found.tests.append(TestChange(other.name, one, other, _direction(one, other, sites)))
    found.differences += _steps_text(steps, len(pairs))
    found.sites = sorted((_joined([name for name, _ in group], group[0][1]) for group in changes.values()), key=_rank)
    found.tests.sort(key=lambda test: (-test.change, test.before.worst - test.after.worst, test.name))
    return found


def _pairs(first: RunFigures, second: RunFigures, found: RunDiff) -> list[tuple[TestFigures, TestFigures]]:
    """Return the tests that both runs measured, and note the others."""
    one, other = _single(first), _single(second)
    if one is not None and other is not None and one.name != other.name:
        found.differences.append(f"the programs differ: {one.name} and {other.name}")
        return [(one, other)]
    pairs = []
    for name, test in first.tests.items():
        after = second.tests.get(name)
        if after is None:
            reason = second.not_measured.get(name)
            found.not_compared.append((name, "only in the first run" if reason is None else f"not measured: {reason}"))
            if reason is not None:
                found.lost.append(name)
        elif after.step_source != test.step_source:
            found.not_compared.append((name, f"a step ended at {test.step_source}, and now at {after.step_source}"))
            found.lost.append(name)
        else:
            pairs.append((test, after))
    for name, test in second.tests.items():
        if name not in first.tests:
            reason = first.not_measured.get(name)
            why = "only in the second run" if reason is None else f"not measured in the first run: {reason}"
            found.not_compared.append((name, f"{why}; {plural(test.worst, 'sync')} in the worst step"))
    return pairs


def _single(run: RunFigures) -> TestFigures | None:
    """Return the one program that a run traced; None for tests."""
    tests = list(run.tests.values())
    return tests[0] if len(tests) == 1 and "::" not in tests[0].name and not run.not_measured else None


def _changes(one: TestFigures, other: TestFigures, *, sees_less: bool) -> list[SiteChange]:
    """Return the sites of a test that changed; each in this test alone."""
    nameless = {key[:3] for test in (one, other) for key in test.sites if not key.source}
    before, after = without_source(one, nameless), without_source(other, nameless)
    found = []
    for key, site in after.items():
        there = before.get(key)
        change = 1 if there is None else site.rate.compared_with(there.rate)
        if change:
            state = "new" if there is None else "more" if change > 0 else "fewer"
            found.append(SiteChange(state, key, there, site))
    for key, site in before.items():
        if key in after:
            continue
        if key in other.allowed:
            found.append(SiteChange("allowed", key, site, None, reason=other.allowed[key]))
        else:
            # A run that sees less, or that did not see all, does not show that a line no longer waits.
            is_blind = sees_less or other.problem is not None
            found.append(SiteChange("unseen" if is_blind else "gone", key, site, None))
    return _with_edits(found)


def _with_edits(changes: list[SiteChange]) -> list[SiteChange]:
    """Return the changes, with a line whose text was edited as one change."""
    groups: defaultdict[tuple[str, str, str], list[SiteChange]] = defaultdict(list)
    for change in changes:
        if change.state in ("new", "gone"):
            groups[change.key[:3]].append(change)
    for group in groups.values():
        gone, new = ([change for change in group if change.state == state] for state in ("gone", "new"))
        pairs = edits(*([Site(change.key.source, change.code) for change in side] for side in (gone, new)))
        for old, edited in ((gone[number], new[other]) for number, other in pairs):
            edit = _edit(old, edited)
            changes = [edit if change is edited else change for change in changes if change is not old]
    return changes


def _edit(gone: SiteChange, new: SiteChange) -> SiteChange:
    assert gone.before is not None
    assert new.after is not None
    way = new.after.rate.compared_with(gone.before.rate)
    state = "more" if way > 0 else "fewer" if way < 0 else "edited"
    return SiteChange(state, new.key, gone.before, new.after, source_before=gone.key.source)


def _direction(one: TestFigures, other: TestFigures, sites: Sequence[SiteChange]) -> int:
    states = {site.state for site in sites}
    if other.worst > one.worst or states & set(MORE):
        return 1
    return -1 if other.worst < one.worst or states & {"fewer", "gone", "allowed"} else 0


def _joined(tests: list[str], site: SiteChange) -> SiteChange:
    site.tests.extend(tests)
    return site


def _rank(site: SiteChange) -> tuple[object, ...]:
    shown = site.after or site.before
    return STATES.index(site.state), -(shown.rate.per_step if shown else 0), site.key, site.tests


def _differences(before: Sequence[RunFigures], after: Sequence[RunFigures]) -> list[str]:
    """Return in what the environments differ."""
    found = []
    names = [{run.device for run in runs if run.environment.recorder is not None} for runs in (before, after)]
    if names[0] != names[1] and all(names):
        found.append(f"device: {_listed(names[0])}, and now {_listed(names[1])}")
    for quantity in _COMPARED:
        values = [_values(runs, quantity) for runs in (before, after)]
        if values[0] != values[1] and all(values) and quantity != "gpu":
            found.append(f"{quantity}: {_listed(values[0])}, and now {_listed(values[1])}")
    if _coverage(after) < _coverage(before):
        found.append("the second run sees less than the first: a site that it did not see may still be there")
    elif _coverage(after) > _coverage(before):
        found.append("the second run sees more than the first: a new site may have been there before")
    return found


def _values(runs: Sequence[RunFigures], quantity: str) -> set[str]:
    values = {getattr(run.environment, quantity) for run in runs if run.environment.recorder is not None}
    return {str(value) for value in values if value is not None}


def _coverage(runs: Sequence[RunFigures]) -> int:
    """Return how much the least able recorder of a run sees."""
    seen = [COVERAGES.index(run.environment.coverage) for run in runs if run.environment.coverage is not None]
    return min(seen, default=-1)


def _steps_text(steps: Mapping[tuple[int, int, int, int], int], tests: int) -> list[str]:
    """Return which tests ran another number of steps."""
    found = []
    for (one, warm_one, other, warm_other), number in steps.items():
        which = "" if tests == 1 else f"{plural(number, 'test')}: "
        warm = "" if warm_one == warm_other else f" (warm-up of {warm_one}, and now {warm_other})"
        found.append(f"{which}{plural(one, 'step')} after warm-up, and now {other}{warm}; compared per step")
    return found


def _listed(values: set[str]) -> str:
    return " and ".join(sorted(values))
