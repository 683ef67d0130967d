"""Work shared out among forked processes.

The workers see what the parent has read, and take the next task when they are done with one. A worker that dies (a
crash in a C extension, a machine short of memory) takes no other down: what it was at is known, and reported.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

CAN_FORK = hasattr(os, "fork") and sys.platform != "darwin"
"""Whether there can be workers; on macOS the system's libraries do not survive a fork."""

MAX_TASKS = 4096
"""Tasks that can be shared out at once: what a pipe holds."""


@dataclass(frozen=True, slots=True)
class Died:
    """Stands for the result of a task whose worker died."""

    how: str
    """How it ended: `signal 11`."""


def fork_each(
    count: int, work: Callable[[int], Result], jobs: int, done: Callable[[], None] = lambda: None
) -> list[Result | Died]:
    """Do the tasks 0 to `count` - 1, at most `MAX_TASKS`, in `jobs` forked workers; results in the order of the tasks.

    `work` runs in a worker, and what it gives back is pickled; it must not raise. `done` is called in the parent for
    each task that is finished. An interrupt ends the workers and is passed on.
    """
    from gpusync_lint.run.workers import Pool  # loads much that a run of a few files does without

    results: dict[int, Result | Died] = {}
    while len(results) < count:  # a worker that died may have left tasks that nobody took
        waiting = [task for task in range(count) if task not in results]
        pool = Pool(waiting, work, min(jobs, len(waiting)))
        try:
            for task, result in pool.results():
                results[task] = result
                done()
        finally:
            pool.end()
    return [results[task] for task in range(count)]
