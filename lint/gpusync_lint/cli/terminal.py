"""Writing to standard output and error, and progress on a terminal."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRESS_AFTER = 1.0
"""Seconds after which a terminal shows progress."""


def emit(stream: TextIO, text: str) -> None:
    """Write text to a stream; characters that its encoding lacks are written as escapes."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


@contextmanager
def progress(files: int) -> Iterator[Callable[[int], None]]:
    """Show progress on a terminal if a run takes more than a second; yields a function that counts finished files."""
    if not sys.stderr.isatty():
        yield lambda number: None
        return
    import threading

    shown = threading.Event()
    finished = 0

    def show() -> None:
        of = f"{finished:,} of " if finished else ""
        emit(sys.stderr, f"Linting {of}{files:,} file{'' if files == 1 else 's'} ...\x1b[K\r")
        shown.set()

    def done(number: int) -> None:
        nonlocal finished
        finished += number
        if number and shown.is_set():
            show()

    timer = threading.Timer(PROGRESS_AFTER, show)
    timer.daemon = True
    timer.start()
    try:
        yield done
    finally:
        timer.cancel()
        timer.join()
        if shown.is_set():
            emit(sys.stderr, "\x1b[K")
