"""Work shared out among forked processes.

The workers see what the parent has read, and take the next task when they are done with one. A worker that dies (a
crash in a C extension, a machine short of memory) takes no other down: what it was at is known, and reported.
"""

from __future__ import annotations

import mmap
import os
import pickle
import selectors
import signal
import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Result = TypeVar("Result")

CAN_FORK = hasattr(os, "fork") and sys.platform != "darwin"
"""Whether there can be workers; on macOS the system's libraries do not survive a fork."""

MAX_TASKS = 4096
"""Tasks that can be shared out at once: what a pipe holds."""

_NUMBER = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Died:
    """Stands for the result of a task whose worker died."""

    how: str
    """How it ended: `signal 11`."""


def jobs_available() -> int:
    """As many processes as there are processors for this one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def fork_each(
    count: int, work: Callable[[int], Result], jobs: int, done: Callable[[], None] = lambda: None
) -> list[Result | Died]:
    """Do the tasks 0 to `count` - 1, at most `MAX_TASKS`, in `jobs` forked workers; results in the order of the tasks.

    `work` runs in a worker, and what it gives back is pickled; it must not raise. `done` is called in the parent for
    each task that is finished. An interrupt ends the workers and is passed on.
    """
    results: dict[int, Result | Died] = {}
    while len(results) < count:  # a worker that died may have left tasks that nobody took
        waiting = [task for task in range(count) if task not in results]
        pool = _Pool(waiting, work, min(jobs, len(waiting)))
        try:
            for task, result in pool.results():
                results[task] = result
                done()
        finally:
            pool.end()
    return [results[task] for task in range(count)]


class _Pool(Generic[Result]):
    """Workers that read the numbers of their tasks from one pipe and write results each to their own."""

    def __init__(self, tasks: Sequence[int], work: Callable[[int], Result], workers: int) -> None:
        self._work = work
        self._at = mmap.mmap(-1, workers * _NUMBER.size)
        """The task that each worker is at; -1 for none. Shared with the workers."""
        self._children: dict[int, tuple[int, int]] = {}
        """By the end of the pipe that a worker writes to: its process, and its number."""
        self._queue, filling = os.pipe()
        os.write(filling, b"".join(map(_NUMBER.pack, tasks)))
        os.close(filling)
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            for worker in range(workers):
                self._start(worker)
        except BaseException:
            self.end()
            raise

    def _start(self, worker: int) -> None:
        reading, writing = os.pipe()
        self._begin(worker, -1)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # no worker may be started and forgotten
        child = os.fork()
        if child:
            self._children[reading] = (child, worker)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(writing)
            return
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(reading)
            for other in self._children:
                os.close(other)
            self._serve(writing, worker)
            code = 0
        finally:
            os._exit(code)

    def _serve(self, writing: int, worker: int) -> None:
        with os.fdopen(writing, "wb") as out:
            while word := os.read(self._queue, _NUMBER.size):
                task = _NUMBER.unpack(word)[0]
                self._begin(worker, task)
                data = pickle.dumps((task, self._work(task)), pickle.HIGHEST_PROTOCOL)
                out.write(_NUMBER.pack(len(data)) + data)
                out.flush()
                self._begin(worker, -1)

    def results(self) -> Iterator[tuple[int, Result | Died]]:
        """Each task that is finished, as it is, until all workers have ended."""
        pending: dict[int, bytearray] = {end: bytearray() for end in self._children}
        with selectors.DefaultSelector() as selector:
            for end in pending:
                selector.register(end, selectors.EVENT_READ)
            while pending:
                for key, _ in selector.select():
                    data = os.read(key.fd, 1 << 20)
                    if data:
                        pending[key.fd] += data
                        yield from _whole(pending[key.fd])
                        continue
                    selector.unregister(key.fd)
                    del pending[key.fd]
                    yield from self._ended(key.fd)

    def _ended(self, end: int) -> Iterator[tuple[int, Died]]:
        child, worker = self._children.pop(end)
        os.close(end)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        task = _NUMBER.unpack_from(self._at, worker * _NUMBER.size)[0]
        if code and task >= 0:
            yield task, Died(f"signal {-code}" if code < 0 else f"exit code {code}")

    def _begin(self, worker: int, task: int) -> None:
        _NUMBER.pack_into(self._at, worker * _NUMBER.size, task)

    def end(self) -> None:
        """End what still runs."""
        for child, _ in self._children.values():
            os.kill(child, signal.SIGKILL)
        for end, (child, _) in self._children.items():
            os.waitpid(child, 0)
            os.close(end)
        self._children.clear()
        os.close(self._queue)


def _whole(data: bytearray) -> Iterator[tuple[int, Any]]:
    """The results that have arrived whole; they are taken out of `data`."""
    while len(data) >= _NUMBER.size:
        size = _NUMBER.size + _NUMBER.unpack_from(data)[0]
        if len(data) < size:
            return
        yield pickle.loads(bytes(data[_NUMBER.size : size]))
        del data[:size]
