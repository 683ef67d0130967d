"""Which runs a report is about: filters by device, versions, commit, labels and other properties of a run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpusync.reporting.run_figures import RunFigures

PROPERTIES: Final = (
    *("file", "device", "gpu", "driver", "recorder", "coverage", "torch", "python"),
    *("commit", "date", "version", "command"),
)
"""The properties that every run has; every other name is that of a label."""

TEST: Final = "test"
"""Filters tests within runs."""

NONE: Final = "none"
"""The value of a property in the name of a group of runs that do not have it."""

_FILTER: Final = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(!?=)(.*)\Z", re.DOTALL)


class FilterError(ValueError):
    """A filter cannot be understood; the message is one line with the remedy."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on one property."""

    name: str
    pattern: re.Pattern[str]
    negated: bool

    def matches(self, value: str | None) -> bool:
        """Return whether a value fulfills the condition; a property that a run does not have equals nothing."""
        return (value is not None and self.pattern.match(value) is not None) != self.negated


def parsed(text: str) -> Filter:
    """Return the filter in ``NAME=PATTERN`` or ``NAME!=PATTERN``, in whose pattern ``*`` and ``?`` are wildcards.

    Raises:
        FilterError: it is something else.
    """
    match = _FILTER.match(text)
    if match is None:
        raise FilterError(f"{text!r} is not a filter; write NAME=PATTERN or NAME!=PATTERN, such as gpu=*H100*")
    return named(match[1], match[3].strip(), negated=match[2] == "!=")


def named(name: str, pattern: str, *, negated: bool = False) -> Filter:
    """Return the filter of a property; case does not matter."""
    return Filter(name, re.compile(translate(pattern), re.IGNORECASE), negated)


def value_of(run: RunFigures, name: str) -> str | None:
    """Return a property of a run, or its label of that name; None if it has none."""
    if name == "file":
        return run.name
    if name == "device":
        return run.device
    origin = run.origin
    if name in PROPERTIES:
        return getattr(run.environment, name, None) or (getattr(origin, name, None) if origin is not None else None)
    return (origin.labels or {}).get(name) if origin is not None else None


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add the option for filters."""
    parser.add_argument(
        "--where",
        metavar="NAME=PATTERN",
        action="append",
        default=[],
        help="only runs with this property, such as gpu=*H100*, torch!=2.9*, or a label of GPUSYNC_LABELS; "
        "test=PATTERN keeps tests with such names; repeatable",
    )


def filtered(runs: Iterable[RunFigures], filters: Sequence[Filter]) -> Iterator[RunFigures]:
    """Return the runs that fulfill every filter. Filters by test leave tests out, and runs without any that is left."""
    of_tests = [one for one in filters if one.name == TEST]
    of_runs = [one for one in filters if one.name != TEST]
    for run in runs:
        if not all(one.matches(value_of(run, one.name)) for one in of_runs):
            continue
        if of_tests:
            run.tests = {name: test for name, test in run.tests.items() if all(one.matches(name) for one in of_tests)}
            run.not_measured = {
                name: why for name, why in run.not_measured.items() if all(one.matches(name) for one in of_tests)
            }
            if not run.tests and not run.not_measured:
                continue
        yield run
