"""``gpusync lint --watch``: lints again whenever a file changes.

Files are compared by size and time, without a library that subscribes to the file system: that takes some milliseconds
for each look at a project, works on network drives, and adds nothing to the environment of a commit hook.
"""

from __future__ import annotations

import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, NoReturn

from gpusync_lint.cli.terminal import emit

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL = 0.3
"""Seconds between two looks at the files, at least; in a large project as long as five looks take."""

_CLEAR = "\x1b[2J\x1b[3J\x1b[H"


def watch(lint: Callable[[], int], watched: Callable[[], frozenset[tuple[str, int, int]]]) -> NoReturn:
    """Lint, and lint again after each change, until Ctrl-C raises KeyboardInterrupt.

    Args:
        lint: reports once.
        watched: returns what the report depends on. It is called before the files are read, so that no change is lost.
    """
    before = watched()
    while True:
        if sys.stdout.isatty():
            emit(sys.stdout, _CLEAR)
        lint()
        files = f"{len(before):,} file{'' if len(before) == 1 else 's'}"
        emit(sys.stderr, f"[{datetime.now().astimezone():%H:%M:%S}] Watching {files}; Ctrl-C ends.\n")
        before = _changed(before, watched)


def _changed(
    before: frozenset[tuple[str, int, int]], watched: Callable[[], frozenset[tuple[str, int, int]]]
) -> frozenset[tuple[str, int, int]]:
    """Wait until there is a difference, and return what there is now."""
    wait = INTERVAL
    while True:
        time.sleep(wait)
        start = time.monotonic()
        now = watched()
        if now != before:
            return now
        wait = max(INTERVAL, 5 * (time.monotonic() - start))
