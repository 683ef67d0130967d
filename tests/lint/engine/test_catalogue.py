"""The catalogue's examples: what waits is found in a step loop, what does not stays silent."""

from __future__ import annotations

import pytest
from gpusync_lint import catalogue
from gpusync_lint.model import Heat

TORCH = catalogue.load("torch")
WAITS = [(barrier, example) for barrier in TORCH.barriers.values() for example in barrier.waits]
SILENT = [(barrier, example) for barrier in TORCH.barriers.values() for example in barrier.silent]


def names(cases):
    return [f"{barrier.id}: {example.run}" for barrier, example in cases]


@pytest.mark.parametrize(("barrier", "example"), WAITS, ids=names(WAITS))
def test_an_example_that_waits_is_found_in_a_step_loop(lint_step, barrier, example):
    found = lint_step(example.run, example.setup)
    assert barrier.code in {finding.code for finding in found}
    assert {finding.heat for finding in found} == {Heat.STEP}


@pytest.mark.parametrize(("barrier", "example"), SILENT, ids=names(SILENT))
def test_an_example_that_does_not_wait_stays_silent(lint_step, barrier, example):
    assert lint_step(example.run, example.setup) == []


def test_every_barrier_has_a_documented_code():
    assert {barrier.code for barrier in TORCH.barriers.values()} == set(TORCH.rules)


def test_every_barrier_is_spoken_for_by_a_rule():
    from gpusync_lint.rules import RULES

    assert {barrier for rule in RULES for barrier in rule.barriers} == set(TORCH.barriers)


def test_names_of_rules_are_distinct():
    labels = [rule.name for rule in TORCH.rules.values()]
    assert len(labels) == len(set(labels))


def test_an_unknown_framework_is_refused_by_name():
    with pytest.raises(ValueError, match=r"no catalogue for 'fortran'; there is one for: .*torch"):
        catalogue.load("fortran")


def test_rule_doc_of_an_unknown_code_is_none():
    assert catalogue.rule_doc("GS999") is None


def test_rule_doc_of_a_code_names_it():
    assert catalogue.rule_doc("GS201").name == "item"


@pytest.mark.parametrize("code", catalogue.all_codes())
def test_examples_of_the_documentation_are_valid_python(code):
    doc = catalogue.rule_doc(code)
    compile(doc.example, code, "exec")
    compile(doc.use_instead, code, "exec")
