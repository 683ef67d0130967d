"""The catalogue's examples: what waits is found in a step loop, what does not stays silent."""

from __future__ import annotations

import textwrap

import pytest
from gpusync_lint.catalogue import registry
from gpusync_lint.model.levels import Heat

TORCH = registry.catalogue("torch")
OTHERS = [registry.catalogue(framework) for framework in registry.frameworks() if framework != "torch"]
CODES = sorted({code for each in (TORCH, *OTHERS) for code in each.rules})
WAITS = [(barrier, example) for barrier in TORCH.barriers.values() for example in barrier.waits]
SILENT = [(barrier, example) for barrier in TORCH.barriers.values() for example in barrier.silent]


OTHERS_WAIT = [(each, b, e) for each in OTHERS for b in each.barriers.values() for e in b.waits]
OTHERS_SILENT = [(each, b, e) for each in OTHERS for b in each.barriers.values() for e in b.silent]


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


def in_step_loop(lint, framework, example):
    before = f"{framework.prelude}\n{example.setup}\n"
    body = textwrap.indent(example.run, "    ")
    step = f"    {framework.step}\n" if framework.step else ""
    found = lint(f"{before}for step in range(100):\n{step}{body}\n")
    return [finding for finding in found if finding.span.line > before.count("\n") + 1 + step.count("\n")]


def labels(cases):
    return [f"{barrier.id}: {example.run}" for _, barrier, example in cases]


@pytest.mark.parametrize(("framework", "barrier", "example"), OTHERS_WAIT, ids=labels(OTHERS_WAIT))
def test_an_example_of_another_framework_that_waits_is_found_once(lint, framework, barrier, example):
    found = in_step_loop(lint, framework, example)
    assert [(finding.code, finding.framework) for finding in found] == [(barrier.code, framework.framework)]
    if example.run != "for r in refs: y = ray.get(r)":
        assert found[0].heat is Heat.STEP


@pytest.mark.parametrize(("framework", "barrier", "example"), OTHERS_SILENT, ids=labels(OTHERS_SILENT))
def test_an_example_of_another_framework_that_does_not_wait_stays_silent(lint, framework, barrier, example):
    assert in_step_loop(lint, framework, example) == []


def test_every_barrier_has_a_documented_code_and_every_code_a_barrier():
    assert {barrier.code for barrier in registry.all_barriers().values()} == set(CODES)


def test_names_of_rules_are_distinct():
    labels = [rule.name for rule in TORCH.rules.values()]
    assert len(labels) == len(set(labels))


def test_an_unknown_framework_is_refused_by_name():
    with pytest.raises(ValueError, match=r"no catalogue for 'fortran'; there is one for: .*torch"):
        registry.catalogue("fortran")


def test_rule_doc_of_an_unknown_code_is_none():
    assert registry.rule_doc("GS999") is None


def test_rule_doc_of_a_code_names_it():
    assert registry.rule_doc("GS201").name == "item"


@pytest.mark.parametrize("code", CODES)
def test_examples_of_the_documentation_are_valid_python(code):
    doc = registry.rule_doc(code)
    compile(doc.example, code, "exec")
    compile(doc.use_instead, code, "exec")
