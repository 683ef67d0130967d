"""Watches the ranks of a distributed run while tests run, so that a run that is ended still reports.

A rank that dies leaves the others in a collective that never returns. torchrun sends SIGTERM to the ranks of the same
node; ranks on other nodes are not notified. So each rank sends heartbeats to the store; the first rank watches all
others, and each of them the first. A rank that learns of the end, by SIGTERM or by silence, ends its session: pytest
stops as for Ctrl-C, and the reports are written. If the main thread does not return from a call, the watchdog's thread
writes them.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from pytest_gpusync.distributed.rank_exchange import RankGroup

BEAT_SECONDS: Final = 2.0
"""Time between two heartbeats."""

SILENCE_SECONDS: Final = 30.0
"""A rank that was silent this long is dead. Loading a library, the longest block of a thread, takes less."""

REACTION_SECONDS: Final = 5.0
"""Time in which the main thread must return from what it waits for; after it, the session is ended without it."""

CLOSING_SECONDS: Final = 20.0
"""Time from then to the end of the process: fixtures being torn down may wait for the dead rank."""

_NOT_USER_CODE: Final = ("<", sys.base_prefix, os.path.dirname(os.path.dirname(__file__)))
"""Prefixes of files that are not user code."""

TORCHRUN_ENDS: Final = "torchrun ended the run (SIGTERM)"
ANOTHER_ENDS: Final = "another rank ended the run"


class Heartbeats:
    """Heartbeats of the ranks, in their store."""

    def __init__(self, rank: int, size: int, store: Any) -> None:
        """Take a separate connection: a wait on a connection delays its other requests."""
        self._rank = rank
        self._size = size
        self._store = store
        self._last_beats: dict[int, tuple[int, float]] = {}
        """The last heartbeat of a rank, and when it was seen."""

    def beat(self) -> None:
        """Send a heartbeat of this rank."""
        self._store.add(f"alive/{self._rank}", 1)

    def announce_end(self) -> None:
        """Announce that this rank ends its run."""
        self._store.add("ending", 1)

    def is_ending(self) -> bool:
        """Return whether a rank has ended its run."""
        return int(self._store.add("ending", 0)) > 0

    def silent_ranks(self, now: float) -> list[int]:
        """Return the watched ranks that have sent heartbeats and stopped.

        A rank that has stored its run may be silent: it is done.
        """
        watched = range(1, self._size) if self._rank == 0 else (0,)
        found = []
        for number in watched:
            sign = int(self._store.add(f"alive/{number}", 0))
            last, when = self._last_beats.get(number, (0, now))
            if sign != last:
                self._last_beats[number] = sign, now
            elif sign and now - when > SILENCE_SECONDS and not self._store.check([f"run/{number}"]):
                found.append(number)
        return found


class RankWatchdog:
    """Watches from a thread, from the first test until this rank has reported."""

    def __init__(self, ranks: RankGroup, heartbeats: Heartbeats, finish: Callable[[], None]) -> None:
        """Watch for this rank.

        Args:
            ranks: told which ranks are dead.
            heartbeats: over a separate connection.
            finish: writes and prints reports; called on the watching thread if the main thread does not return.
        """
        self.reason: str | None = None
        """Why the session is being ended; None while it is not."""
        self._ranks = ranks
        self._heartbeats = heartbeats
        self._finish = finish
        self._claim = threading.Lock()
        self._claimed = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpusync-watch", daemon=True)
        self._ended_at = 0.0
        self._wake_read, self._wake_write = -1, -1
        self._handles = False

    def start(self) -> None:
        """Start. SIGTERM is handled only if nobody else handles it."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._wake_read, self._wake_write = os.pipe()
            os.set_blocking(self._wake_write, False)
            # Python runs a handler once the main thread executes bytecode again; this wakes the watching thread at
            # once.
            before = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
            if before == -1:
                signal.signal(signal.SIGTERM, self._on_sigterm)
                self._handles = True
                _release_sigterm_in_children()
            else:
                signal.set_wakeup_fd(before)
        self._check_ranks()  # otherwise a rank that dies in its first seconds would never have been seen
        self._thread.start()

    def claim(self) -> bool:
        """Claim reporting for the caller's thread; False if the other thread has claimed it."""
        with self._claim:
            mine, self._claimed = not self._claimed, True
        return mine

    def wait_for_exit(self) -> None:
        """Wait for the watching thread, which ends the process."""
        self._stopped.wait(2 * CLOSING_SECONDS)

    def stop(self) -> None:
        """Stop, and restore the handling of SIGTERM. Does nothing a second time."""
        self._stopped.set()
        if self._handles:
            if self._is_handled():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            self._handles = False
            os.write(self._wake_write, b"\0")  # wakes the thread before the next heartbeat
        self._thread.join(2 * BEAT_SECONDS)
        if not self._thread.is_alive():
            for end in (self._wake_read, self._wake_write):
                if end != -1:
                    os.close(end)
            self._wake_read = self._wake_write = -1

    def current_user_line(self) -> str | None:
        """Return the line of user code that the main thread is in, as ``path:line``; None if it is in none."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        if frame is None:
            return None
        for entry in reversed(traceback.extract_stack(frame)):
            if "site-packages" not in entry.filename and not entry.filename.startswith(_NOT_USER_CODE):
                return f"{os.path.relpath(entry.filename)}:{entry.lineno}"
        return None

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self.reason = self.reason or TORCHRUN_ENDS
        self._ranks.shorten_waits()
        if not self._claimed:
            raise pytest.exit.Exception(self.reason)

    def _run(self) -> None:
        while not self._stopped.is_set():
            by_sigterm = signal.SIGTERM in self._sleep() and self._is_handled()
            if self._stopped.is_set():
                return
            reason = TORCHRUN_ENDS if by_sigterm else self._check_ranks()
            if reason is not None and not self._ended_at:
                self._end(reason, by_sigterm=by_sigterm)
            if self._ended_at and time.monotonic() - self._ended_at > REACTION_SECONDS and self.claim():
                try:
                    self._finish()
                finally:
                    self._leave_process()
            if self._ended_at and time.monotonic() - self._ended_at > REACTION_SECONDS + CLOSING_SECONDS:
                self._leave_process()

    def _sleep(self) -> bytes:
        seconds = BEAT_SECONDS / 2 if self._ended_at else BEAT_SECONDS
        if self._wake_read == -1:
            self._stopped.wait(seconds)
            return b""
        ready, _, _ = select.select([self._wake_read], [], [], seconds)
        return os.read(self._wake_read, 64) if ready else b""

    def _check_ranks(self) -> str | None:
        """Send a heartbeat, and return why the session must end; None if it need not."""
        try:
            self._heartbeats.beat()
            silent_ranks = self._heartbeats.silent_ranks(time.monotonic())
            self._ranks.dead.update(silent_ranks)
            if silent_ranks:
                which = (
                    f"rank {silent_ranks[0]}"
                    if len(silent_ranks) == 1
                    else f"ranks {', '.join(map(str, silent_ranks))}"
                )
                return f"{which} sent no heartbeat for {SILENCE_SECONDS:g} s"
            return ANOTHER_ENDS if self._heartbeats.is_ending() else None
        except Exception:  # torchrun has ended, and its store with it: nobody is left to watch
            return None

    def _end(self, reason: str, *, by_sigterm: bool) -> None:
        """Make the main thread end the session, if it can."""
        self._ended_at = time.monotonic()
        self.reason = self.reason or reason
        self._ranks.shorten_waits()
        with suppress(Exception):  # torchrun has ended
            self._heartbeats.announce_end()
        if not by_sigterm and self._is_handled():
            os.kill(os.getpid(), signal.SIGTERM)

    def _is_handled(self) -> bool:
        """Return whether SIGTERM is still handled here: a test may have replaced the handler."""
        return self._handles and signal.getsignal(signal.SIGTERM) == self._on_sigterm

    @staticmethod
    def _leave_process() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(int(pytest.ExitCode.INTERRUPTED))


@cache
def _release_sigterm_in_children() -> None:
    """Restore the default handling of SIGTERM in processes forked from now on."""
    sigterm, was = {signal.SIGTERM}, threading.local()

    def hold() -> None:  # a SIGTERM that arrives before the child has restored it waits
        was.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, sigterm)

    def take() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, was.blocked)

    def let_go() -> None:
        if isinstance(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), RankWatchdog):
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        take()

    os.register_at_fork(before=hold, after_in_parent=take, after_in_child=let_go)
