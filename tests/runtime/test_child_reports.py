"""What a region makes of the reports of processes that it started."""

from __future__ import annotations

import json
import os
import sys

import pytest

from pytest_gpusync.machine.child_environment import PATH, REPORTS, STARTUP
from pytest_gpusync.measure import child_reports
from pytest_gpusync.measure.child_reports import ChildReports, Window
from pytest_gpusync.measure.region import record
from pytest_gpusync.model.budgets import Budget, judge
from pytest_gpusync.model.measurement import Environment

SIMULATED = Environment("2.13.0", "3.11.9", "simulated", None, None, "simulated", "simulated")
HEADER = {"pid": 7, "name": "Worker-1", "used": 15}


@pytest.fixture
def reports():
    made = ChildReports()
    made.open(lambda folder: None)
    yield made
    made.close()


def write(reports, *entries, name="1-7.jsonl"):
    with open(os.path.join(reports.folder, name), "a", encoding="utf-8") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)


def sync(began, *, owner=1, owned=True, line=3):
    return {
        "sync": {
            "began": began,
            "kind": "stream",
            "site": ["worker.py", line, "work", None],
            "direction": "D2H",
            "bytes": 4,
            "phase": None,
            "thread": "MainThread",
            "owner": owner,
            "owned": owned,
            "device": 0,
            "allowed": None,
        }
    }


def step(ended, optimizer=1, thread=1):
    return {"step": ended, "optimizer": optimizer, "thread": [thread, "MainThread"]}


def measured(reports, step_ends=(), warmup=1, checks_races=True):
    window = Window("test_it", SIMULATED, 10, 100, step_ends, "optimizer.step()", warmup, checks_races)
    return reports.measured(window)


def test_without_a_report_there_is_no_measurement(reports):
    assert measured(reports) == []


def test_a_process_that_used_the_device_and_did_not_wait_made_no_sync(reports):
    write(reports, HEADER)
    (found,) = measured(reports)
    assert (found.name, found.process, found.all_syncs, found.device_used) == (
        "test_it in Worker-1",
        "Worker-1",
        (),
        True,
    )
    assert judge(found, Budget(max=0)).outcome == "passed"


RACE = {
    "race": {
        "kind": "host-read",
        "site": ["worker.py", 7, "work", None],
        "stream": "host",
        "other": ["worker.py", 6, "work", None],
        "other_stream": "default stream",
        "tensor": "host",
        "shape": [4],
        "nbytes": 16,
        "message": "worker.py:7 reads host",
        "times": 1,
    }
}


def test_a_race_belongs_to_the_regions_in_which_it_happened(reports):
    raced = [{"raced": 0, "at": at} for at in (9, 10, 100, 101)]
    write(reports, {**HEADER, "used": 2}, RACE, *raced)
    (found,) = measured(reports)
    (race,) = found.races
    assert (race.site.line, race.other.line, race.shape, race.times) == (7, 6, (4,), 2)


def test_a_region_that_does_not_look_for_races_has_none_of_its_processes(reports):
    write(reports, HEADER, RACE, {"raced": 0, "at": 20})
    (found,) = measured(reports, checks_races=False)
    assert found.races is None


def test_only_what_lies_within_the_region_belongs_to_it(reports):
    write(reports, {**HEADER, "used": 2}, sync(9), sync(10), sync(100), sync(101))
    (found,) = measured(reports)
    assert len(found.all_syncs) == 2


def test_a_process_that_did_nothing_within_the_region_is_not_listed(reports):
    write(reports, {**HEADER, "used": 2}, sync(9), sync(101))
    assert measured(reports) == []


def test_a_process_is_judged_by_its_own_steps(reports):
    write(reports, HEADER, sync(20), sync(21), step(22), sync(25), step(26), sync(27), sync(28), step(30), sync(31))
    (found,) = measured(reports, step_ends=(50, 60))
    assert (found.steps, [each.step for each in found.all_syncs]) == (3, [0, 0, 1, 2, 2, None])
    assert judge(found, Budget(max=1)).syncs == 2


def test_a_process_without_steps_is_judged_by_those_of_the_region(reports):
    write(reports, HEADER, sync(20), sync(55), sync(56), sync(70))
    (found,) = measured(reports, step_ends=(50, 60))
    assert [each.step for each in found.all_syncs] == [0, 1, 1, None]


def test_a_thread_of_the_process_counts_if_it_steps_an_optimizer(reports):
    write(reports, HEADER, sync(20, owner=2, owned=False), sync(21, owner=3, owned=False), step(22, thread=2))
    (found,) = measured(reports)
    assert [each.background for each in found.all_syncs] == [False, True]


