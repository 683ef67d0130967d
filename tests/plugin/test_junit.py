"""What CI servers read: the JUnit file that pytest writes of a session."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from measurements import H200, stepped, whole

from pytest_gpusync.machine import devices
from pytest_gpusync.model.budgets import Budget, judge
from pytest_gpusync.reporting.junit import properties
from pytest_gpusync.reporting.run_file import environment_document, region_document, unmeasured_document

pytest.importorskip("torch")

TESTS = """
    import torch
    def test_reads():
        x = torch.ones(3, device="cuda")
        for _ in range(3):
            x.sum().item()
    def test_fine(record_property):
        record_property("own", 1)
        torch.ones(3, device="cuda").sum().item()
    """
ON_SIMULATED = ("--gpu-device=simulated", "--gpu-sync-budget=2", "--junitxml=junit.xml")


def properties_of(*regions, environment=H200):
    return dict(properties(environment_document(environment), regions))


@pytest.fixture(params=[(), ("-n2",)], ids=["serial", "workers"])
def cases(request, run_apart, pytester):
    """The cases of a session's JUnit file by name."""
    if devices.detect().kind == "cuda":
        pytest.skip("the simulated device needs a machine without a GPU, or CUDA_VISIBLE_DEVICES= (empty)")
    if request.param:
        pytest.importorskip("xdist")
    run_apart(*ON_SIMULATED, *request.param, test_a=TESTS)
    suite = ElementTree.parse(pytester.path / "junit.xml")
    return {case.get("name"): case for case in suite.iter("testcase")}


def test_a_session_has_its_figures_and_lines_in_its_junit_file(cases):
    shown = {name: {one.get("name"): one.get("value") for one in case.iter("property")} for name, case in cases.items()}
    assert shown["test_reads"] == {
        "gpusync.outcome": "failed",
        "gpusync.steps": "1",
        "gpusync.syncs_per_step.max": "3",
        "gpusync.syncs_per_step.median": "3",
        "gpusync.budget": "2",
        "gpusync.device": "simulated",
        "gpusync.recorder": "simulated",
        "gpusync.coverage": "simulated",
        "gpusync.broken": "Test made 3 syncs, budget 2",
    }
    assert shown["test_fine"]["own"] == "1"
    assert shown["test_fine"]["gpusync.syncs_per_step.max"] == "1"
    [failure] = cases["test_reads"].iter("failure")
    assert failure.get("message").startswith("Test made 3 syncs, budget 2")
    assert "test_a.py:5  x.sum().item()" in failure.text


def test_the_worst_region_of_a_test_speaks_for_it():
    fine, over = stepped([0, 1, 1]), stepped([0, 4, 2, 3])
    found = properties_of(*(region_document(one, [judge(one, Budget(max=3))]) for one in (fine, over)))
    assert found["gpusync.outcome"] == "failed"
    assert (found["gpusync.syncs_per_step.max"], found["gpusync.syncs_per_step.median"]) == ("4", "3")
    assert found["gpusync.gpu"] == "NVIDIA H200"


def test_what_was_not_measured_has_no_figure():
    found = properties_of(unmeasured_document("t", "no recorder can run"))
    assert found["gpusync.problem"] == "no recorder can run"
    assert not {"gpusync.syncs_per_step.max", "gpusync.budget", "gpusync.steps"} & found.keys()


def test_an_exact_budget_is_said_to_be_one():
    one = whole()
    assert properties_of(region_document(one, [judge(one, Budget(exact=2))]))["gpusync.budget"] == "exactly 2"
