"""The workers of `parallel`: forked processes that take tasks from one pipe and hand back what they made of them."""

from __future__ import annotations

import mmap
import os
import pickle
import selectors
import signal
import struct
import sys
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpusync_lint.run.parallel import Died

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Result = TypeVar("Result")

_NUMBER = struct.Struct("<q")


class Pool(Generic[Result]):
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