def test_a_process_whose_syncs_cannot_be_counted_satisfies_no_budget(reports):
    write(reports, HEADER, {"unseen": "no recorder can run: it is Sunday"})
    (found,) = measured(reports)
    verdict = judge(found, Budget(max=9))
    assert verdict.outcome == "not_measured"
    assert verdict.sentence.startswith("Not measured: Worker-1, which the test started, used the device unseen: no rec")


def test_a_line_that_is_being_written_is_read_when_it_is_whole(reports):
    write(reports, HEADER, sync(20))
    with open(os.path.join(reports.folder, "1-7.jsonl"), "a", encoding="utf-8") as file:
        file.write('{"sync": {"beg')
    assert len(measured(reports)[0].all_syncs) == 1
    with open(os.path.join(reports.folder, "1-7.jsonl"), "a", encoding="utf-8") as file:
        file.write(json.dumps(sync(21))[len('{"sync": {"beg') :] + "\n")
    assert len(measured(reports)[0].all_syncs) == 2


def test_the_environment_is_restored(monkeypatch):
    from multiprocessing import spawn

    monkeypatch.setenv(PATH, "somewhere")
    before, prepare = dict(os.environ), spawn.get_preparation_data
    made = ChildReports()
    made.open(lambda folder: None)
    made.open(lambda folder: None)
    assert os.environ[PATH] == os.pathsep.join([STARTUP, "somewhere"])
    made.close()
    assert os.environ[REPORTS] == made.folder
    made.close()
    assert (dict(os.environ), spawn.get_preparation_data) == (before, prepare)


def test_a_variable_that_the_program_has_set_meanwhile_is_left(monkeypatch):
    monkeypatch.delenv(PATH, raising=False)
    made = ChildReports()
    made.open(lambda folder: None)
    monkeypatch.setenv(PATH, "new")
    made.close()
    assert os.environ[PATH] == "new"


def test_a_region_asks_for_reports_only_where_it_is_told_to(scripted):
    with record():
        assert child_reports.reports.folder is None
    with record(children=True) as seen:
        assert child_reports.reports.folder is not None
    assert (child_reports.reports.folder, seen.children()) == (None, [])


CONTEXT = "7f1c00000000-7f1c02000000 rw-s 7f1c00000000 00:05 12  /dev/nvidia-uvm"
INITIALISED = "7f1d7c000000-7f1d7c001000 -w-s 00000000 00:05 11  /dev/nvidia0"
INHERITED = "7f1d7c000000-7f1d7c001000 rw-s 00000000 00:05 11  /dev/nvidia0"


def processes(tmp_path, children, maps):
    """Make a folder like /proc of processes with these children and this line of their memory maps."""
    for pid in {1, *children, *(child for found in children.values() for child in found)}:
        (tmp_path / str(pid) / "task" / str(pid)).mkdir(parents=True)
        (tmp_path / str(pid) / "task" / str(pid) / "children").write_text(" ".join(map(str, children.get(pid, ()))))
        (tmp_path / str(pid) / "maps").write_text(
            f"7f00-7f01 r-xp 00 00:00 1  /lib/libcuda.so.1\n{maps.get(pid, '')}\n"
        )
    return tmp_path


def test_running_processes_with_a_cuda_context_are_found_below_this_one(tmp_path):
    proc = processes(tmp_path, {1: [2, 3], 3: [4]}, {1: CONTEXT, 4: CONTEXT})
    assert list(child_reports._users_of_a_gpu(1, proc)) == [4]


@pytest.mark.parametrize("maps", [INITIALISED, INHERITED], ids=["CUDA is initialised only", "fork of a user"])
def test_a_process_without_a_context_does_not_use_the_device(tmp_path, maps):
    assert list(child_reports._users_of_a_gpu(1, processes(tmp_path, {1: [2]}, {2: maps}))) == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_running_process_that_uses_a_gpu_and_does_not_report_satisfies_no_budget(reports, monkeypatch):
    monkeypatch.setattr(child_reports, "_users_of_a_gpu", lambda pid: [7, 42])
    write(reports, {**HEADER, "used": 2})
    on_gpu = Environment("2.13.0", "3.11.9", "cuda", "GPU", "1", "cupti", "driver")
    (found,) = reports.measured(Window("test_it", on_gpu, 10, 100, (), "whole region", 0, checks_races=False))
    assert found.problem.startswith("process 42, which the test started, used the device unseen")
