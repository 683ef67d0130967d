"""Distribution of tasks to forked processes.

Workers inherit the memory of the parent, and take the next task when they have finished one. If a worker dies (a crash
in a C extension, a machine out of memory), the others continue, and the task that it was working on is reported.
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
"""Whether processes are forked; `spawned` serves other systems. On macOS, system libraries do not work after a fork."""

MAX_TASKS = 4096
"""The maximum number of tasks of a call: their numbers have to fit into a pipe."""


@dataclass(frozen=True, slots=True)
class Died:
    """The result of a task whose worker died."""

    how: str
    """The way that it ended: `signal 11`."""


def fork_each(
    count: int, work: Callable[[int], Result], jobs: int, done: Callable[[], None] = lambda: None
) -> list[Result | Died]:
    """Run tasks in forked workers. An interrupt ends the workers and is raised again.

    Args:
        count: the number of tasks, at most `MAX_TASKS`.
        work: is called in a worker with the number of a task. It must not raise, and its result is pickled.
        jobs: the number of workers.
        done: is called in the parent for each finished task.

    Returns:
        The results in the order of the tasks.
    """
    results: dict[int, Result | Died] = {}
    while len(results) < count:  # if all workers died, tasks remain
        waiting = [task for task in range(count) if task not in results]
        pool = _Pool(waiting, work, min(jobs, len(waiting)))
        try:
            for task, result in pool.results():
                results[task] = result
                done()
        finally:
            pool.end()
    return [results[task] for task in range(count)]


_NUMBER = struct.Struct("<q")


class _Pool(Generic[Result]):
    """Workers that read the numbers of tasks from a common pipe, and write results to pipes of their own."""

    def __init__(self, tasks: Sequence[int], work: Callable[[int], Result], workers: int) -> None:
        self._work = work
        self._current = mmap.mmap(-1, workers * _NUMBER.size)
        """The current task of each worker; -1 for none. Shared memory."""
        self._children: dict[int, tuple[int, int]] = {}
        """By the reading end of the pipe of a worker, its process and its number."""
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
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # an interrupt here would lose a worker
        child = os.fork()
        if child:
            self._children[reading] = (child, worker)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(writing)
            return
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the workers
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
        """Yield each task when it is finished, with its result, until all workers have ended."""
        pending: dict[int, bytearray] = {end: bytearray() for end in self._children}
        with selectors.DefaultSelector() as selector:
            for end in pending:
                selector.register(end, selectors.EVENT_READ)
            while pending:
                for key, _ in selector.select():
                    data = os.read(key.fd, 1 << 20)
                    if data:
                        pending[key.fd] += data
                        yield from _complete(pending[key.fd])
                        continue
                    selector.unregister(key.fd)
                    del pending[key.fd]
                    yield from self._ended(key.fd)

    def _ended(self, end: int) -> Iterator[tuple[int, Died]]:
        child, worker = self._children.pop(end)
        os.close(end)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        task = _NUMBER.unpack_from(self._current, worker * _NUMBER.size)[0]
        if code and task >= 0:
            yield task, Died(f"signal {-code}" if code < 0 else f"exit code {code}")

    def _begin(self, worker: int, task: int) -> None:
        _NUMBER.pack_into(self._current, worker * _NUMBER.size, task)

    def end(self) -> None:
        """End the workers that are still running."""
        for child, _ in self._children.values():
            os.kill(child, signal.SIGKILL)
        for end, (child, _) in self._children.items():
            os.waitpid(child, 0)
            os.close(end)
        self._children.clear()
        os.close(self._queue)


def _complete(data: bytearray) -> Iterator[tuple[int, Any]]:
    """The tasks whose results are complete, with the results. They are removed from `data`."""
    while len(data) >= _NUMBER.size:
        size = _NUMBER.size + _NUMBER.unpack_from(data)[0]
        if len(data) < size:
            return
        yield pickle.loads(bytes(data[_NUMBER.size : size]))
        del data[:size]
