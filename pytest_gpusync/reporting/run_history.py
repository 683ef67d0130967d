"""The figures of many runs over commits: a series per test and per site, and where each changed.

Runs of one commit are one point, whose interval covers all of them. Runs on other devices, or with another coverage,
are other series: their counts are not comparable. A test that a commit did not measure has no point there; a site that
made no sync in a test that was measured has a point of 0.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpusync.model.change_points import Point, change_points, is_steady
from pytest_gpusync.model.site_key import Site, edits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpusync.model.change_points import Change
    from pytest_gpusync.model.site_key import Key
    from pytest_gpusync.reporting.run_figures import Rate, RunFigures

    _Place = tuple[int, str, str, tuple[str, str, str]]
    """A moment, a group, a test, and the path, function and kind of a site."""

WORST_STEP: Final = "syncs in the worst step"
PER_STEP: Final = "syncs per step"

_SOURCE_URL: Final = re.compile(r"(https://.+?(?:/-)?)/blob/([0-9a-f]{40,64})/")


class Moment(NamedTuple):
    """A commit with runs, or a run without a commit."""

    label: str
    """The commit, shortened; or the file."""
    commit: str | None
    time: str
    """Of the commit if it is known, otherwise of its first run: ISO 8601."""
    subject: str
    address: str | None
    """Of the commit, at the host of the repository."""
    runs: int


class CommitInfo(NamedTuple):
    """What is known of a commit from its repository."""

    position: int
    time: str
    subject: str


@dataclass(slots=True)
class Series:
    """A figure over the moments."""

    group: str
    """The device and the coverage."""
    test: str
    key: Key | None
    """The site; None for a figure of the test."""
    quantity: str
    code: str | None = None
    line: int | None = None
    """The site's line number in the latest run."""
    indices: list[int] = field(default_factory=list)
    """The moments that have a point."""
    points: list[Point] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    """Their indices are those of points."""
    steady: bool = True

    @property
    def is_count(self) -> bool:
        """Whether it counts syncs, which do not vary by themselves."""
        return self.quantity in (WORST_STEP, PER_STEP)


@dataclass(slots=True)
class Event:
    """A change of a figure at a moment, in all tests in which it is the same."""

    moment: int
    end: int | None
    """The moment at which the earlier level returned."""
    series: list[Series]
    before: float
    after: float
    confirmed: bool
    is_explained: bool = False
    """Whether it is of a test, one of whose sites changed in the same direction."""
    notes: list[str] = field(default_factory=list)
    """What else changed with this moment, such as the version of torch."""

    @property
    def is_more(self) -> bool:
        """Whether the figure grew."""
        return self.after > self.before

    @property
    def verb(self) -> str:
        """What happened, in one or two words."""
        quantity = self.series[0].quantity
        more, less = ("more syncs", "fewer syncs") if self.series[0].is_count else ("higher", "lower")
        if quantity == "step time":
            more, less = "slower", "faster"
        return more if self.is_more else less


@dataclass(slots=True)
class History:
    """Series and changes, over moments in order."""

    moments: list[Moment]
    series: list[Series]
    """By group and test: figures of a test, then its sites, those with most syncs first."""
    events: list[Event]
    """The latest first."""
    runs: int
    groups: list[str]
    left_out: list[str]
    """The names of files that tell neither their commit nor their date."""


