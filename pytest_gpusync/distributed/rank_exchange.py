"""The ranks of a distributed run, one pytest each, exchange their measurements before any of them ends.

torchrun keeps a key-value store for its ranks, on every node, as long as it runs. Each rank stores its run there and
reads those of the others. All waits are bounded: a rank that died or hangs is named and delays nobody any longer.
torchrun ends the other ranks as soon as one fails, so no rank leaves before all have printed their results. While the
tests run, each rank sends heartbeats and notes which test it is in: see :mod:`.rank_watchdog`.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pytest_gpusync.model.document import Document

EXCHANGE_SECONDS: Final = 120.0
"""Longest wait for the runs of the other ranks: they ran the same tests, and end at about the same time."""

ENDING_SECONDS: Final = 12.0
"""The same if the run is being ended: torchrun kills remaining processes 30 s after its SIGTERM."""

LEAVE_SECONDS: Final = 30.0
"""Longest wait for the others to print."""

_SLICE_SECONDS: Final = 1.0
"""A wait for a run is interrupted this often, to check whether the rank is dead."""


def rank() -> int | None:
    """Return the rank of this process among several, as set by torchrun and similar launchers; None if there is one
    process.
    """
    told, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return int(told) if told.isdecimal() and size.isdecimal() and int(size) > 1 else None


class RankGroup:
    """This process among the ranks of its run."""

    def __init__(self, rank: int, size: int, store: Any) -> None:
        """Take a rank, the number of ranks, and a store with the interface of ``torch.distributed.Store``."""
        self.rank = rank
        self.size = size
        self.dead: set[int] = set()
        """Ranks found to be dead; nobody waits for them."""
        self._store = store
        self._ending_deadline = float("inf")

    def note_test(self, nodeid: str) -> None:
        """Note which test this rank is in, so that the others can name it if this rank dies."""
        with suppress(Exception):  # torchrun has ended, and its store with it
            self._store.set(f"test/{self.rank}", nodeid)

    def last_test(self, number: int) -> str | None:
        """Return the last test that a rank began; None if there is none."""
        key = f"test/{number}"
        with suppress(Exception):
            if self._store.check([key]):
                return bytes(self._store.get(key)).decode()
        return None

    def exchange(self, own: Document, seconds: float = EXCHANGE_SECONDS) -> list[Document | None]:
        """Give this rank's document to the others and return those of all ranks, in order; None for one that is late.

        Args:
            own: any JSON value.
            seconds: how long the others may take.
        """
        self._store.set(f"run/{self.rank}", zlib.compress(json.dumps(own).encode()))
        until = time.monotonic() + seconds
        found: list[Document | None] = []
        for number in range(self.size):
            if number == self.rank:
                found.append(own)
            elif self._wait_for_run(number, until):
                found.append(json.loads(zlib.decompress(self._store.get(f"run/{number}"))))
            else:
                found.append(None)
        return found

    def leave(self, seconds: float = LEAVE_SECONDS) -> None:
        """Wait until all ranks are about to leave."""
        try:
            self._store.set(f"left/{self.rank}", b"1")
        except Exception:  # torchrun has ended, and its store with it: nobody waits for this rank
            return
        until = time.monotonic() + seconds
        for number in range(self.size):
            if not self._wait_for(f"left/{number}", until):
                return

    def shorten_waits(self) -> None:
        """Shorten waits for the runs of the others, including one in progress: the run is being ended."""
        self._ending_deadline = min(self._ending_deadline, time.monotonic() + ENDING_SECONDS)

    def _wait_for_run(self, number: int, until: float) -> bool:
        """Wait for the run of a rank; False if it did not arrive in time, or the rank is dead."""
        while True:
            began = time.monotonic()
            end = min(until, self._ending_deadline)
            if self._wait_for(f"run/{number}", min(end, began + _SLICE_SECONDS)):
                return True
            now = time.monotonic()
            is_broken = (
                now - began < min(_SLICE_SECONDS, end - began) / 2
            )  # the store has ended, and waits return at once
            if number in self.dead or now >= end or is_broken:
                return False

    def _wait_for(self, key: str, until: float) -> bool:
        """Wait for a key; False if it did not arrive in time."""
        try:
            self._store.wait([key], timedelta(seconds=max(0.001, until - time.monotonic())))
        except Exception:  # its type differs between versions of torch
            return False
        return True


def connect() -> tuple[int, int, Any] | None:
    """Return this process's rank, the number of ranks and a connection to their store; None without torchrun.

    Other launchers (mpirun, srun) provide no store: their ranks report separately.
    """
    own = rank()
    if own is None or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    try:
        # A rank whose tests were all skipped has not loaded torch, and the others wait for it all the same.
        import torch
    except ImportError:
        return None
    dist: Any = torch.distributed
    if not dist.is_available():
        return None
    try:
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=LEAVE_SECONDS),
        )
    except Exception:  # no store at torchrun's address: the ranks report separately
        return None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return own, int(os.environ["WORLD_SIZE"]), dist.PrefixStore(f"pytest-gpusync/{attempt}", store)


def join() -> RankGroup | None:
    """Return this process among the ranks that torchrun started; None without torchrun."""
    found = connect()
    return None if found is None else RankGroup(*found)
