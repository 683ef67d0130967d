"""The figures of a run that comparisons and histories look at: for each test its syncs per step, by site, and times.

A site is identified as in a baseline, by :class:`.Key`. As in a baseline, syncs that are allowed, of other threads, of
warm-up, or outside of steps are not counted; and a test with several regions of one name counts with its worst.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import total_ordering
from itertools import pairwise
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpusync.model.estimates import median_estimate
from pytest_gpusync.model.site_key import Key, portable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpusync_lint.files.run_files import Environment, Order, Origin, Region, Run

SET_UP: Final = "set-up"
"""The step source of a test's set-up, which no budget counts."""


class Interval(NamedTuple):
    """A figure and the interval that covers it; a bound that is not known is infinite."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        shown = "–".join(f"{bound:.3g}" for bound in (self.low, self.high) if isfinite(bound))
        return f"{self.value:.3g} ({shown})" if isfinite(self.low) and isfinite(self.high) else f"{self.value:.3g}"


@total_ordering
@dataclass(frozen=True, slots=True)
class Rate:
    """How often a site syncs in the steps after warm-up."""

    worst: int
    """Most syncs in one step."""
    made: int
    """Syncs in all of these steps. Where a step with syncs may make fewer than the worst, this is an upper bound."""
    steps: int
    """Of these steps, those with syncs."""
    of: int
    """Steps after warm-up."""

    def __str__(self) -> str:
        if self.of == 1:
            return f"{self.worst} in all"
        if self.made == self.worst * self.of:
            return f"{self.worst} per step"
        return f"up to {self.worst} per step, in {self.steps} of {self.of}"

    @property
    def per_step(self) -> float:
        """Syncs per step, in the mean."""
        return self.made / self.of

    def __lt__(self, other: Rate) -> bool:
        return (self.per_step, self.worst) < (other.per_step, other.worst)

    def __add__(self, other: Rate) -> Rate:
        """Return the rate of two sites with one key, in the same region."""
        return Rate(self.worst + other.worst, self.made + other.made, max(self.steps, other.steps), self.of)

    def bounds(self) -> tuple[float, float]:
        """Return the rates between which any number of steps may lie of which these are a part.

        A site that waits in every tenth step does so in one or two of eleven steps: the count of a window is off by
        less than one step with syncs.
        """
        return (self.made - self.worst) / self.of, min(self.worst, (self.made + self.worst) / self.of)

    def compared_with(self, before: Rate) -> int:
        """Return 1 if this rate is higher than `before`, -1 if it is lower, and 0 if that cannot be told.

        Over the same number of steps, counts are compared. Over different numbers, a rate is higher only if what the
        two numbers of steps can show lies apart.
        """
        if self.of == before.of:
            return (self > before) - (self < before)
        (low, high), (low_before, high_before) = self.bounds(), before.bounds()
        return (low >= high_before) - (high <= low_before)


@dataclass(slots=True)
class SiteFigures:
    """One site in one test."""

    line: int
    rate: Rate
    code: str | None
    ms_per_step: float | None
    """Time that the host waited, in milliseconds, in the mean; None if it was not measured for every sync."""


@dataclass(slots=True)
class TestFigures:
    """One test, or a region outside of tests."""

    __test__ = False

    name: str
    step_source: str | None
    steps: int
    """Steps after warm-up."""
    warmup: int
    worst: int
    """Syncs in the worst step."""
    median: float
    sites: dict[Key, SiteFigures] = field(default_factory=dict)
    """The counted sites that waited in these steps."""
    allowed: dict[Key, str] = field(default_factory=dict)
    """The reasons of the sites that are allowed."""
    times: dict[str, Interval] = field(default_factory=dict)
    """By quantity: ``step time``, in milliseconds, and the ratios that were measured."""
    problem: str | None = None
    """Why not everything was measured."""


@dataclass(slots=True)
class RunFigures:
    """One run of one process."""

    name: str
    """The file, and the part of a merged run."""
    environment: Environment
    origin: Origin | None
    tests: dict[str, TestFigures]
    not_measured: dict[str, str]
    """Tests that were to be measured and were not, with the reason."""

    @property
    def device(self) -> str:
        """The name of the device: that of the GPU, or ``simulated``."""
        return self.environment.gpu or self.environment.device or "none"


def figures_of(name: str, run: Run) -> list[RunFigures]:
    """Return the figures of a run, of each part for a merged one.

    Args:
        name: the path of the file, as the user gave it.
        run: the run in it.
    """
    if run.parts is None:
        return [_figures(name, run.environment, run.origin, ((region.name, region) for region in run.regions))]
    return [
        _figures(
            f"{name}: {part.label}",
            part.environment,
            part.origin or run.origin,
            ((region.name.removesuffix(f" [{part.label}]"), region) for region in run.regions if region.part == number),
        )
        for number, part in enumerate(run.parts)
    ]


def joined(runs: Iterable[RunFigures]) -> RunFigures:
    """Return several runs as one, such as the ranks of a distributed run: of each test and site the worst.

    Environment and origin are those of the first.
    """
    found = list(runs)
    tests: dict[str, TestFigures] = {}
    not_measured: dict[str, str] = {}
    for run in found:
        for name, test in run.tests.items():
            tests[name] = _worse(tests[name], test) if name in tests else test
        not_measured |= run.not_measured
    measured = {name: reason for name, reason in not_measured.items() if name not in tests}
    return RunFigures(found[0].name, found[0].environment, found[0].origin, tests, measured)


def without_source(test: TestFigures, groups: set[tuple[str, str, str]]) -> dict[Key, SiteFigures]:
    """Return the sites of a test, without source text where path, function and kind are in `groups`."""
    found: dict[Key, SiteFigures] = {}
    for key, site in test.sites.items():
        _add(found, key._replace(source="") if key[:3] in groups else key, site)
    return found


def _figures(
    name: str, environment: Environment, origin: Origin | None, regions: Iterable[tuple[str, Region]]
) -> RunFigures:
    tests: dict[str, TestFigures] = {}
    not_measured: dict[str, str] = {}
    for region_name, region in regions:
        if region.step_source == SET_UP:
            continue
        if region.outcome == "not_measured":
            not_measured[region_name] = region.problem or ""
            continue
        if (test := _test(region_name, region)) is not None:
            tests[region_name] = _worse(tests[region_name], test) if region_name in tests else test
    return RunFigures(name, environment, origin, tests, not_measured)


def _test(name: str, region: Region) -> TestFigures | None:
    """Return the figures of a region; None if its syncs were not counted."""
    rates = region.syncs_per_step
    if rates is None or region.steps is None or region.warmup is None or region.steps <= region.warmup:
        return None
    of = region.steps - region.warmup
    found = TestFigures(
        name, region.step_source, of, region.warmup, rates.max, rates.median, problem=region.problem or None
    )
    waited = _waited(region.order, region.warmup, region.steps, len(region.sites))
    for number, site in enumerate(region.sites):
        key = Key(portable(site.path), site.function, site.kind, site.source or "")
        if site.allowed is not None:
            found.allowed[key] = site.allowed
        elif site.per_step_max and not site.background:
            rate = Rate(site.per_step_max, site.per_step_max * site.steps, site.steps, of)
            time = None if waited is None else waited[number] / of
            _add(found.sites, key, SiteFigures(site.line, rate, site.code, time))
    found.times = _times(region)
    return found


def _add(sites: dict[Key, SiteFigures], key: Key, site: SiteFigures) -> None:
    """Add a site; one with the same key, such as another thread or a repeated line, is added up."""
    there = sites.get(key)
    if there is None:
        sites[key] = site
        return
    times = (there.ms_per_step, site.ms_per_step)
    total = None if None in times else sum(time for time in times if time is not None)
    sites[key] = SiteFigures(min(there.line, site.line), there.rate + site.rate, there.code or site.code, total)


def _worse(one: TestFigures, other: TestFigures) -> TestFigures:
    """Return a test that was measured twice: the higher figure of each."""
    if one.step_source != other.step_source:
        return max(one, other, key=lambda test: test.worst)
    sites = dict(one.sites)
    for key, site in other.sites.items():
        sites[key] = max(sites[key], site, key=lambda each: each.rate) if key in sites else site
    times = dict(one.times)
    for quantity, time in other.times.items():
        there = times.get(quantity, time)
        times[quantity] = Interval(max(there.value, time.value), min(there.low, time.low), max(there.high, time.high))
    larger = max(one, other, key=lambda test: test.steps)
    return TestFigures(
        one.name, one.step_source, larger.steps, larger.warmup, max(one.worst, other.worst),
        max(one.median, other.median), sites, {**one.allowed, **other.allowed}, times, one.problem or other.problem,
    )  # fmt: skip


def _waited(order: Order | None, warmup: int, steps: int, sites: int) -> list[float] | None:
    """Return the milliseconds that each site waited in the steps after warm-up; None if not every sync was timed."""
    if order is None or order.left_out or order.blocked_ms is None:
        return None
    waited = [0.0] * sites
    for site, step, time in zip(order.sites, order.steps, order.blocked_ms, strict=True):
        if step is not None and warmup <= step < steps:
            if time is None:
                return None
            waited[site] += time
    return waited


def _times(region: Region) -> dict[str, Interval]:
    """Return the times of a region that have an interval."""
    found: dict[str, Interval] = {}
    ends = region.order.step_ends_ms if region.order is not None else None
    first = max(region.warmup or 0, 1)
    if ends is not None and len(ends) > first:
        step = median_estimate([after - before for before, after in pairwise(ends[first - 1 :])])
        found["step time"] = Interval(step.value, step.low, step.high)
    for quantity, key in (("dispatch ratio", "dispatch_ratio"), ("ratio", "ratio")):
        estimate = (region.timing or {}).get(key)
        if isinstance(estimate, dict) and (interval := _interval(estimate)) is not None:
            found[quantity] = interval
    return found


def _interval(estimate: Mapping[str, Any]) -> Interval | None:
    value, low, high = (estimate.get(key) for key in ("value", "low", "high"))
    if not isinstance(value, float | int) or not isfinite(value):
        return None
    bounds = (low if isinstance(low, float | int) else -inf, high if isinstance(high, float | int) else inf)
    return Interval(float(value), *map(float, bounds))
