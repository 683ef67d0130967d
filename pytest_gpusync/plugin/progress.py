"""How far a long run of steps has come, for the person at the terminal."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Protocol

    class Writer(Protocol):
        """What pytest writes to the terminal with."""

        hasmarkup: bool

        def write(self, msg: str, *, flush: bool = ...) -> None:
            """Write text, with control sequences and all."""


_PATIENCE_S: Final = 2.0
"""Runs that are over sooner show nothing."""
_INTERVAL_S: Final = 0.25


class Progress:
    """Shows steps behind the cursor, which stays where it is, and takes them away at the end."""

    def __init__(
        self,
        writer: Writer | None,
        steps: int | None,
        uncaptured: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Show on `writer` if that is a terminal that can.

        Args:
            writer: None: show nothing.
            steps: how many are to come; None if nobody knows.
            uncaptured: what is written in this context reaches the terminal.
        """
        self._uncaptured = uncaptured
        self._writer = writer if writer is not None and writer.hasmarkup else None
        self._of = "" if steps is None else f" of {steps}"
        self._next = time.monotonic() + _PATIENCE_S
        self._is_shown = False

    def show(self, step: int) -> None:
        """So many steps have run."""
        if self._writer is None:
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _INTERVAL_S
        # Saved, and restored: the line that pytest is writing goes on where it was.
        with self._uncaptured():
            self._writer.write(f"\x1b7 step {step}{self._of}\x1b[K\x1b8", flush=True)
        self._is_shown = True

    def close(self) -> None:
        """Take away what is shown."""
        if self._writer is not None and self._is_shown:
            with self._uncaptured():
                self._writer.write("\x1b[K", flush=True)
            self._is_shown = False
