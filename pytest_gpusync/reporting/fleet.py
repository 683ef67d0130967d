"""Many runs by groups, such as all jobs of a model on a kind of GPU: syncs, sites, budgets and baselines of each."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from pytest_gpusync.reporting.baseline_file import Baseline, Change, decreases, increases
from pytest_gpusync.reporting.run_filter import NONE, TEST, Filter, named, value_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpusync.model.site_key import Key
    from pytest_gpusync.reporting.run_figures import RunFigures

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OVER_NAMED: Final = 1000
"""Most tests over budget that a group keeps."""


class BudgetFileError(ValueError):
    """A file of budgets cannot be used; the message is one line with the remedy."""


class FleetBudget(NamedTuple):
    """A budget for the runs that fulfill its conditions."""

    filters: tuple[Filter, ...]
    max: int
    """Syncs in the worst step of a test."""


class Worst(NamedTuple):
    """A test of a run."""

    syncs: int
    test: str
    run: str
    commit: str | None


@dataclass(slots=True)
class FleetSite:
    """A site over the runs of a group."""

    worst: int = 0
    """Most syncs in one step of any run."""
    runs: int = 0
    """How many runs waited there."""
    ms_per_step: float = 0
    """Sum over the tests that have a time."""
    timed: int = 0
    line: int = 0
    code: str | None = None
    date: str = ""


@dataclass(slots=True)
class Group:
    """The runs that have the same properties."""

    values: tuple[str, ...]
    """In the order of the properties."""
    runs: int = 0
    measured: int = 0
    """Runs that measured a test."""
    tests: set[str] = field(default_factory=set)
    commits: set[str] = field(default_factory=set)
    first: str = ""
    last: str = ""
    """The dates of the first and the last run."""
    coverages: Counter[str] = field(default_factory=Counter)
    worst: Worst | None = None
    figures: list[int] = field(default_factory=list)
    """The worst step of each run."""
    sites: dict[Key, FleetSite] = field(default_factory=dict)
    budgets: set[int] = field(default_factory=set)
    """The budgets that apply to its runs."""
    over: list[Worst] = field(default_factory=list)
    """Tests that broke their budget, at most :data:`OVER_NAMED`."""
    over_number: int = 0
    increases: list[Change] = field(default_factory=list)
    """Sites with more syncs than the baseline has for the group."""
    decreases: list[Change] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The values as one text; it stands for the test in a baseline."""
        return ", ".join(self.values)

    @property
    def median(self) -> float | None:
        """The worst step of a run, in the median."""
        return median(self.figures) if self.figures else None

    @property
    def outcome(self) -> str:
        """``failed``, ``not_measured``, ``passed``, or ``measured`` without budget and baseline."""
        if self.over_number or self.increases:
            return "failed"
        if not self.measured:
            return "not_measured"
        return "passed" if self.budgets else "measured"


@dataclass(slots=True)
class Fleet:
    """All groups."""

    by: tuple[str, ...]
    groups: list[Group]
    """Those that failed first, then those with most syncs."""
    runs: int

    @property
    def has_failed(self) -> bool:
        """Whether a group broke a budget or its baseline."""
        return any(group.outcome == "failed" for group in self.groups)


def fleet(runs: Iterable[RunFigures], by: Sequence[str], budgets: Sequence[FleetBudget] = ()) -> Fleet:
    """Return the runs in groups.

    Args:
        runs: the runs; each is dropped once its figures are noted.
        by: the properties and labels that make a group.
        budgets: to each run applies the first whose conditions it fulfills.
    """
    groups: dict[tuple[str, ...], Group] = {}
    number = 0
    for run in runs:
        number += 1
        values = tuple(value_of(run, name) or NONE for name in by)
        group = groups.get(values)
        if group is None:
            group = groups[values] = Group(values)
        _add(group, run, _budget_of(run, budgets))
    found = Fleet(tuple(by), list(groups.values()), number)
    _sort(found)
    return found


def compare_with(found: Fleet, baseline: Baseline) -> list[str]:
    """Compare each group with its entries in a baseline, and return the names of groups that have none."""
    missing = []
    for group in found.groups:
        entries = baseline.tests.get(group.name)
        if entries is None:
            missing.append(group.name)
        if group.measured:
            group.increases = increases(entries or {}, counts(group))
            group.decreases = decreases(entries or {}, counts(group))
    _sort(found)
    return missing


