"""The linter and the simulated device say the same of programs that pass device tensors where Python needs numbers."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from agreement_idioms import IDIOMS, SHARED
from agreement_programs import DIFFERENT, DIFFERENT_OPERATORS, GROUPS, OBJECTS, SETUP

from pytest_gpusync.simulated import simulated_cuda

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from linter_agreement import Program, compare
from number_operators import all_programs

sys.path.pop(0)
_EVERY = 25


def differences(programs):
    with simulated_cuda():
        outcomes = compare(programs)
    tally = Counter(one.verdict for one in outcomes)
    return {one.program.statement: one.verdict for one in outcomes if one.verdict in ("missed", "false")}, tally


def known(statements):
    return {statement: verdict for statement, (verdict, _) in DIFFERENT.items() if statement in statements}


@pytest.mark.parametrize("group", GROUPS)
def test_statements_wait_where_the_linter_says_so(group):
    statements = GROUPS[group].split("\n")[1:-1]
    found, tally = differences([Program(statement, SETUP) for statement in statements])
    assert found == known(statements)
    assert tally["refused"] <= len(statements) / 10


def test_calls_of_objects_wait_where_the_linter_says_so():
    found, tally = differences([Program(statement, f"{SETUP}{setup}\n") for setup, statement in OBJECTS.values()])
    assert found == known([statement for _, statement in OBJECTS.values()])
    assert tally["refused"] == 0


def test_idioms_of_training_code_wait_where_the_linter_says_so():
    with simulated_cuda():
        outcomes = compare([Program(statement, SHARED + setup) for setup, statement in IDIOMS], whole=True)
    assert [one for one in outcomes if one.verdict != "agree"] == []


def test_each_known_difference_is_of_a_program_in_the_list():
    statements = {statement for group in GROUPS.values() for statement in group.split("\n")}
    statements |= {statement for _, statement in OBJECTS.values()}
    assert set(DIFFERENT) <= statements


def test_a_sample_of_the_operators_that_take_numbers():
    programs, _ = all_programs(_EVERY)
    found, tally = differences(programs)
    assert {statement: verdict for statement, verdict in found.items() if statement not in DIFFERENT_OPERATORS} == {}
    assert tally["agree"] >= 50


@pytest.mark.long
def test_every_operator_that_takes_a_number():
    programs, without = all_programs()
    found, tally = differences(programs)
    assert found == {statement: verdict for statement, (verdict, _) in DIFFERENT_OPERATORS.items()}
    assert tally["agree"] >= 2300
    assert len(without) <= 65
