"""The run file against its schema, and how it is written."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from math import inf
from pathlib import Path

import msgspec
import pytest
from gpusync_lint.files import run_files
from measurements import H200, stepped, sync, whole
from run_schema import SCHEMA, violations

from pytest_gpusync.elapsed.decomposition import Decomposition
from pytest_gpusync.elapsed.overlap import Triple, overlap_of
from pytest_gpusync.elapsed.paired import Pair, ratio_of, with_disturbance
from pytest_gpusync.elapsed.stalls import Stall, Stalls
from pytest_gpusync.model.budgets import Budget, DispatchBudget, GrowthBudget, judge, judge_dispatch, judge_growth
from pytest_gpusync.model.estimates import median_estimate
from pytest_gpusync.model.measurement import CompilerEvent, Disturbance, GrownLine, MemorySample, Site, StepTime
from pytest_gpusync.reporting import run_file
from pytest_gpusync.reporting.rule_names import Rule
from pytest_gpusync.reporting.run_file import (
    elapsed_region_document,
    region_document,
    run_document,
    to_text,
    unmeasured_document,
    write_atomic,
)


def written(environment, *regions):
    return json.loads(to_text(run_document(environment, regions)))


FULL = stepped(
    [3, 1, 2],
    environment=H200,
    extra=(
        sync(
            1,
            line=5,
            kind="pageable",
            direction="H2D",
            nbytes=4096,
            blocked_ns=2_500_000,
            phase="forward",
            via="a.py:1 f",
        ),
        sync(2, line=6, allowed="early stop"),
        sync(None, line=7, background=True, thread="loader"),
    ),
    compilation=(
        CompilerEvent(
            "graph_break", Site("a.py", 3, "f"), "Data-dependent branching", "Data-dependent branching", step=0
        ),
        CompilerEvent("recompilation", Site("a.py", 1, "f"), "size mismatch", step=2),
    ),
)


SAMPLED = stepped(
    [1] * 10,
    environment=H200,
    memory=tuple(MemorySample(step, 2 * step, 3 * step, step, step, 4 * step) for step in range(10)),
    grown=(GrownLine("train.py", 5, "step", 1.5),),
    timing=(StepTime(2_000_000, 9_000_000, 7_000_000),) * 10,
)
SAMPLED_VERDICTS = [
    judge_growth(SAMPLED, GrowthBudget(0)),
    judge_dispatch(SAMPLED, DispatchBudget(0.5)),
    judge_growth(stepped([0]), GrowthBudget(0)),
]
NOTHING = MemorySample(None, None, None, None)
STALL = Stall(Site("train.py", 9, "step"), 1.0, 0.5, 0.25, 0.25, 0.2, 0.3, "measured")
STALLS = Stalls(
    step_ms=2.0,
    replayed_ms=2.1,
    busy_ms=1.5,
    sites=(STALL, replace(STALL, low_ms=-inf, high_ms=inf, outcome="too noisy to tell")),
    rounds=16,
    steps=30,
    confidence=0.99,
)
RATIO = ratio_of([Pair(2.0, 1.0)] * 12, calls=3, tolerance=0.02)
BUSY = Disturbance("another process kept the GPU busy", invalidates=True)
SPOILT = with_disturbance(RATIO, BUSY)
OVERLAP = overlap_of([Triple(2.0, 1.0, 2.5)] * 12, 0.1, Disturbance(None, invalidates=False))
SPOILT_OVERLAP = overlap_of([Triple(2.0, 1.0, 2.5)] * 12, 0.1, BUSY)
PARTS = Decomposition(100, 0.1, 0.2, 0.05, each_ms=36.0, end_ms=20.4)


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(written(None), id="nothing measured"),
        pytest.param(written(H200, region_document(FULL, [judge(FULL, Budget(max=1))])), id="all there is"),
        pytest.param(written(H200, region_document(whole(), [judge(whole(), Budget(exact=0))])), id="no syncs"),
        pytest.param(written(H200, region_document(stepped([1], warmup=1))), id="all warm-up"),
        pytest.param(written(H200, region_document(SAMPLED, SAMPLED_VERDICTS)), id="memory and time"),
        pytest.param(written(H200, region_document(stepped([1, 1], memory=(NOTHING,) * 2))), id="no memory known"),
        pytest.param(written(H200, elapsed_region_document("a", RATIO)), id="a ratio"),
        pytest.param(written(H200, elapsed_region_document("a", SPOILT)), id="a spoilt ratio"),
        pytest.param(written(H200, elapsed_region_document("a", OVERLAP)), id="an overlap"),
        pytest.param(written(H200, elapsed_region_document("a", SPOILT_OVERLAP)), id="a spoilt overlap"),
        pytest.param(written(H200, elapsed_region_document("a", PARTS)), id="a decomposition"),
        pytest.param(written(H200, elapsed_region_document("a", STALLS)), id="stalls"),
        pytest.param(written(H200, elapsed_region_document("a", median_estimate([0.5] * 20))), id="a dispatch ratio"),
        pytest.param(written(H200, unmeasured_document("test_a.py::test_b", "no recorder")), id="unmeasured"),
    ],
)
def test_a_run_file_keeps_its_schema(document):
    assert violations(document, SCHEMA) == []


def test_the_check_of_the_schema_is_not_blind():
    document = written(H200, region_document(FULL))
    document["regions"][0]["sites"][0]["line"] = "5"
    assert violations(document, SCHEMA) == ["run.regions[0].sites[0].line is a str"]


@pytest.mark.parametrize(
    ("region", "outcome"),
    [
        (region_document(FULL), "measured"),
        (region_document(FULL, [judge(FULL, Budget(max=3))]), "passed"),
        (region_document(FULL, [judge(FULL, Budget(max=3)), judge(FULL, Budget(max=1))]), "failed"),
        (region_document(whole(problem="blind"), [judge(whole(problem="blind"), Budget(max=1))]), "not_measured"),
    ],
)
def test_the_outcome_of_a_region_is_its_worst_verdict(region, outcome):
    assert region["outcome"] == outcome


def test_syncs_per_step_leaves_warm_up_out_and_syncs_does_not():
    region = region_document(FULL)
    assert (region["syncs_per_step"], region["syncs"]) == ({"max": 2, "median": 2}, 7)


def test_what_was_not_measured_is_null():
    region = region_document(whole(sync(), problem="the recorder is blind"))
    assert (region["syncs"], region["syncs_per_step"]) == (None, None)
    assert (region["memory"], region["timing"], region["sites"][0]["blocked_ms"]) == (None, None, None)


def test_blocked_time_is_in_milliseconds():
    [site] = [site for site in region_document(FULL)["sites"] if site["line"] == 5]
    assert (site["blocked_ms"], site["bytes"], site["via"]) == (2.5, 4096, "a.py:1 f")


def test_lines_are_given_the_linters_code_when_the_run_is_written(monkeypatch):
    rule = Rule("GS201", "item", "log later", 9)
    monkeypatch.setattr(run_file, "rule_for", lambda path, line, direction: rule if line == 5 else None)
    sites = written(H200, region_document(FULL))["regions"][0]["sites"]
    assert {site["line"]: site["code"] for site in sites} == {1: None, 5: "GS201", 6: None, 7: None}


def test_writing_creates_folders_and_leaves_nothing_else(tmp_path):
    write_atomic(tmp_path / "deep" / "run.json", "new")
    assert [(path.name, path.read_text()) for path in (tmp_path / "deep").iterdir()] == [("run.json", "new")]


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    path.write_text("old")

    def break_off(name, target):
        assert Path(name).read_text() == "new"
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", break_off)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("run.json", "old")]


OBJECTS = {
    run_files.Environment: SCHEMA["$defs"]["environment"],
    run_files.Origin: SCHEMA["$defs"]["origin"],
    run_files.DeviceCount: SCHEMA["$defs"]["device"],
    run_files.Site: SCHEMA["$defs"]["site"],
    run_files.Race: SCHEMA["$defs"]["race"],
    run_files.Place: SCHEMA["$defs"]["race"]["properties"]["other"],
    run_files.Compilation: SCHEMA["$defs"]["region"]["properties"]["compilation"],
    run_files.EventsPerStep: SCHEMA["$defs"]["region"]["properties"]["compilation"]["properties"]["per_step"],
    run_files.CompiledLine: SCHEMA["$defs"]["compiled_line"],
    run_files.Order: SCHEMA["$defs"]["region"]["properties"]["order"],
    run_files.Estimate: SCHEMA["$defs"]["estimate"],
    run_files.Verdict: SCHEMA["$defs"]["verdict"],
    run_files.VerdictLine: SCHEMA["$defs"]["verdict"]["properties"]["lines"]["items"],
    run_files.StepRates: SCHEMA["$defs"]["region"]["properties"]["syncs_per_step"],
    run_files.NotCounted: SCHEMA["$defs"]["region"]["properties"]["not_counted"],
    run_files.Region: SCHEMA["$defs"]["region"],
    run_files.Part: SCHEMA["properties"]["parts"]["items"],
    run_files.Run: SCHEMA,
}


@pytest.mark.parametrize("kind", OBJECTS, ids=lambda kind: kind.__name__)
def test_a_reader_asks_for_what_the_schema_publishes(kind):
    asked = msgspec.json.schema(kind)["$defs"][kind.__name__]
    published = OBJECTS[kind]
    assert set(asked["properties"]) <= set(published["properties"])
    constants = {"schema": {"gpusync.run/1"}} if kind is run_files.Run else {}
    # What later versions added was not written by earlier ones.
    added = {"origin"} if kind is run_files.Part else set()
    assert set(asked["required"]) | added == set(published["required"]) | added
    # Names that reports distinguish; another one would be refused.
    closed = {name: set(value["enum"]) for name, value in asked["properties"].items() if "enum" in value}
    assert closed == {name: set(published["properties"][name].get("enum", ())) for name in closed} | constants


def test_every_kind_of_object_that_a_reader_asks_for_is_compared_with_the_schema():
    assert set(msgspec.json.schema(run_files.Run)["$defs"]) == {kind.__name__ for kind in OBJECTS}


@pytest.mark.parametrize("environment", [None, H200])
def test_what_is_written_can_be_read(environment):
    document = written(environment, region_document(FULL), unmeasured_document("test_b", "no GPU"))
    assert len(run_files.check_run("run.json", document).regions) == 2
