"""Workers that share GPUs: whose comes first, and who holds one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading

import pytest

from pytest_gpusync.machine import devices
from pytest_gpusync.machine.gpu_lease import LeaseUnavailable, lease, own_gpu_first, take_own_gpu


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
        assert inside.wait(60 if together else 0.2) is together
    thread.join(60)
    assert inside.is_set()


def test_gpus_are_held_one_by_one(gpu):
    with lease(gpu, exclusive=True):
        thread, inside = enters("GPU-other", exclusive=True)
        assert inside.wait(60)
    thread.join(60)


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


LOCK_FILE = "GPU-8a5f_0.lock"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / f"pytest-gpusync-{os.getuid()}"


def test_lock_files_are_in_a_folder_of_this_user_alone(gpu, folder):
    with lease(gpu, exclusive=True):
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [(path.name, path.stat().st_mode & 0o777) for path in folder.iterdir()] == [(LOCK_FILE, 0o600)]


def test_a_folder_that_others_can_write_to_is_refused(gpu, folder):
    folder.mkdir()
    folder.chmod(0o777)
    with (
        pytest.raises(LeaseUnavailable, match=r"is not a folder of this user alone.*set TMPDIR"),
        lease(gpu, exclusive=True),
    ):
        pass


def test_a_folder_of_another_user_is_refused(gpu, folder, monkeypatch):
    folder.mkdir(mode=0o700)
    other = os.getuid() + 1
    folder.rename(folder.with_name(f"pytest-gpusync-{other}"))
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(LeaseUnavailable, match="is not a folder of this user alone"), lease(gpu, exclusive=True):
        pass


@pytest.mark.parametrize("planted", ["folder", "file"])
def test_links_are_not_followed(gpu, folder, tmp_path, planted):
    target = tmp_path / "target"
    if planted == "folder":
        target.mkdir(mode=0o700)
        folder.symlink_to(target)
    else:
        folder.mkdir(mode=0o700)
        (folder / LOCK_FILE).symlink_to(target)
    with pytest.raises(LeaseUnavailable), lease(gpu, exclusive=True):
        pass
    assert not target.exists() or list(target.iterdir()) == []


KILLED_HOLDER = """
import multiprocessing, os, signal, sys, tempfile, time
from pytest_gpusync.machine.gpu_lease import lease
tempfile.tempdir = {folder!r}
with lease({gpu!r}, exclusive=True):
    if not os.fork():  # as a worker of a DataLoader is
        print(os.getpid(), flush=True)
        time.sleep(60)
        os._exit(0)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_of_a_killed_holder_does_not_keep_the_lease(gpu, tmp_path):
    code = KILLED_HOLDER.format(folder=str(tmp_path), gpu=gpu)
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(holder.stdout.readline())
    try:
        assert holder.wait(120) == -9
        os.kill(child, 0)  # it is alive
        with lease(gpu, exclusive=True, limit=1):
            pass
    finally:
        os.kill(child, 9)
        holder.stdout.close()


def test_a_forked_child_that_leaves_the_block_does_not_end_the_lease_of_its_parent(gpu):
    with lease(gpu, exclusive=True):
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(LeaseUnavailable), lease(gpu, exclusive=True, limit=0):
            pass


HOLDER = """
import tempfile, time
from pytest_gpusync.machine.gpu_lease import lease
tempfile.tempdir = {folder!r}
with lease({gpu!r}, exclusive=True):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_long_wait_names_the_holder_and_ends(gpu, tmp_path):
    code = HOLDER.format(folder=str(tmp_path), gpu=gpu)
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    said = []
    try:
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(LeaseUnavailable) as raised,
            lease(gpu, exclusive=False, announce=said.append, note_after=0.0, limit=0.3),
        ):
            pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert len(said) == 1
    assert said[0].startswith(f"waiting for {gpu}, which is held by process {holder.pid} (")
    assert re.match(rf"waited \d+ s for {gpu}, which is held by process {holder.pid} \(", str(raised.value))
