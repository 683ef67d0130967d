"""The confidence of findings follows from how often findings of their sort were right."""

from __future__ import annotations

import pytest
from gpusync_lint.catalogue import measured
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.evidence import confidence_of

HIGH, MEDIUM, LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW


@pytest.mark.parametrize(
    ("stated", "ran", "waited", "expected"),
    [
        (MEDIUM, 0, 0, MEDIUM),
        (MEDIUM, 19, 19, MEDIUM),
        (MEDIUM, 20, 20, MEDIUM),  # the share may be 0.9
        (MEDIUM, 40, 40, HIGH),
        (MEDIUM, 101, 98, MEDIUM),
        (MEDIUM, 100, 80, MEDIUM),
        (MEDIUM, 7, 0, MEDIUM),
        (MEDIUM, 8, 1, LOW),
        (HIGH, 100, 99, HIGH),
        (HIGH, 100, 85, MEDIUM),
        (LOW, 8, 8, LOW),
        (LOW, 9, 9, MEDIUM),
        (LOW, 30, 28, MEDIUM),
        (LOW, 60, 60, HIGH),
    ],
)
def test_a_sort_has_the_confidence_that_was_measured_if_there_are_enough_findings(stated, ran, waited, expected):
    assert confidence_of(stated, ran, waited) is expected


CODE = """
import torch
model = torch.nn.Linear(4, 4).to(torch.device("cuda"))
for x in loader:
    loss = model(x).sum()
    loss.backward()
    loss.item()
"""


@pytest.mark.parametrize(
    ("counts", "expected"), [(None, {HIGH}), ((50, 50), {HIGH}), ((50, 42), {MEDIUM}), ((50, 10), set())]
)
def test_findings_have_the_confidence_of_their_sort(lint, monkeypatch, counts, expected):
    asked = []

    class Counts(dict):
        def get(self, sort, default=None):
            asked.append(sort)
            return counts

    monkeypatch.setattr(measured, "counts", Counts)
    assert {finding.confidence for finding in lint(CODE) if finding.code == "GS201"} == expected
    assert "high certain gpu tensor" in asked


def test_no_sort_waited_more_often_than_it_ran():
    assert measured.counts()
    assert all(0 <= waited <= ran for ran, waited in measured.counts().values())
