"""Other plugins of pytest beside this one; each test needs the plugin that it is about."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from pytest_gpusync.machine import devices

pytest.importorskip("torch")

ON_SIMULATED = ("--gpu-device=simulated", "--gpu-sync-budget=2", "--gpu-sync-report=run.json", "--junitxml=junit.xml")

READS = """
    import pytest, torch
    @pytest.mark.parametrize("number", [1, 2, 3, 4])
    def test_reads(number):
        x = torch.ones(3, device="cuda")
        for _ in range(number):
            x.sum().item()
    """

BETTER_THE_SECOND_TIME = """
    import pathlib, torch
    def test_flaky():
        x = torch.ones(3, device="cuda")
        been_here = pathlib.Path("mark").exists()
        pathlib.Path("mark").touch()
        for _ in range(1 if been_here else 3):
            x.sum().item()
    """

ENDLESS = """
    import pytest, time, torch
    @pytest.mark.timeout(3)
    def test_endless():
        x = torch.ones(3, device="cuda")
        x.sum().item()
        while True:
            time.sleep(0.01)
    def test_next():
        torch.ones(3, device="cuda").sum().item()
    """

ASYNCHRONOUS = """
    import asyncio, pytest, torch
    @pytest.mark.asyncio
    async def test_awaits():
        x = torch.ones(3, device="cuda")
        for _ in range(3):
            await asyncio.sleep(0)
            x.sum().item()
    """


@pytest.fixture
def syncs(run_apart, pytester, monkeypatch):
    """Run a session; return (outcomes, syncs by test)."""
    if devices.detect().kind == "cuda":
        pytest.skip("the simulated device needs a machine without a GPU, or CUDA_VISIBLE_DEVICES= (empty)")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")

    def run(source, *arguments):
        result = run_apart(*ON_SIMULATED, *arguments, test_a=source)
        regions = json.loads((pytester.path / "run.json").read_text())["regions"]
        return result.parseoutcomes(), {region["name"].partition("::")[2]: region["syncs"] for region in regions}

    return run


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "workers"])
def test_of_a_test_that_ran_twice_the_last_run_counts(syncs, pytester, workers):
    pytest.importorskip("pytest_rerunfailures")
    if workers:
        pytest.importorskip("xdist")
    outcomes, made = syncs(BETTER_THE_SECOND_TIME, "--reruns=1", *workers)
    assert (outcomes["passed"], outcomes["rerun"], made) == (1, 1, {"test_flaky": 1})
    last = [*ElementTree.parse(pytester.path / "junit.xml").iter("testcase")][-1]
    assert {one.get("value") for one in last.iter("property") if one.get("name") == "gpusync.outcome"} == {"passed"}


@pytest.mark.parametrize(
    ("module", "arguments"), [("pytest_randomly", ()), ("random_order", ("-p", "no:randomly", "--random-order"))]
)
def test_the_order_of_the_tests_does_not_matter(syncs, module, arguments):
    pytest.importorskip(module)
    outcomes, made = syncs(READS, *arguments)
    assert (outcomes["failed"], outcomes["passed"]) == (2, 2)
    assert made == {f"test_reads[{number}]": number for number in range(1, 5)}


def test_a_test_that_ran_out_of_time_fails_for_that_and_the_next_is_measured(syncs):
    pytest.importorskip("pytest_timeout")
    outcomes, made = syncs(ENDLESS)
    assert (outcomes["failed"], outcomes["passed"]) == (1, 1)
    assert made["test_next"] == 1


def test_a_coroutine_is_measured_to_its_end(syncs):
    pytest.importorskip("pytest_asyncio")
    outcomes, made = syncs(ASYNCHRONOUS)
    assert (outcomes, made) == ({"failed": 1}, {"test_awaits": 3})
