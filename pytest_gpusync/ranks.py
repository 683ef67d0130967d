"""The ranks of a distributed run, one pytest each: they tell each other what they measured before any of them ends.

torchrun keeps a key-value store for its ranks, on every node, for as long as it runs. Each rank puts its run there and
reads those of the others. All waits are bounded: a rank that died or hangs is named, and holds nobody up for longer.
torchrun ends the other ranks as soon as one fails, so nobody leaves before all have printed what they have to say.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pytest_gpusync.reporting.json_ import Document

EXCHANGE_SECONDS: Final = 120.0
"""Longest wait for the runs of the other ranks: they ran the same tests, and end about when this one does."""

LEAVE_SECONDS: Final = 30.0
"""Longest wait for the others to print."""


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
        self._store = store

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
            elif self._await(f"run/{number}", until):
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

    def _await(self, key: str, until: float) -> bool:
        """Wait for a key; False if it did not come in time."""
        try:
            self._store.wait([key], timedelta(seconds=max(0.001, until - time.monotonic())))
        except Exception:  # its type differs between versions of torch
            return False
        return True


def join() -> Ranks | None:
    """Return this process's place among the ranks that torchrun started; None elsewhere.

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
    return Ranks(own, int(os.environ["WORLD_SIZE"]), dist.PrefixStore(f"pytest-gpusync/{attempt}", store))
