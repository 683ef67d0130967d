"""What a finding rests on, and how often findings of that kind were right.

Findings are sorted by what was known when they were made: the confidence that the rule states, and the kind of the
value that is read. `catalogue/measured.json` holds, for each sort, how many findings lay on statements that ran, and on
how many of these the host waited. `benchmarks/truth/confidence.py` writes it, from runs of public programs.
"""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import measured
from gpusync_lint.domain.values import UNKNOWN, Kind
from gpusync_lint.model.levels import Confidence, Heat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusync_lint.domain.values import Value
    from gpusync_lint.rules.base.context import Report

_LEAST_TO_LOWER = 8
"""With fewer findings on statements that ran, a sort is not lowered below the confidence that the rule states."""
_PRIOR = {Confidence.HIGH: (19, 20), Confidence.MEDIUM: (9, 10), Confidence.LOW: (1, 2)}
"""By stated confidence, the findings that waited, and all of them, that are added to the counts of a sort."""
_DEVIATIONS = 1.645
"""The lower bound of a share is below the true one in 95 of 100 samples."""
_LEAST_SHARES = {Confidence.HIGH: 0.93, Confidence.MEDIUM: 0.75}
"""By confidence, the least share of the findings that wait; with less, the confidence is low."""


def sort_of(report: Report, values: Mapping[ast.expr, Value]) -> str:
    """The sort of a finding: `medium uncertain gpu tensor`, and `medium guarded scaler` if the rule says it is rare."""
    value = values.get(_subject(report.node, values), UNKNOWN)
    kind = repr(value.kind).lower()
    if value.kind is Kind.TENSOR:
        kind = f"{'certain' if value.certain else 'uncertain'} {value.device!r} tensor".lower()
    if report.heat is Heat.GUARDED:
        kind = f"guarded {kind}"
    return f"{report.confidence.value} {kind}"


def measured_confidence(report: Report, values: Mapping[ast.expr, Value]) -> Confidence:
    """The confidence of a finding: what was measured for its sort, or what its rule states."""
    counts = measured.counts().get(sort_of(report, values))
    return report.confidence if counts is None else confidence_of(report.confidence, *counts)


def confidence_of(stated: Confidence, ran: int, waited: int) -> Confidence:
    """The confidence of a sort of findings.

    Args:
        stated: the confidence that the rules state for it.
        ran: how many of its findings lay on statements that ran.
        waited: on how many of these statements the host waited.
    """
    right, all_ = _PRIOR[stated]
    lowered = _of_share((waited + right) / (ran + all_))
    if lowered.rank > stated.rank:
        return lowered if ran >= _LEAST_TO_LOWER else stated
    return min(stated, _of_share(_lower_bound(ran, waited)), key=lambda one: one.rank)


def _of_share(share: float) -> Confidence:
    """The confidence of findings of which a share waits."""
    return next((one for one, least in _LEAST_SHARES.items() if share >= least), Confidence.LOW)


def _lower_bound(ran: int, waited: int) -> float:
    """The lower bound of the share of findings that wait: that of Wilson's interval, which is low for few findings."""
    if not ran:
        return 0.0
    share, z = waited / ran, _DEVIATIONS**2 / ran
    return (share + z / 2 - math.sqrt(z * (share * (1 - share) + z / 4))) / (1 + z)


def _subject(node: ast.expr, values: Mapping[ast.expr, Value]) -> ast.expr:
    """The expression whose value a reported expression reads."""
    if isinstance(node, ast.Call):
        func = node.func
        if isinstance(func, ast.Attribute) and values.get(func.value, UNKNOWN).kind is not Kind.NAME:
            return func.value
        return node.args[0] if node.args else node
    if isinstance(node, ast.Subscript):
        is_index = values.get(node.slice, UNKNOWN).kind is Kind.TENSOR
        return node.slice if is_index else node.value
    return node
