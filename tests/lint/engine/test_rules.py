"""Every rule's own examples."""

from __future__ import annotations

import pytest
from gpusync_lint.catalogue import registry
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.rules import RULES
from gpusync_lint.run.engine import analyze

VALID = [(rule, code) for rule in RULES for code in rule.VALID]
INVALID = [(rule, code) for rule in RULES for code in rule.INVALID]


def names(cases):
    return [f"{rule.__name__}: {code}" for rule, code in cases]


@pytest.mark.parametrize(("rule", "code"), VALID, ids=names(VALID))
def test_valid_code_is_not_reported(lint_step, rule, code):
    codes = {registry.all_barriers()[barrier].code for barrier in rule.barriers}
    assert [finding for finding in lint_step(code) if finding.code in codes] == []


@pytest.mark.parametrize(("rule", "code"), INVALID, ids=names(INVALID))
def test_invalid_code_is_reported_once(lint_step, rule, code):
    codes = {registry.all_barriers()[barrier].code for barrier in rule.barriers}
    found = [finding for finding in lint_step(code) if finding.code in codes]
    assert len(found) == max(1, len(code.splitlines()) if "log_prob" in code else 1)


def test_every_rule_has_examples_of_both_kinds():
    ours = [rule for rule in RULES if all("." not in barrier for barrier in rule.barriers) and rule.barriers]
    assert [rule.__name__ for rule in ours if not rule.VALID or not (rule.INVALID or rule.low_confidence)] == []


def test_what_was_made_on_the_host_is_not_blamed_on_a_loader(lint_step):
    found = lint_step("c.to(dev)\nfor y in torch.utils.data.DataLoader([]):\n    y.to(dev)\n")
    assert ["DataLoader" in finding.remedy for finding in found] == [False, True]


@pytest.mark.parametrize(("torch_version", "codes"), [((2, 11), ["GS408"]), ((2, 15), [])])
def test_a_call_that_no_longer_waits_is_silent_from_that_torch_on(torch_version, codes):
    source = """\
import torch

def train(loader, model, optimizer):
    for x in loader:
        pairs = torch.combinations(x.cuda(non_blocking=True).flatten())
        model(pairs).sum().backward()
        optimizer.step()
"""
    found = analyze([Source("a.py", source)], EngineSettings(torch_version=torch_version)).findings
    assert [one.code for one in found if one.code == "GS408"] == codes
