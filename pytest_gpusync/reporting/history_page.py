"""A history of runs as one self-contained HTML page: the changes, and a chart for each test and site.

It has the style sheet, the script and the policy of a run's page, see :mod:`.html_page`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Final

from gpusync_lint import __version__
from gpusync_lint.model.codes import page_of

from pytest_gpusync.reporting import history_formats
from pytest_gpusync.reporting.page_model import format_number
from pytest_gpusync.reporting.templates import fill, page_assets
from pytest_gpusync.reporting.terminal import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpusync.model.change_points import Point
    from pytest_gpusync.reporting.run_history import History, Series

EVENTS_SHOWN: Final = 300
TESTS_SHOWN: Final = 200
SITES_SHOWN: Final = 15
"""What is left out is counted on the page, and is in the JSON form."""

COLUMNS: Final = 400
"""Most points drawn side by side: with more moments, each shows the extremes of several."""

WIDTH: Final = 1000
HEIGHT: Final = 100
"""Of a chart, in its own units; the browser stretches it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A change, drawn as a vertical line."""

    x: float
    is_more: bool
    title: str


@dataclass(frozen=True, slots=True)
class Trend:
    """The chart of a series."""

    series: Series
    line: str
    """The path of the figure."""
    band: str
    """The path of the intervals; empty if there are none."""
    top: str
    marks: list[Mark]
    latest: str
    label: str
    """The chart in words."""


@dataclass(frozen=True, slots=True)
class TestTrends:
    """The charts of a test in one group."""

    __test__ = False

    name: str
    group: str
    worst: Trend
    times: list[Trend]
    sites: list[Trend]
    left_out: int
    changes: int
    is_open: bool


def to_html(history: History) -> str:
    """Return a history as an HTML page."""
    shown = [event for event in history.events if not event.is_explained]
    tests = _tests(history)
    return fill(
        "history.html",
        history=history,
        headline=history_formats.headline(history),
        conclusion=history_formats.conclusion(history),
        events=shown[:EVENTS_SHOWN],
        left_out_events=len(shown) - EVENTS_SHOWN,
        more=sum(event.is_more for event in shown),
        fewer=sum(not event.is_more for event in shown),
        tests=tests[:TESTS_SHOWN],
        left_out_tests=len(tests) - TESTS_SHOWN,
        change_text=lambda event: history_formats.change_text(event).replace("->", "→"),
        certainty_text=lambda event: history_formats.certainty_text(event, history),
        place_of=history_formats.place_of,
        rule_address=page_of,
        first=history.moments[0] if history.moments else None,
        last=history.moments[-1] if history.moments else None,
        width=WIDTH,
        height=HEIGHT,
        version=__version__,
        **page_assets(),
    )


def _tests(history: History) -> list[TestTrends]:
    """Return the charts by test: those that changed last first, then those with most syncs."""
    latest: dict[tuple[str, str], int] = {}
    for event in history.events:
        for series in event.series:
            key = series.group, series.test
            latest[key] = max(latest.get(key, -1), event.moment)
    groups: dict[tuple[str, str], list[Series]] = {}
    for series in history.series:
        groups.setdefault((series.group, series.test), []).append(series)
    order = sorted(groups, key=lambda key: (-latest.get(key, -1), -groups[key][0].points[-1].value, key))
    return [_test(groups[key], history, is_open=number == 0) for number, key in enumerate(order[: TESTS_SHOWN + 1])] + [
        _test(groups[key][:1], history, is_open=False) for key in order[TESTS_SHOWN + 1 :]
    ]


def _test(found: list[Series], history: History, *, is_open: bool) -> TestTrends:
    first = found[0]
    sites = [series for series in found if series.key is not None]
    sites.sort(key=lambda series: (not series.changes, -series.points[-1].value if series.points else 0))
    return TestTrends(
        first.test,
        first.group,
        trend(first, history),
        [trend(series, history) for series in found[1:] if series.key is None],
        [trend(series, history) for series in sites[:SITES_SHOWN]],
        len(sites) - SITES_SHOWN,
        sum(len(series.changes) for series in found),
        is_open,
    )


def trend(series: Series, history: History) -> Trend:
    """Return the chart of a series over all moments; where it has no point, the line has a gap."""
    number = len(history.moments)
    columns = list(_columns(series, number))
    size = -(-number // COLUMNS)
    width = WIDTH * size / number
    highs = [bound for _, _, low, high in columns for bound in (low, high) if isfinite(bound)]
    top = max([*highs, *(value for _, value, _, _ in columns)], default=0) or 1
    line, band, previous = [], [], -2
    for column, value, low, high in columns:
        x, y = column * width, _y(value, top)
        line.append(f"{'V' if column == previous + 1 else f'M{x:.1f} '}{y:.1f}H{x + width:.1f}")
        previous = column
        if low < high:
            upper, lower = (_y(min(high, top), top), _y(max(low, 0), top))
            band.append(f"M{x:.1f} {upper:.1f}H{x + width:.1f}V{lower:.1f}H{x:.1f}Z")
    marks = [mark for change in series.changes for mark in _marks(series, history, change.index, change.end)]
    unit = " ms" if series.quantity == "step time" else ""
    latest = f"{format_number(series.points[-1].value)}{unit}"
    return Trend(
        series, "".join(line), "".join(band), f"{format_number(top)}{unit}", marks, latest, _label(series, latest)
    )


def _columns(series: Series, number: int) -> Iterator[tuple[int, float, float, float]]:
    """Return the columns that have points: position, largest figure, and the interval of all of its points."""
    size = -(-number // COLUMNS)
    groups: dict[int, list[Point]] = {}
    for index, point in zip(series.indices, series.points, strict=True):
        groups.setdefault(index // size, []).append(point)
    for column, points in groups.items():
        yield (
            column,
            max(point.value for point in points),
            min(point.low for point in points),
            max(point.high for point in points),
        )


def _y(value: float, top: float) -> float:
    """Return the height of a figure, with a margin for the width of the line."""
    return HEIGHT - 4 - (HEIGHT - 8) * value / top


def _marks(series: Series, history: History, start: int, end: int | None) -> Iterator[Mark]:
    places: Sequence[int] = [start] if end is None else [start, end]
    for place in places:
        before, after = series.points[place - 1].value, series.points[place].value
        moment = history.moments[series.indices[place]]
        title = f"{moment.label}: {format_number(before)} → {format_number(after)}"
        yield Mark(WIDTH * series.indices[place] / len(history.moments), after > before, title)


def _label(series: Series, latest: str) -> str:
    """Return a chart in words, for people who do not see it."""
    figures = [point.value for point in series.points]
    span = f"from {format_number(min(figures))} to {format_number(max(figures))}"
    varies = "" if series.steady else ", varies by itself"
    changes = plural(len(series.changes), "change")
    return f"{series.quantity}, {plural(len(figures), 'point')} {span}, {latest} in the latest; {changes}{varies}"
