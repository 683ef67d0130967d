"""The ordinals at the end of keys: which of several like findings in one function is the first.

A key is path, function, code, normalized source, ordinal. Occurrences of one source in one function are numbered so
that those that count come first: live ones before those that a comment allows, surer ones before guesses, hotter ones
before cooler ones, then in source order. A note or an allowed line that comes or goes above a warning therefore leaves
the warning's key alone; another warning of the same source takes the next ordinal.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from gpusync_lint.model.levels import Confidence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusync_lint.model.findings import Finding
    from gpusync_lint.model.spans import Span


def numbered(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in the order given, each with the ordinal that its like ones leave it."""
    result = list(findings)
    alike: defaultdict[str, list[int]] = defaultdict(list)
    for place, finding in enumerate(result):
        alike[identity(finding.key)].append(place)
    for stem, places in alike.items():
        ordered = sorted(places, key=lambda place: _rank(result[place])) if len(places) > 1 else places
        for ordinal, place in enumerate(ordered, 1):
            key = f"{stem}::{ordinal}"
            if result[place].key != key:
                result[place] = replace(result[place], key=key)
    return result


def identity(key: str) -> str:
    """A key without its ordinal."""
    return key.rpartition("::")[0]


def _rank(finding: Finding) -> tuple[bool, bool, int, Span]:
    return finding.suppressed is not None, finding.confidence is Confidence.LOW, finding.heat.rank, finding.span