@dataclass(slots=True)
class _Observed:
    """The runs of one group at one moment."""

    worst: dict[str, tuple[int, int]] = field(default_factory=dict)
    times: dict[tuple[str, str], Point] = field(default_factory=dict)
    rates: dict[tuple[str, Key], list[Rate]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    """How many runs measured each test."""
    incomplete: set[str] = field(default_factory=set)
    environment: dict[str, str | None] = field(default_factory=dict)


@dataclass(slots=True)
class _Moment:
    date: str
    names: int = 0
    address: str | None = None
    groups: dict[str, _Observed] = field(default_factory=dict)


def history(
    runs: Iterable[RunFigures], commits: Callable[[Iterable[str]], Mapping[str, CommitInfo]] | None = None
) -> History:
    """Return the history of runs, which may come in any order.

    Args:
        runs: the runs; each is dropped once its figures are noted.
        commits: returns what a repository knows of commits, by their names.
    """
    moments: dict[tuple[str | None, str], _Moment] = {}
    lines: dict[tuple[str, Key], tuple[str, int, str | None]] = {}
    left_out = []
    number = 0
    for run in runs:
        origin = run.origin
        commit, date = (origin.commit, origin.date or "") if origin is not None else (None, "")
        if not commit and not date:
            left_out.append(run.name)
            continue
        number += 1
        moment = moments.setdefault((commit, "" if commit else run.name), _Moment(date))
        moment.date = min(moment.date, date) if moment.date and date else moment.date or date
        moment.names += 1
        moment.address = moment.address or _address(origin.source_url if origin is not None else None)
        _observe(moment.groups.setdefault(group_of(run), _Observed()), run, lines, date)
    known = {} if commits is None else commits(commit for commit, _ in moments if commit)
    order = _ordered(moments, known)
    found = History(
        [_moment(key, moments[key], known) for key in order], [], [], number,
        sorted({group for moment in moments.values() for group in moment.groups}), left_out,
    )  # fmt: skip
    for group in found.groups:
        observed = [
            (index, moments[key].groups[group]) for index, key in enumerate(order) if group in moments[key].groups
        ]
        found.series += _series(group, observed, lines)
    for series in found.series:
        series.changes = change_points(series.points)
    found.series = _with_edits_joined(found.series)
    for series in found.series:
        series.steady = is_steady(series.points)
    environments = {
        (group, index): observed.environment
        for index, key in enumerate(order)
        for group, observed in moments[key].groups.items()
    }
    found.events = _events(found.series, environments)
    return found


def group_of(run: RunFigures) -> str:
    """Return what makes runs comparable: the device and the coverage."""
    coverage = run.environment.coverage
    return "nothing measured" if coverage is None else f"{run.device}, coverage {coverage}"


def _observe(
    observed: _Observed, run: RunFigures, lines: dict[tuple[str, Key], tuple[str, int, str | None]], date: str
) -> None:
    environment = run.environment
    observed.environment = {"torch": environment.torch, "driver": environment.driver, "recorder": environment.recorder}
    for name, test in run.tests.items():
        low, high = observed.worst.get(name, (test.worst, test.worst))
        observed.worst[name] = min(low, test.worst), max(high, test.worst)
        observed.counts[name] += 1
        if test.problem is not None:
            observed.incomplete.add(name)
        for quantity, time in test.times.items():
            there = observed.times.get((name, quantity))
            point = Point(*time)
            observed.times[name, quantity] = point if there is None else _hull([there, point])
        for key, site in test.sites.items():
            observed.rates.setdefault((name, key), []).append(site.rate)
            if (found := lines.get((name, key))) is None or found[0] <= date:
                lines[name, key] = date, site.line, site.code


def _series(
    group: str, observed: Sequence[tuple[int, _Observed]],
    lines: Mapping[tuple[str, Key], tuple[str, int, str | None]],
) -> list[Series]:  # fmt: skip
    """Return the series of one group: of each test, then of its sites."""
    tests: defaultdict[str, list[int]] = defaultdict(list)
    sites: defaultdict[str, dict[Key, None]] = defaultdict(dict)
    times: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for place, (_, one) in enumerate(observed):
        for name in one.worst:
            tests[name].append(place)
        for name, key in one.rates:
            sites[name][key] = None
        for name, quantity in one.times:
            times[name][quantity] = None
    found = []
    for name in sorted(tests):
        measured = [observed[place] for place in tests[name]]
        series = Series(group, name, None, WORST_STEP)
        series.indices = [index for index, _ in measured]
        series.points = [Point(high, low, high) for _, one in measured for low, high in [one.worst[name]]]
        found.append(series)
        for quantity in times[name]:
            series = Series(group, name, None, quantity)
            with_time = [(index, one.times[name, quantity]) for index, one in measured if (name, quantity) in one.times]
            series.indices = [index for index, _ in with_time]
            series.points = [point for _, point in with_time]
            found.append(series)
        of_sites = [_site_series(group, name, key, measured, lines[name, key]) for key in sites[name]]
        found += sorted(of_sites, key=lambda each: (-each.points[-1].value, -max(each.points).value, each.key or ()))
    return found


def _site_series(
    group: str, name: str, key: Key, measured: Sequence[tuple[int, _Observed]], line: tuple[str, int, str | None]
) -> Series:
    series = Series(group, name, key, PER_STEP, line[2], line[1])
    numbers = {rate.of for _, one in measured for rate in one.rates.get((name, key), ())}
    for index, one in measured:
        rates = one.rates.get((name, key), [])
        points = [Point(rate.per_step, *(rate.bounds() if len(numbers) > 1 else [rate.per_step] * 2)) for rate in rates]
        if len(rates) < one.counts[name]:
            if name in one.incomplete:  # a run that did not see all does not show that the line no longer waits
                continue
            points.append(Point(0, 0, 0))
        series.indices.append(index)
        series.points.append(_hull(points))
    return series


def _hull(points: Sequence[Point]) -> Point:
    return Point(
        max(point.value for point in points), min(point.low for point in points), max(point.high for point in points)
    )


def _with_edits_joined(series: Sequence[Series]) -> list[Series]:
    """Return the series, with the two of a line whose text was edited as one, under its later text."""
    gone: defaultdict[_Place, list[Series]] = defaultdict(list)
    new: defaultdict[_Place, list[Series]] = defaultdict(list)
    for each in series:
        for change in each.changes:
            if each.key is not None and 0 in (change.before, change.after) and change.end is None:
                place = each.indices[change.index], each.group, each.test, each.key[:3]
                (gone if change.after == 0 else new)[place].append(each)
    replaced: dict[int, Series] = {}  # by the identity of the series with the earlier text
    for place in sorted(gone.keys() & new.keys()):
        sides = [[Site(each.key.source if each.key else "", each.code) for each in side[place]] for side in (gone, new)]
        for number, other in edits(*sides):
            old, edited = (_latest(each, replaced) for each in (gone[place][number], new[place][other]))
            if old is edited or old.indices != edited.indices:
                continue
            pairs = list(zip(old.points, edited.points, strict=True))
            if all(0 in (one.value, another.value) for one, another in pairs):  # they are never both there
                edited.points = [max(pair) for pair in pairs]
                edited.changes = change_points(edited.points)
                replaced[id(old)] = edited
    return [each for each in series if id(each) not in replaced]


def _latest(series: Series, replaced: Mapping[int, Series]) -> Series:
    while id(series) in replaced:
        series = replaced[id(series)]
    return series


def _events(series: Iterable[Series], environments: Mapping[tuple[str, int], Mapping[str, str | None]]) -> list[Event]:
    """Return the changes, with those of several tests that are the same as one."""
    found: dict[tuple[object, ...], Event] = {}
    for each in series:
        for change in each.changes:
            moment = each.indices[change.index]
            end = None if change.end is None else each.indices[change.end]
            identity = (each.group, each.quantity, each.key or each.test, moment, end, change.before, change.after)
            event = found.get(identity)
            if event is None:
                event = found[identity] = Event(moment, end, [], change.before, change.after, change.confirmed)
                previous = environments[each.group, each.indices[change.index - 1]]
                event.notes = _differences(previous, environments[each.group, moment])
            event.series.append(each)
    changed = {
        (each.group, each.test, event.moment, event.is_more)
        for event in found.values()
        for each in event.series
        if each.key is not None
    }
    for event in found.values():
        first = event.series[0]
        event.is_explained = first.key is None and first.is_count and (
            (first.group, first.test, event.moment, event.is_more) in changed
        )  # fmt: skip
    return sorted(found.values(), key=_event_order)


def _event_order(event: Event) -> tuple[object, ...]:
    """Return the sort key of an event: the latest first, sites before tests, the largest change first."""
    first = event.series[0]
    change = event.after - event.before
    return -event.moment, first.key is None, -abs(change), first.test, first.key or (), first.quantity


def _differences(before: Mapping[str, str | None], after: Mapping[str, str | None]) -> list[str]:
    return [f"{name} {before[name]} -> {after[name]}" for name in after if before[name] != after[name]]


def _ordered(
    moments: Mapping[tuple[str | None, str], _Moment], known: Mapping[str, CommitInfo]
) -> list[tuple[str | None, str]]:
    """Return the moments in order: commits as in the history of the repository, others between them by their time."""

    def time(key: tuple[str | None, str]) -> tuple[str, int, str, str]:
        commit = known.get(key[0] or "")
        when = commit.time if commit is not None else moments[key].date
        return _utc(when), -1 if commit is None else commit.position, key[0] or "", key[1]

    order = sorted(moments, key=time)
    # Times of commits may disagree with the history, which is right.
    places = [number for number, key in enumerate(order) if key[0] in known]
    in_history = sorted((order[number] for number in places), key=lambda key: known[key[0] or ""].position)
    for number, key in zip(places, in_history, strict=True):
        order[number] = key
    return order


def _utc(time: str) -> str:
    """Return an ISO 8601 time such that text order is time order."""
    from datetime import datetime, timezone

    try:
        found = datetime.fromisoformat(time.replace("Z", "+00:00"))
    except ValueError:
        return time
    zoned = found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)
    return zoned.astimezone(timezone.utc).isoformat(timespec="seconds")


def _moment(key: tuple[str | None, str], found: _Moment, known: Mapping[str, CommitInfo]) -> Moment:
    commit, name = key
    info = known.get(commit or "")
    label = commit[:12] if commit else name.rpartition("/")[2]
    time = _utc(info.time if info is not None else found.date)
    return Moment(label, commit, time, info.subject if info else "", found.address if commit else None, found.names)


def _address(source_url: str | None) -> str | None:
    match = _SOURCE_URL.match(source_url or "")
    return f"{match[1]}/commit/{match[2]}" if match else None
