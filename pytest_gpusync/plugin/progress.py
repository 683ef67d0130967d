"""Progress of a long run of steps, for the person at the terminal."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Protocol

    import pytest

    class Writer(Protocol):
        """The terminal writer of pytest."""

        hasmarkup: bool

        def write(self, msg: str, *, flush: bool = ...) -> None:
            """Write text, including control sequences."""


_SHOW_AFTER_S: Final = 2.0
"""Shorter runs show nothing."""
_INTERVAL_S: Final = 0.25


class Progress:
    """Shows steps after the cursor, without moving it, and removes them at the end."""

    def __init__(
        self,
        writer: Writer | None,
        steps: int | None,
        uncaptured: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Show progress on `writer` if it is a terminal that can show it.

        Args:
            writer: None to show nothing.
            steps: how many steps will run; None if unknown.
            uncaptured: a context in which output reaches the terminal.
        """
        self._uncaptured = uncaptured
        self._writer = writer if writer is not None and writer.hasmarkup else None
        self._of = "" if steps is None else f" of {steps}"
        self._next = time.monotonic() + _SHOW_AFTER_S
        self._is_shown = False

    def show(self, step: int) -> None:
        """Show that `step` steps have run."""
        if self._writer is None:
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _INTERVAL_S
        # Save and restore the cursor, so that pytest's line continues where it was.
        with self._uncaptured():
            self._writer.write(f"\x1b7 step {step}{self._of}\x1b[K\x1b8", flush=True)
        self._is_shown = True

    def close(self) -> None:
        """Remove what is shown."""
        if self._writer is not None and self._is_shown:
            with self._uncaptured():
                self._writer.write("\x1b[K", flush=True)
            self._is_shown = False


def progress_of(config: pytest.Config) -> Callable[[int | None], Progress]:
    """Return a function that makes the progress of a run, given its number of steps if that is known."""
    # A pytest-xdist worker has no reporter; --color=yes writes terminal markup into log files.
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    writer = config.get_terminal_writer() if getattr(reporter, "isatty", False) else None
    capture = config.pluginmanager.get_plugin("capturemanager")
    uncaptured = nullcontext if capture is None else capture.global_and_fixture_disabled
    return lambda steps: Progress(writer, steps, uncaptured)
