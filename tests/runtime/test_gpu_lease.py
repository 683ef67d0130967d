"""Workers that share GPUs: whose comes first, and who holds one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading

import pytest

from pytest_gpusync.machine import devices
from pytest_gpusync.machine.gpu_lease import lease, own_gpu_first, take_own_gpu


@pytest.mark.parametrize(
    ("visible", "worker", "expected"),
    [
        (None, 0, "0,1,2"),
        (None, 1, "1,2,0"),
        (None, 4, "1,2,0"),
        ("3, 5", 1, "5,3"),
        ("GPU-8a5f", 3, "GPU-8a5f"),
    ],
)
def test_each_worker_has_its_own_gpu_first_and_sees_the_others(visible, worker, expected):
    assert own_gpu_first(visible, 3, worker) == expected


@pytest.fixture
def machine(monkeypatch):
    """Two GPUs, and a process that is no worker."""
    monkeypatch.setattr(devices, "count_gpus", lambda: 2)
    for name in ("CUDA_VISIBLE_DEVICES", "PYTEST_XDIST_WORKER", "PYTEST_GPUSYNC_WORKER"):
        monkeypatch.delenv(name, raising=False)
    environment = dict(os.environ)
    monkeypatch.setattr(os, "environ", environment)  # what a test sets is taken back
    return environment


def test_a_worker_puts_its_gpu_first_once(machine):
    machine["PYTEST_XDIST_WORKER"] = "gw1"
    take_own_gpu()
    take_own_gpu()
    assert machine["CUDA_VISIBLE_DEVICES"] == "1,0"


def test_no_worker_changes_nothing(machine):
    take_own_gpu()
    assert "CUDA_VISIBLE_DEVICES" not in machine


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_stay_hidden(machine, hidden):
    machine.update(PYTEST_XDIST_WORKER="gw1", CUDA_VISIBLE_DEVICES=hidden)
    take_own_gpu()
    assert machine["CUDA_VISIBLE_DEVICES"] == hidden


def test_a_machine_without_gpu_is_left_alone(machine, monkeypatch):
    monkeypatch.setattr(devices, "count_gpus", lambda: 0)
    machine["PYTEST_XDIST_WORKER"] = "gw1"
    take_own_gpu()
    assert "CUDA_VISIBLE_DEVICES" not in machine


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return "GPU-8a5f/0"


def enters(gpu, *, exclusive):
    """Tell whether somebody else gets the lease while it is held here, and let them have it before the test ends."""
    inside = threading.Event()

    def other():
        with lease(gpu, exclusive=exclusive):
            inside.set()

    thread = threading.Thread(target=other)
    thread.start()
    return thread, inside


@pytest.mark.parametrize(
    ("mine", "theirs", "together"),
    [(False, False, True), (False, True, False), (True, False, False), (True, True, False)],
)
def test_who_takes_times_is_alone(gpu, mine, theirs, together):
    with lease(gpu, exclusive=mine):
        thread, inside = enters(gpu, exclusive=theirs)
        assert inside.wait(10 if together else 0.2) is together
    thread.join(10)
    assert inside.is_set()


def test_gpus_are_held_one_by_one(gpu):
    with lease(gpu, exclusive=True):
        thread, inside = enters("GPU-other", exclusive=True)
        assert inside.wait(10)
    thread.join(10)


def test_a_failure_gives_the_lease_back(gpu):
    with pytest.raises(KeyError), lease(gpu, exclusive=True):
        raise KeyError
    with lease(gpu, exclusive=True):
        pass


def test_a_killed_process_gives_the_lease_back(gpu, tmp_path):
    code = (
        "import os, signal, tempfile; from pytest_gpusync.machine.gpu_lease import lease\n"
        f"tempfile.tempdir = {str(tmp_path)!r}\n"
        f"with lease({gpu!r}, exclusive=True):\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with lease(gpu, exclusive=True):
        pass


def test_without_a_gpu_there_is_nothing_to_hold(gpu, tmp_path):
    with lease(None, exclusive=True):
        pass
    assert list(tmp_path.iterdir()) == []
