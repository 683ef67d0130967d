"""While tests of a distributed run go on: the ranks watch over each other, and a run that is ended still reports.

A rank that dies leaves the others in a collective that never ends. torchrun sends SIGTERM to those of the same node; on
other nodes nobody hears of it. So each rank gives signs of life to the store, the first rank watches over all and all
over the first, and a rank that learns of the end, by SIGTERM or by silence, ends its session: pytest stops as for
Ctrl-C and the reports are written. Where the main thread does not come back from a call, that is done from here.
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

    from pytest_gpusync.distributed.rank_exchange import Ranks

BEAT_SECONDS: Final = 2.0
"""Between two signs of life."""

SILENCE_SECONDS: Final = 30.0
"""A rank that was silent for so long is gone. Loading a library, the longest that a thread is held up, takes less."""

REACTION_SECONDS: Final = 5.0
"""In which the main thread must come back from what it waits for, or the session is ended without it."""

CLOSING_SECONDS: Final = 20.0
"""From then on to the end of the process: fixtures that are torn down may wait for the rank that is gone."""

_NOBODYS: Final = ("<", sys.base_prefix, os.path.dirname(os.path.dirname(__file__)))
"""Files that no caller wrote begin so."""

TORCHRUN_ENDS: Final = "torchrun ended the run (SIGTERM)"
ANOTHER_ENDS: Final = "another rank ended the run"


class Signs:
    """Signs of life of the ranks, in their store."""

    def __init__(self, rank: int, size: int, store: Any) -> None:
        """Take a connection of its own: a wait on one holds up what others ask of it."""
        self._rank = rank
        self._size = size
        self._store = store
        self._heard: dict[int, tuple[int, float]] = {}
        """The last sign of a rank, and when it came."""

    def give(self) -> None:
        """Give a sign of this rank."""
        self._store.add(f"alive/{self._rank}", 1)

    def end(self) -> None:
        """Tell the others that this rank ends its run."""
        self._store.add("ending", 1)

    def is_ending(self) -> bool:
        """Tell whether a rank has ended its run."""
        return int(self._store.add("ending", 0)) > 0

    def silent(self, now: float) -> list[int]:
        """Return the ranks that gave signs and have stopped, of those that this one watches over.

        A rank that has sent its run home has done what it came for.
        """
        watched = range(1, self._size) if self._rank == 0 else (0,)
        found = []
        for number in watched:
            sign = int(self._store.add(f"alive/{number}", 0))
            last, when = self._heard.get(number, (0, now))
            if sign != last:
                self._heard[number] = sign, now
            elif sign and now - when > SILENCE_SECONDS and not self._store.check([f"run/{number}"]):
                found.append(number)
        return found


class Watch:
    """Watches from a thread, from the first test until this rank has reported."""

    def __init__(self, ranks: Ranks, signs: Signs, finish: Callable[[], None]) -> None:
        """Take this rank's place among the others.

        Args:
            ranks: learns which of them are gone.
            signs: over a connection of their own.
            finish: called on the watching thread where the main thread does not come back: writes and prints reports.
        """
        self.reason: str | None = None
        """Why the session is ended; None while it is not."""
        self._ranks = ranks
        self._signs = signs
        self._finish = finish
        self._claim = threading.Lock()
        self._claimed = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpusync-watch", daemon=True)
        self._ended_at = 0.0
        self._wake_read, self._wake_write = -1, -1
        self._handles = False

    def start(self) -> None:
        """Begin. SIGTERM is taken only where nobody else has."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._wake_read, self._wake_write = os.pipe()
            os.set_blocking(self._wake_write, False)
            # Python runs a handler once the main thread is back in Python; this tells the watching thread at once.
            before = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
            if before == -1:
                signal.signal(signal.SIGTERM, self._on_sigterm)
                self._handles = True
                _in_children_let_go()
            else:
                signal.set_wakeup_fd(before)
        self._look_around()  # a rank that dies in its first seconds was there
        self._thread.start()

    def claim(self) -> bool:
        """Take it upon the caller's thread to report; False if the other thread has."""
        with self._claim:
            mine, self._claimed = not self._claimed, True
        return mine

    def wait_for_the_end(self) -> None:
        """Leave the rest to the watching thread, which ends the process."""
        self._stopped.wait(2 * CLOSING_SECONDS)

    def stop(self) -> None:
        """Stop, and give SIGTERM back. Harmless a second time."""
        self._stopped.set()
        if self._handles:
            if self._is_handled():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            self._handles = False
            os.write(self._wake_write, b"\0")  # not to wait for the next beat
        self._thread.join(2 * BEAT_SECONDS)
        if not self._thread.is_alive():
            for end in (self._wake_read, self._wake_write):
                if end != -1:
                    os.close(end)
            self._wake_read = self._wake_write = -1

    def waits_at(self) -> str | None:
        """Return the line of the caller's that the main thread is in, as ``path:line``; None if it is in none."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        if frame is None:
            return None
        for entry in reversed(traceback.extract_stack(frame)):
            if "site-packages" not in entry.filename and not entry.filename.startswith(_NOBODYS):
                return f"{os.path.relpath(entry.filename)}:{entry.lineno}"
        return None

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self.reason = self.reason or TORCHRUN_ENDS
        self._ranks.hurry()
        if not self._claimed:
            raise pytest.exit.Exception(self.reason)

    def _watch(self) -> None:
        while not self._stopped.is_set():
            told = signal.SIGTERM in self._sleep() and self._is_handled()
            if self._stopped.is_set():
                return
            reason = TORCHRUN_ENDS if told else self._look_around()
            if reason is not None and not self._ended_at:
                self._end(reason, told=told)
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

    def _look_around(self) -> str | None:
        """Give a sign, and return why the session must end; None if it need not."""
        try:
            self._signs.give()
            silent = self._signs.silent(time.monotonic())
            self._ranks.gone.update(silent)
            if silent:
                which = f"rank {silent[0]}" if len(silent) == 1 else f"ranks {', '.join(map(str, silent))}"
                return f"{which} gave no sign of life for {SILENCE_SECONDS:g} s"
            return ANOTHER_ENDS if self._signs.is_ending() else None
        except Exception:  # torchrun is gone, and its store with it: nobody is left to watch over
            return None

    def _end(self, reason: str, *, told: bool) -> None:
        """Make the main thread end the session, if it can."""
        self._ended_at = time.monotonic()
        self.reason = self.reason or reason
        self._ranks.hurry()
        with suppress(Exception):  # as above
            self._signs.end()
        if not told and self._is_handled():
            os.kill(os.getpid(), signal.SIGTERM)

    def _is_handled(self) -> bool:
        """Tell whether SIGTERM still comes here: a test may have taken it for something of its own."""
        return self._handles and signal.getsignal(signal.SIGTERM) == self._on_sigterm

    @staticmethod
    def _leave_process() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(int(pytest.ExitCode.INTERRUPTED))


@cache
def _in_children_let_go() -> None:
    """See to it that processes forked from here on end by SIGTERM as others do, and wake nobody here."""
    sigterm, was = {signal.SIGTERM}, threading.local()

    def hold() -> None:  # one that comes to the child before it has let go waits
        was.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, sigterm)

    def take() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, was.blocked)

    def let_go() -> None:
        if isinstance(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), Watch):
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        take()

    os.register_at_fork(before=hold, after_in_parent=take, after_in_child=let_go)
