"""Ranks watch over each other: one that dies is named, and the run ends with what was measured."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pytest_gpusync.distributed import rank_watchdog
from pytest_gpusync.distributed.rank_exchange import RankGroup
from pytest_gpusync.distributed.rank_watchdog import (
    ANOTHER_ENDS,
    SILENCE_SECONDS,
    TORCHRUN_ENDS,
    Heartbeats,
    RankWatchdog,
)

ROOT = Path(__file__).parents[2]


class Store:
    """A store of ``torch.distributed``'s interface, of one process."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value.encode() if isinstance(value, str) else value

    def get(self, key):
        return self.values[key]

    def check(self, keys):
        return all(key in self.values for key in keys)

    def add(self, key, amount):
        self.values[key] = self.values.get(key, 0) + amount
        return self.values[key]

    def wait(self, keys, timeout):
        if not self.check(keys):
            time.sleep(timeout.total_seconds())
            raise RuntimeError("wait timeout")


class Gone(Store):
    """The store of a torchrun that has ended."""

    def check(self, keys):
        raise RuntimeError("connection closed")

    add = set = wait = check


@pytest.fixture
def heartbeats():
    store = Store()
    return [Heartbeats(number, 3, store) for number in range(3)]


def beat(heartbeats, *ranks):
    for number in ranks:
        heartbeats[number].beat()


def test_the_first_rank_watches_all_others_and_each_of_them_the_first(heartbeats):
    beat(heartbeats, 0, 1, 2)
    for one in heartbeats:
        assert one.silent_ranks(0.0) == []
    late = SILENCE_SECONDS + 1
    assert [one.silent_ranks(late) for one in heartbeats] == [[1, 2], [0], [0]]


def test_a_rank_that_sends_heartbeats_is_not_silent(heartbeats):
    for now in range(0, 200, 20):
        beat(heartbeats, 1)
        assert heartbeats[0].silent_ranks(float(now)) == []


def test_a_rank_without_a_first_heartbeat_may_still_come(heartbeats):
    assert heartbeats[0].silent_ranks(0.0) == []
    assert heartbeats[0].silent_ranks(1000.0) == []


def test_a_rank_that_has_sent_its_run_home_may_be_silent():
    store = Store()
    heartbeats = [Heartbeats(number, 2, store) for number in range(2)]
    beat(heartbeats, 1)
    heartbeats[0].silent_ranks(0.0)
    store.set("run/1", b"")
    assert heartbeats[0].silent_ranks(1000.0) == []


def test_the_last_test_of_a_rank_is_known_to_the_others():
    store = Store()
    ranks = [RankGroup(number, 2, store) for number in range(2)]
    ranks[1].note_test("test_a.py::test_b[é]")
    assert (ranks[0].last_test(1), ranks[1].last_test(0)) == ("test_a.py::test_b[é]", None)


def test_nothing_is_noted_in_a_store_that_is_gone():
    ranks = RankGroup(0, 2, Gone())
    ranks.note_test("test_a.py::test_b")
    assert ranks.last_test(1) is None


def test_a_rank_that_is_gone_is_not_waited_for():
    ranks = RankGroup(0, 2, Store())
    ranks.dead.add(1)
    began = time.monotonic()
    assert ranks.exchange({"from": 0}, seconds=60)[1] is None
    assert time.monotonic() - began < 20


def test_a_store_that_is_gone_is_not_asked_again_and_again():
    class Counting(Gone):
        asked = 0

        def set(self, key, value):
            pass

        def wait(self, keys, timeout):
            Counting.asked += 1
            raise RuntimeError("connection closed")

    assert RankGroup(0, 2, Counting()).exchange({"from": 0}, seconds=60) == [{"from": 0}, None]
    assert Counting.asked == 1


def test_a_wait_that_has_begun_is_cut_short_when_the_run_is_ended(monkeypatch):
    monkeypatch.setattr("pytest_gpusync.distributed.rank_exchange.ENDING_SECONDS", 0.5)
    ranks = RankGroup(0, 2, Store())
    threading.Timer(0.2, ranks.shorten_waits).start()
    began = time.monotonic()
    assert ranks.exchange({"from": 0}, seconds=60)[1] is None
    assert time.monotonic() - began < 20


@pytest.fixture
def watching(monkeypatch):
    """Return a function that starts a watch and returns it with its store; all are stopped in the end."""
    monkeypatch.setattr(rank_watchdog, "BEAT_SECONDS", 0.05)
    started = []

    def start(store=None, finish=lambda: None):
        store = store or Store()
        watching = RankWatchdog(RankGroup(0, 2, store), Heartbeats(0, 2, store), finish)
        started.append(watching)
        watching.start()
        return watching, store

    before = signal.getsignal(signal.SIGTERM)
    assert before is signal.SIG_DFL
    yield start
    for one in started:
        one.stop()
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(-1) == -1


def stay(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)