def baseline_of(found: Fleet) -> Baseline:
    """Return the counts of each measured group as a baseline."""
    coverages = {coverage for group in found.groups for coverage in group.coverages}
    return Baseline(
        {group.name: counts(group) for group in found.groups if group.measured},
        coverages.pop() if len(coverages) == 1 else None,
    )


def counts(group: Group) -> dict[Key, int]:
    """Return the most syncs in one step of any run, by site."""
    return {key: site.worst for key, site in group.sites.items()}


def read_budgets(name: str, data: bytes) -> list[FleetBudget]:
    """Return the budgets in a TOML file with tables ``[[budget]]``.

    Raises:
        BudgetFileError: it is not such a file.
    """
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BudgetFileError(f"{name}: not TOML: {error}") from None
    try:
        file = msgspec.convert(document, _BudgetFile)
    except msgspec.ValidationError as error:
        raise BudgetFileError(
            f'{name}: {error}; write tables [[budget]] with max = 2 and, if wanted, where = {{ gpu = "*H100*" }}'
        ) from None
    if any(TEST in each.where for each in file.budget):
        raise BudgetFileError(f"{name}: a budget is for whole runs, so `where` cannot name tests; use --where test=...")
    return [
        FleetBudget(tuple(named(key, pattern) for key, pattern in each.where.items()), each.max) for each in file.budget
    ]


class _BudgetTable(msgspec.Struct, forbid_unknown_fields=True):
    max: Annotated[int, msgspec.Meta(ge=0)]
    where: dict[str, str] = {}


class _BudgetFile(msgspec.Struct, forbid_unknown_fields=True):
    budget: Annotated[list[_BudgetTable], msgspec.Meta(min_length=1)]


def _budget_of(run: RunFigures, budgets: Sequence[FleetBudget]) -> int | None:
    for budget in budgets:
        if all(one.matches(value_of(run, one.name)) for one in budget.filters):
            return budget.max
    return None


def _add(group: Group, run: RunFigures, budget: int | None) -> None:
    group.runs += 1
    date = (run.origin.date if run.origin is not None else None) or ""
    commit = run.origin.commit if run.origin is not None else None
    if commit:
        group.commits.add(commit)
    if date:
        group.first = min(group.first or date, date)
        group.last = max(group.last, date)
    if budget is not None:
        group.budgets.add(budget)
    if not run.tests:
        return
    group.measured += 1
    if run.environment.coverage is not None:
        group.coverages[run.environment.coverage] += 1
    group.figures.append(max(test.worst for test in run.tests.values()))
    seen: set[Key] = set()
    for name, test in run.tests.items():
        group.tests.add(name)
        worst = Worst(test.worst, name, run.name, commit)
        if group.worst is None or worst.syncs > group.worst.syncs:
            group.worst = worst
        if budget is not None and test.worst > budget:
            group.over_number += 1
            if len(group.over) < OVER_NAMED:
                group.over.append(worst)
        for key, site in test.sites.items():
            found = group.sites.get(key)
            if found is None:
                found = group.sites[key] = FleetSite()
            found.worst = max(found.worst, site.rate.worst)
            if key not in seen:
                seen.add(key)
                found.runs += 1
            if site.ms_per_step is not None:
                found.ms_per_step += site.ms_per_step
                found.timed += 1
            if date >= found.date:
                found.line, found.code, found.date = site.line, site.code, date


def _sort(found: Fleet) -> None:
    order = ("failed", "not_measured", "passed", "measured")
    found.groups.sort(
        key=lambda group: (order.index(group.outcome), -(group.worst.syncs if group.worst else -1), group.values)
    )


def sites_of(group: Group) -> list[tuple[Key, FleetSite]]:
    """Return the sites of a group: those that most runs have first, then those with most syncs."""
    sites: Mapping[Key, FleetSite] = group.sites
    return sorted(sites.items(), key=lambda pair: (-pair[1].runs, -pair[1].worst, pair[0]))
