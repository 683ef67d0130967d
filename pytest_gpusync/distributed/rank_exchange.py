"""The ranks of a distributed run, one pytest each: they tell each other what they measured before any of them ends.

torchrun keeps a key-value store for its ranks, on every node, for as long as it runs. Each rank puts its run there and
reads those of the others. All waits are bounded: a rank that died or hangs is named, and holds nobody up for longer.
torchrun ends the other ranks as soon as one fails, so nobody leaves before all have printed what they have to say.
While the tests run, each rank sends signs of life, and notes which test it is in: see :mod:`.rank_watchdog`.
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
"""Longest wait for the runs of the other ranks: they ran the same tests, and end about when this one does."""

ENDING_SECONDS: Final = 12.0
"""The same where the run is being ended: torchrun kills what is still there 30 s after its SIGTERM."""

LEAVE_SECONDS: Final = 30.0
"""Longest wait for the others to print."""

_SLICE_SECONDS: Final = 1.0
"""A wait for a run looks up this often, to learn that the rank is gone."""


def rank() -> int | None:
    """Return the rank of this process in a run of several, as torchrun and its like tell it; None in a run of one."""
    told, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return int(told) if told.isdecimal() and size.isdecimal() and int(size) > 1 else None


class Ranks:
    """This process among the ranks of its run."""

    def __init__(self, rank: int, size: int, store: Any) -> None:
        """Take a rank, the number of ranks, and the store (of ``torch.distributed.Store``'s interface)."""
        self.rank = rank
        self.size = size
        self.gone: set[int] = set()
        """Ranks that were found to be dead; nobody waits for them."""
        self._store = store
        self._hurried = float("inf")

    def note_test(self, nodeid: str) -> None:
        """Note which test this rank is in, for the others to tell where it died."""
        with suppress(Exception):  # torchrun is gone, and its store with it
            self._store.set(f"test/{self.rank}", nodeid)

    def last_test(self, number: int) -> str | None:
        """Return the test that a rank was in last; None if it had not begun one."""
        key = f"test/{number}"
        with suppress(Exception):
            if self._store.check([key]):
                return bytes(self._store.get(key)).decode()
        return None

    def exchange(self, own: Document, seconds: float = EXCHANGE_SECONDS) -> list[Document | None]:
        """Give this rank's document to the others and return those of all ranks, in order; None for one that is late.

        Args:
            own: anything that is JSON.
            seconds: how long the others may take.
        """
        self._store.set(f"run/{self.rank}", zlib.compress(json.dumps(own).encode()))
        until = time.monotonic() + seconds
        found: list[Document | None] = []
        for number in range(self.size):
            if number == self.rank:
                found.append(own)
            elif self._await_run(number, until):
                found.append(json.loads(zlib.decompress(self._store.get(f"run/{number}"))))
            else:
                found.append(None)
        return found

    def leave(self, seconds: float = LEAVE_SECONDS) -> None:
        """Wait until all ranks are here."""
        try:
            self._store.set(f"left/{self.rank}", b"1")
        except Exception:  # torchrun is gone, and its store with it: nobody waits for this rank
            return
        until = time.monotonic() + seconds
        for number in range(self.size):
            if not self._await(f"left/{number}", until):
                return

    def hurry(self) -> None:
        """Shorten a wait for the runs of the others, also one that has begun: the run is being ended."""
        self._hurried = min(self._hurried, time.monotonic() + ENDING_SECONDS)

    def _await_run(self, number: int, until: float) -> bool:
        """Wait for the run of a rank; False if it did not come in time, or the rank is gone."""
        while True:
            began = time.monotonic()
            end = min(until, self._hurried)
            if self._await(f"run/{number}", min(end, began + _SLICE_SECONDS)):
                return True
            now = time.monotonic()
            is_broken = now - began < min(_SLICE_SECONDS, end - began) / 2  # the store is gone, and no wait waits
            if number in self.gone or now >= end or is_broken:
                return False

    def _await(self, key: str, until: float) -> bool:
        """Wait for a key; False if it did not come in time."""
        try:
            self._store.wait([key], timedelta(seconds=max(0.001, until - time.monotonic())))
        except Exception:  # its type differs between versions of torch
            return False
        return True


def connect() -> tuple[int, int, Any] | None:
    """Return this process's rank, the number of ranks and a connection to their store; None without torchrun.

    Other launchers (mpirun, srun) leave no store behind: their ranks are on their own.
    """
    own = rank()
    if own is None or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    try:
        # A rank whose tests were all skipped has not loaded it, and is waited for like the others.
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
    except Exception:  # no store where torchrun said it is: the ranks are on their own
        return None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return own, int(os.environ["WORLD_SIZE"]), dist.PrefixStore(f"pytest-gpusync/{attempt}", store)


def join() -> Ranks | None:
    """Return this process's place among the ranks that torchrun started; None elsewhere."""
    found = connect()
    return None if found is None else Ranks(*found)