def wait_until(condition):
    """Wait for what another thread does; a busy machine may take its time."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "it has not happened within a minute"
        time.sleep(0.01)


def wait_for_the_end():
    """Wait in the main thread until the session is ended."""
    stay(60)


def test_a_sign_of_life_is_given_at_once_and_then_again_and_again(watching):
    _, store = watching()
    assert store.values["alive/0"] >= 1
    wait_until(lambda: store.values["alive/0"] > 2)


def test_sigterm_ends_the_session_and_the_others_hear_of_it(watching):
    one, store = watching()
    with pytest.raises(pytest.exit.Exception, match=r"torchrun ended the run"):
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for_the_end()
    assert one.reason == TORCHRUN_ENDS
    wait_until(lambda: store.values.get("ending") == 1)


def test_the_end_of_another_rank_is_the_end_of_this_one(watching):
    one, store = watching()
    with pytest.raises(pytest.exit.Exception, match=ANOTHER_ENDS):
        store.add("ending", 1)
        wait_for_the_end()
    assert one.reason == ANOTHER_ENDS


def test_a_silent_rank_ends_the_session_and_is_named(watching, monkeypatch):
    monkeypatch.setattr(rank_watchdog, "SILENCE_SECONDS", 0.2)
    store = Store()
    store.add("alive/1", 1)
    with pytest.raises(pytest.exit.Exception, match=r"rank 1 sent no heartbeat"):
        watching(store)
        wait_for_the_end()


def test_a_session_that_reports_already_is_not_ended_again(watching):
    one, _ = watching()
    assert one.claim()
    os.kill(os.getpid(), signal.SIGTERM)
    wait_until(lambda: one.reason is not None)
    stay(0.1)
    assert one.reason == TORCHRUN_ENDS
    assert not one.claim()


def test_somebody_elses_handling_of_sigterm_is_left_alone(watching):
    taken = []
    before = signal.signal(signal.SIGTERM, lambda *_: taken.append(1))
    try:
        one, _ = watching()
        os.kill(os.getpid(), signal.SIGTERM)
        stay(0.3)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (taken, one.reason) == ([1], None)


def test_a_handler_that_a_test_set_later_is_left_alone(watching):
    one, _ = watching()
    taken = []
    ours = signal.signal(signal.SIGTERM, lambda *_: taken.append(1))
    os.kill(os.getpid(), signal.SIGTERM)
    stay(0.3)
    signal.signal(signal.SIGTERM, ours)
    assert (taken, one.reason) == ([1], None)


def test_a_forked_child_ends_as_others_do_and_alone(watching):
    one, _ = watching()
    child = os.fork()
    if child == 0:
        try:
            time.sleep(30)
        finally:
            os._exit(0)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    stay(0.3)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert one.reason is None


def test_a_store_that_is_gone_ends_nothing(watching):
    one, _ = watching(Gone())
    stay(0.3)
    assert one.reason is None


QUICK = """
import pytest_gpusync.distributed.rank_exchange, pytest_gpusync.distributed.rank_watchdog
pytest_gpusync.distributed.rank_exchange.ENDING_SECONDS = 6.0
pytest_gpusync.distributed.rank_watchdog.REACTION_SECONDS = 1.0
pytest_gpusync.distributed.rank_watchdog.SILENCE_SECONDS = 5.0
"""

DIES = """
import os, pathlib, signal, time
import torch

def test_before():
    torch.ones(1, device="cuda").item()

def test_dies():
    torch.ones(1, device="cuda").item()
    there = pathlib.Path("there")
    if os.environ["RANK"] == "1":
        while not there.exists():
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    there.touch()
    {waits}
"""


def launch(folder, plugin, *how):
    """Start torchrun with a pytest per rank."""
    options = ["--gpu-device=simulated", "--gpu-sync-budget=1", "--gpu-sync-report=run.json"]
    test = ["-m", "pytest", "-p", "no:cacheprovider", *plugin, *options, "test_ranks.py"]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *how, *test],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "lint")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    ("waits", "said"),
    [
        ("while True: time.sleep(0.1)", "the test was interrupted"),
        # As a collective: the thread that waits in it does not hear of signals.
        (
            "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); time.sleep(1000)",
            "still waits at test_ranks.py:",
        ),
    ],
    ids=["in Python", "in a call that does not return"],
)
def test_a_rank_that_is_killed_is_named_and_the_others_report(tmp_path, plugin, waits, said):
    pytest.importorskip("torch.distributed.run")
    (tmp_path / "conftest.py").write_text(QUICK)
    (tmp_path / "test_ranks.py").write_text(DIES.replace("{waits}", waits))
    launched = launch(tmp_path, plugin, "--standalone", "--nproc-per-node=2")
    try:
        printed, _ = launched.communicate(timeout=300)  # a rank that nobody ends would wait for 1000 s, or forever
    finally:
        launched.kill()
    assert launched.returncode != 0
    assert "rank 1 died or was killed; its last test was test_ranks.py::test_dies" in printed
    run = json.loads((tmp_path / "run.json").read_text())
    regions = {region["name"]: region for region in run["regions"]}
    assert {name: region["outcome"] for name, region in regions.items()} == {
        "test_ranks.py::test_before": "passed",
        "test_ranks.py::test_dies [rank 0]": "not_measured",
        "test_ranks.py::test_dies [rank 1]": "not_measured",
    }
    assert said in regions["test_ranks.py::test_dies [rank 0]"]["problem"]


def test_a_rank_that_is_killed_on_another_node_is_missed(tmp_path, plugin):
    pytest.importorskip("torch.distributed.run")
    (tmp_path / "conftest.py").write_text(QUICK)
    (tmp_path / "test_ranks.py").write_text(DIES.replace("{waits}", "while True: time.sleep(0.1)"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
    nodes = [launch(tmp_path, plugin, *where, f"--node-rank={number}") for number in range(2)]
    printed = [node.communicate(timeout=150)[0] for node in nodes]
    assert [node.returncode != 0 for node in nodes] == [True, True]
    assert "rank 1 sent no heartbeat for 5 s" in printed[0]
    assert "rank 1 died or was killed; its last test was test_ranks.py::test_dies" in printed[0]
    outcomes = {one["name"]: one["outcome"] for one in json.loads((tmp_path / "run.json").read_text())["regions"]}
    assert outcomes["test_ranks.py::test_before"] == "passed"
    assert outcomes["test_ranks.py::test_dies [rank 1]"] == "not_measured"
