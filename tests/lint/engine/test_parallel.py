"""Work is distributed to processes, forked or new, and one that dies takes nothing with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import spawned_work
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.project import partition
from gpusync_lint.run import engine, parallel, schedule, spawned

forked = pytest.mark.skipif(not parallel.CAN_FORK, reason="processes are not forked here")

SETTINGS = EngineSettings()
CODE = "import torch\nx = torch.zeros(3, device='cuda')\nfor i in range(9):\n    x.sum().item()\n"


@forked
def test_results_come_in_the_order_of_the_tasks():
    assert parallel.fork_each(50, lambda task: task * task, 3) == [task * task for task in range(50)]


@forked
def test_a_large_result_arrives_whole():
    assert parallel.fork_each(2, lambda task: bytes(3_000_000), 2) == [bytes(3_000_000)] * 2


@forked
def test_a_worker_that_dies_spoils_its_task_alone():
    def work(task):
        if task == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return task

    assert parallel.fork_each(6, work, 2) == [0, 1, 2, parallel.Died("signal 9"), 4, 5]


@forked
def test_all_workers_dead_leaves_no_task_undone():
    results = parallel.fork_each(3, lambda task: os._exit(7), 3)
    assert results == [parallel.Died("exit code 7")] * 3


@forked
def test_an_interrupt_leaves_no_process_behind():
    code = (
        "import os, time\nfrom gpusync_lint.run import parallel\n"
        "def work(task):\n    os.write(1, b'%d\\n' % os.getpid())\n    time.sleep(60)\n"
        "parallel.fork_each(2, work, 2)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    assert process.stdout is not None
    workers = [int(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGINT)
    process.wait(timeout=300)
    process.stdout.close()
    deadline = time.monotonic() + 60
    while any(_lives(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(_lives(worker) for worker in workers)


def _lives(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def parts(sources, jobs):
    found = schedule.analyze_sources(
        sources, EngineSettings(), [partition.imports(source.text) for source in sources], jobs=jobs
    )
    return schedule.combined([part.analysis for part in found], len(sources))


@pytest.fixture(params=["fork", "spawn"])
def small(request, monkeypatch):
    """Distribute whatever there is, to forked processes and to new ones, as on Windows and macOS."""
    if request.param == "fork" and not parallel.CAN_FORK:
        pytest.skip("processes are not forked here")
    monkeypatch.setattr(parallel, "CAN_FORK", request.param == "fork")
    monkeypatch.setattr(schedule, "WORTH_SHARING", 1)
    monkeypatch.setattr(schedule, "WORTH_SPAWNING", 1)


def test_new_processes_return_results_in_the_order_of_the_tasks():
    assert spawned.spawn_each(20, spawned_work.square, 3) == [task * task for task in range(20)]


def test_a_large_result_of_a_new_process_arrives_whole():
    assert spawned.spawn_each(2, spawned_work.large, 2) == [bytes(3_000_000)] * 2


def test_a_new_process_that_dies_spoils_its_task_alone():
    results = spawned.spawn_each(6, spawned_work.die_at_3, 2)
    assert results == [0, 1, 2, parallel.Died("exit code 7"), 4, 5]


def test_all_new_processes_dead_leave_no_task_undone():
    assert spawned.spawn_each(3, spawned_work.die, 2) == [parallel.Died("exit code 7")] * 3


def test_each_finished_task_is_told():
    told = []
    spawned.spawn_each(4, spawned_work.square, 2, lambda: told.append(1))
    assert len(told) == 4


def test_new_processes_import_nothing_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "spawned_work.py").write_text("raise SystemExit('the code to lint was executed')\n")
    (tmp_path / "json.py").write_text("raise SystemExit('the code to lint was executed')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert spawned.spawn_each(2, spawned_work.square, 1) == [0, 1]


def test_where_no_process_can_be_started_the_files_are_analyzed_in_this_one(monkeypatch):
    monkeypatch.setattr(parallel, "CAN_FORK", False)
    monkeypatch.setattr(schedule, "WORTH_SHARING", 1)
    monkeypatch.setattr(schedule, "WORTH_SPAWNING", 1)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert len(parts([Source("a.py", CODE), Source("b.py", CODE)], 2).findings) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_an_interrupt_leaves_no_new_process_behind():
    code = "import spawned_work\nfrom gpusync_lint.run import spawned\nspawned.spawn_each(2, spawned_work.sleep, 2)\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    workers = [int(process.stderr.readline()) for _ in range(2)]
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) != 0
    process.stderr.close()
    assert not any(_lives(worker) for worker in workers)


def test_a_file_that_kills_a_process_is_named_and_the_others_are_linted(small):
    sources = [Source("a.py", CODE), Source("b.py", "deadly = 1\nimport c, torch\n"), Source("c.py", CODE)]
    units = partition.divide(sources, [partition.imports(each.text) for each in sources], schedule.roots(SETTINGS))
    files = spawned_work.Deadly(sources)
    found = schedule.analyze_units(files, SETTINGS, units, 2, lambda files: None)
    analysis = schedule.combined([part.analysis for part in found], len(sources))
    assert [(error.path, error.message) for error in analysis.errors] == [
        ("b.py", "the process that analyzed it died (exit code 7); the file is left out")
    ]
    assert {finding.path for finding in analysis.findings} == {"a.py", "c.py"}


def test_what_is_found_does_not_depend_on_the_number_of_processes(small):
    sources = [Source(f"{number}.py", CODE * (number % 3 + 1)) for number in range(6)]
    assert parts(sources, 3) == parts(sources, 1)
    assert len(parts(sources, 3).findings) == 12


@forked
def test_the_file_that_kills_its_worker_is_named_and_the_others_are_linted(monkeypatch):
    monkeypatch.setattr(schedule, "WORTH_SHARING", 1)
    real = engine.analyze

    def analyze(sources, *rest):
        if any("deadly" in source.text for source in sources):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(sources, *rest)

    monkeypatch.setattr(engine, "analyze", analyze)
    sources = [Source("a.py", CODE), Source("b.py", "deadly = 1\nimport c, torch\n"), Source("c.py", CODE)]
    found = parts(sources, 2)
    assert [(error.path, error.message) for error in found.errors] == [
        ("b.py", "the process that analyzed it died (signal 9); the file is left out")
    ]
    assert {finding.path for finding in found.findings} == {"a.py", "c.py"}


@forked
def test_files_that_only_kill_together_are_said_to(monkeypatch):
    monkeypatch.setattr(schedule, "WORTH_SHARING", 1)
    real = engine.analyze

    def analyze(sources, *rest):
        if len(sources) > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(sources, *rest)

    monkeypatch.setattr(engine, "analyze", analyze)
    found = parts([Source("a.py", "import b, torch"), Source("b.py", ""), Source("c.py", CODE)], 2)
    assert [error.message for error in found.errors] == [
        "the process that analyzed it and 1 related file died (signal 9)"
    ]
    assert [finding.path for finding in found.findings] == ["c.py"]
