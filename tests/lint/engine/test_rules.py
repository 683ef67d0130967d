"""Every rule's own examples."""

from __future__ import annotations

import ast

import pytest
from gpusync_lint.catalogue import registry
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.rules import RuleError, all_rules, check
from gpusync_lint.rules.base.context import Rule
from gpusync_lint.run.engine import analyze

VALID = [(rule, code) for rule in all_rules() for code in rule.VALID]
INVALID = [(rule, code) for rule in all_rules() for code in rule.INVALID]


def names(cases):
    return [f"{rule.__name__}: {code}" for rule, code in cases]


@pytest.mark.parametrize(("rule", "code"), VALID, ids=names(VALID))
def test_valid_code_is_not_reported(lint_step, rule, code):
    codes = {registry.all_barriers()[barrier].code for barrier in rule.barriers}
    assert [finding for finding in lint_step(code) if finding.code in codes] == []


@pytest.mark.parametrize(("rule", "code"), INVALID, ids=names(INVALID))
def test_invalid_code_is_reported_once_at_each_place(lint_step, rule, code):
    codes = {registry.all_barriers()[barrier].code for barrier in rule.barriers}
    found = [finding for finding in lint_step(code) if finding.code in codes]
    assert found
    assert len({(finding.code, finding.span) for finding in found}) == len(found)


class Good(Rule):
    nodes = (ast.Call,)
    barriers = ("item",)
    VALID = ("x.sum()",)
    INVALID = ("x.sum().item()",)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"nodes": (ast.Import,)}, "has ast.Import in `nodes`, which rules cannot check; known are "),
        ({"nodes": (ast.Call, ast.Tuple, ast.Try)}, "has ast.Try in `nodes`, which rules cannot check; "),
        ({"nodes": ()}, "has no `nodes`: the types of syntax nodes to check"),
        ({"barriers": ()}, "has no `barriers`: the catalogue entries that it reports"),
        ({"barriers": ("itm",)}, "reports the barrier 'itm', which no catalogue describes; did you mean 'item'?"),
        ({"VALID": ()}, "has no `VALID` example: a loop body that it must not report"),
        ({"INVALID": ()}, "has no `INVALID` example: a loop body that it must report"),
    ],
)
def test_a_rule_that_is_declared_wrongly_is_refused_in_one_line(changed, problem):
    rule = type("Bad", (Good,), {"__module__": "gpusync_lint.rules.bad", **changed})
    with pytest.raises(RuleError) as caught:
        check([*all_rules(), rule])
    assert str(caught.value).startswith(f"gpusync_lint/rules/bad.py: Bad {problem}")
    assert "\n" not in str(caught.value)


def test_an_entry_that_no_rule_judges_is_refused():
    item = next(rule for rule in all_rules() if "item" in rule.barriers)
    with pytest.raises(RuleError, match=r"^torch\.toml: no rule checks for the barrier 'item'; add it to "):
        check([rule for rule in all_rules() if rule is not item])


def test_rules_are_found_in_the_order_of_their_files():
    modules = [rule.__module__ for rule in all_rules()]
    assert modules == sorted(modules)
    assert "gpusync_lint.rules.item" in modules


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
