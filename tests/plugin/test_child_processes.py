"""Processes that a test starts report to it: their syncs are held to its budget."""

from __future__ import annotations

import json

import pytest

from pytest_gpusync.machine import devices

pytest.importorskip("torch")

WORKER = """
    import sys, torch

    def read(times):
        x = torch.ones(3, device="cuda")
        for _ in range(times):
            x.sum().item()

    def train(steps):
        model = torch.nn.Linear(2, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(3, 2, device="cuda")
        for _ in range(steps):
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            loss.item()

    def work_on_the_cpu():
        torch.ones(3).sum().item()

    if __name__ == "__main__":
        read(int(sys.argv[1]))
    """

TEST = """
    import multiprocessing, pytest, subprocess, sys, torch, worker

    def start(method, function, *arguments):
        process = multiprocessing.get_context(method).Process(target=function, args=arguments)
        process.start()
        return process

    @pytest.mark.gpu_sync_budget({budget})
    def test_it():
        {body}
    """


@pytest.fixture(autouse=True)
def no_gpu():
    if devices.detect().kind == "cuda":
        pytest.skip("the simulated device needs a machine without a GPU, or CUDA_VISIBLE_DEVICES= (empty)")


STARTED = {
    "spawn": ("start('spawn', worker.read, 3).join()", "SpawnProcess-1"),
    "fork": ("start('fork', worker.read, 3).join()", "ForkProcess-1"),
    "forkserver": ("start('forkserver', worker.read, 3).join()", "ForkServerProcess-1"),
    "subprocess": ("subprocess.run([sys.executable, 'worker.py', '3'], check=True)", "worker.py"),
}


@pytest.mark.parametrize(("body", "name"), STARTED.values(), ids=STARTED.keys())
def test_the_syncs_of_a_process_break_the_budget_of_the_test_that_started_it(run_apart, body, name):
    result = run_apart(worker=WORKER, test_a=TEST.format(budget="max=2", body=body))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"{name}: Process made 3 syncs, budget 2", "  worker.py:6 *3 syncs*"])


def test_a_process_that_trains_is_judged_by_its_own_steps_and_listed_in_the_report(run_apart, pytester):
    body = "start('spawn', worker.train, 4).join(); torch.ones(1, device='cuda')"
    result = run_apart("--gpu-sync-report=run.json", worker=WORKER, test_a=TEST.format(budget="max=1", body=body))
    result.assert_outcomes(passed=1)
    regions = json.loads((pytester.path / "run.json").read_text())["regions"]
    (child,) = [region for region in regions if region["process"] is not None]
    assert (child["name"], child["steps"], child["syncs_per_step"]["max"], child["outcome"]) == (
        "test_a.py::test_it in SpawnProcess-1",
        4,
        1,
        "passed",
    )


def test_a_process_that_works_on_the_cpu_is_no_use_of_the_device(run_apart):
    result = run_apart(
        worker=WORKER, test_a=TEST.format(budget="max=0", body="start('spawn', worker.work_on_the_cpu).join()")
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Not measured: nothing ran on the device*"])


def test_an_engine_that_a_fixture_started_reports_to_the_test_that_uses_it_also_when_it_is_killed(run_apart):
    result = run_apart(
        engine="""
            import torch
            def serve(asked, answers):
                x = torch.ones(3, device="cuda")
                answers.put("ready")
                for times in iter(asked.get, None):
                    for _ in range(times):
                        x.sum().item()
                    answers.put(times)
            """,
        test_a="""
            import multiprocessing, pytest, engine
            @pytest.fixture(scope="module")
            def ask():
                context = multiprocessing.get_context("spawn")
                asked, answers = context.Queue(), context.Queue()
                process = context.Process(target=engine.serve, args=(asked, answers))
                process.start()
                answers.get()
                def ask(times):
                    asked.put(times)
                    answers.get()
                yield ask
                process.kill()
                process.join()

            @pytest.mark.gpu_sync_budget(max=1)
            def test_once(ask): ask(1)
            @pytest.mark.gpu_sync_budget(max=1)
            def test_twice(ask): ask(2)
            """,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["SpawnProcess-1: Process made 2 syncs, budget 1"])


RETURNS_TWICE = """
import atexit, os, time
import torch

def test_forks():
    child = os.fork()
    if child:
        atexit.register(os.waitpid, child, 0)  # after the reports of the parent
    else:
        until = time.monotonic() + 60
        while not os.path.exists("run.json") and time.monotonic() < until:
            time.sleep(0.05)  # the child returns to pytest as well, and ends after its parent has reported

def test_names_its_process(gpu_sync):
    with gpu_sync.record(name=f"process {os.getpid()}"):
        torch.ones(2, device="cuda").sum().item()
    with open("processes", "a") as file:
        file.write(f"{os.getpid()}\\n")
"""


def test_a_child_that_returns_to_pytest_leaves_the_reports_to_its_parent(run_apart, pytester):
    result = run_apart("--gpu-device=simulated", "--gpu-sync-report=run.json", test_twice=RETURNS_TWICE)
    processes = (pytester.path / "processes").read_text().split()
    assert len(processes) == 2  # the parent's first
    names = [region["name"] for region in json.loads((pytester.path / "run.json").read_text())["regions"]]
    assert any(f"process {processes[0]}" in name for name in names), names
    assert not any(f"process {processes[1]}" in name for name in names), names
    assert "\n".join(result.outlines).count("= gpusync =") == 1
