"""Estimates with an interval, from few and disturbed samples. Pure functions, no random numbers.

Both estimates are medians. Both intervals are exact, or nearly so, for any distribution of the disturbances: one pause
of the machine or one large allocation moves neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, lgamma, log, sqrt
from statistics import NormalDist, median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE: Final = 0.99
"""Probability that an interval covers the true value. A budget fails only if the interval lies beyond the limit, so
where nothing is wrong at most one run in 200 fails."""

MIN_SAMPLES: Final = 8
"""Fewest samples that bound a median with this confidence, and in which two jumps do not look like a trend."""

_PARTS: Final = 4
_MAX_SAMPLES: Final = 400
"""Samples used for a slope; the number of pairs grows with the square."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A quantity and the interval that covers it with probability `confidence`."""

    value: float
    low: float
    """Minus infinity if there are too few samples to bound the value."""
    high: float
    """Infinity if there are too few samples to bound the value."""
    samples: int
    confidence: float = CONFIDENCE


def median_estimate(samples: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the median of independent samples, with its interval between order statistics (that of the sign test).

    A bootstrap of the median approaches this interval. This one needs no resampling, and its coverage is at least
    `confidence` for every number of samples and every distribution.

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("a median takes at least one sample")
    ordered = sorted(samples)
    left_out = _excluded_per_side(len(ordered), (1 - confidence) / 2)
    if left_out is None:
        return Estimate(median(ordered), -inf, inf, len(ordered), confidence)
    return Estimate(median(ordered), ordered[left_out], ordered[-1 - left_out], len(ordered), confidence)


def slope_estimate(samples: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the slope of equally spaced samples, per sample: the Theil-Sen estimator, the median slope of all pairs.

    The interval is Sen's (J. Am. Stat. Assoc. 63, 1968): the pairwise slopes between the ranks given by Kendall's
    statistic in its normal approximation. Its low end is lowered to the smallest slope of up to four equal parts of the
    series: a lasting trend rises in every part; one or two jumps do not, however long the series is.

    Raises:
        ValueError: there are fewer than two samples.
    """
    if len(samples) < 2:
        raise ValueError("a slope takes at least two samples")
    positions = _evenly_spaced(len(samples))
    n = len(positions)
    slopes = _slopes(samples, positions)
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * sqrt(n * (n - 1) * (2 * n + 5) / 18)
    outside = int((len(slopes) - reach) // 2)
    if outside < 1:
        return Estimate(median(slopes), -inf, inf, len(samples), confidence)
    low = min(slopes[outside - 1], *(median(_slopes(samples, part)) for part in _equal_parts(positions)))
    return Estimate(median(slopes), low, slopes[-outside], len(samples), confidence)


def _slopes(samples: Sequence[float], positions: Sequence[int]) -> list[float]:
    """Return the slopes of all pairs of the samples at `positions`, in ascending order."""
    return sorted(
        (samples[later] - samples[sooner]) / (later - sooner)
        for index, sooner in enumerate(positions)
        for later in positions[index + 1 :]
    )


def _equal_parts(positions: Sequence[int]) -> list[Sequence[int]]:
    """Return up to four equal parts of `positions`, each with enough samples for an estimate."""
    count = max(1, min(_PARTS, len(positions) // MIN_SAMPLES))
    ends = [len(positions) * part // count for part in range(count + 1)]
    return [positions[start:end] for start, end in pairwise(ends)]


def _evenly_spaced(count: int) -> list[int]:
    """Return all positions below `count`; if there are too many, evenly spaced ones including the first and
    the last.
    """
    if count <= _MAX_SAMPLES:
        return list(range(count))
    return [round(index * (count - 1) / (_MAX_SAMPLES - 1)) for index in range(_MAX_SAMPLES)]


def _excluded_per_side(count: int, tail: float) -> int | None:
    """Return how many of `count` ordered samples lie outside the interval on either side; None without an interval.

    This is the largest k for which a binomial(count, 1/2) is below k with a probability of at most `tail`, less one.
    """
    below = 0.0
    for k in range(count // 2 + 1):
        below += exp(lgamma(count + 1) - lgamma(k + 1) - lgamma(count - k + 1) - count * log(2))
        if below > tail:
            return k - 1 if k else None
    return None
