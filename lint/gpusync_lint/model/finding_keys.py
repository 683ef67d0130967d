"""Keys of findings, which identify a finding without its line number.

A key consists of path, function, code, a digest of the normalized source, and an ordinal. The ordinal tells findings
with the same source in the same function apart. They are numbered in the order in which they matter: findings that no
comment allows come first, then those of higher confidence, then the hotter ones, then by position. So a note or an
allowed line that is added above a warning does not change the key of the warning.
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
    """The findings, in the same order, with the ordinals in their keys recomputed."""
    result = list(findings)
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for index, finding in enumerate(result):
        groups[identity(finding.key)].append(index)
    for prefix, group in groups.items():
        ordered = sorted(group, key=lambda index: _rank(result[index])) if len(group) > 1 else group
        for ordinal, index in enumerate(ordered, 1):
            key = f"{prefix}::{ordinal}"
            if result[index].key != key:
                result[index] = replace(result[index], key=key)
    return result


def identity(key: str) -> str:
    """A key without its ordinal."""
    return key.rpartition("::")[0]


def _rank(finding: Finding) -> tuple[bool, bool, int, Span]:
    return finding.suppressed is not None, finding.confidence is Confidence.LOW, finding.heat.rank, finding.span
