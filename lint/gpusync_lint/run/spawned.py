"""Distribution of tasks to new processes, where processes cannot be forked: on Windows and macOS.

Each worker is a new Python, which gets the work as a pickle and then the number of one task after the other. It imports
only this package: not the program that started the linter, and nothing from the working directory.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
from collections import deque
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar

from gpusync_lint.run.parallel import Died

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

_NUMBER = struct.Struct("<q")

_START = "import sys; sys.path[:] = {path!r}; from gpusync_lint.run.spawned import serve; serve()"
"""The program of a worker. `-I` keeps the working directory, which contains code that is only to be linted, from being
searched for modules before the path is set."""


def spawn_each(
    count: int, work: Callable[[int], Result], jobs: int, done: Callable[[], None] = lambda: None
) -> list[Result | Died]:
    """Run tasks in new processes. An interrupt ends the workers and is raised again.

    Args:
        count: the number of tasks.
        work: is pickled, and called in a worker with the number of a task. It must not raise; its result is pickled.
        jobs: the number of workers.
        done: is called in this thread for each finished task.

    Returns:
        The results in the order of the tasks.

    Raises:
        NoWorkersError: no process can be started.
    """
    pool: _Pool[Result] = _Pool(count, pickle.dumps(work, pickle.HIGHEST_PROTOCOL))
    results: dict[int, Result | Died] = {}
    try:
        pool.start(min(jobs, count))
        while len(results) < count:
            try:
                task, result = pool.finished.get(timeout=0.2)  # without one, Ctrl-C has no effect on Windows
            except queue.Empty:
                continue
            if isinstance(result, NoWorkersError):
                raise result
            results[task] = result
            done()
    finally:
        pool.end()
    return [results[task] for task in range(count)]


class NoWorkersError(OSError):
    """No worker can be started."""


class _Pool(Generic[Result]):
    """Workers, each with a thread that hands it tasks and waits for results."""

    def __init__(self, count: int, work: bytes) -> None:
        self._tasks = deque(range(count))
        self._work = work
        self._workers: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._ended = False
        self.finished: queue.SimpleQueue[tuple[int, Result | Died | NoWorkersError]] = queue.SimpleQueue()
        """The tasks that are finished, with their results."""

    def start(self, workers: int) -> None:
        for _ in range(workers):
            thread = threading.Thread(target=self._feed, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _feed(self) -> None:
        """Hand tasks to a worker, and to another one if it dies."""
        worker: subprocess.Popen[bytes] | None = None
        try:
            while not self._ended:
                try:
                    task = self._tasks.popleft()
                except IndexError:
                    return
                if worker is None:
                    worker = self._started()
                result = _ask(worker, task)
                if isinstance(result, Died):
                    worker = None
                self.finished.put((task, result))
        except OSError as error:
            self.finished.put((-1, NoWorkersError(str(error))))

    def _started(self) -> subprocess.Popen[bytes]:
        program = _START.format(path=search_path())
        options = ["-I", "-X", "utf8"] if sys.flags.utf8_mode else ["-I"]
        command = [sys.executable, *options, "-c", program]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with self._lock:
            self._workers.append(worker)
            if self._ended:
                worker.kill()
        with contextlib.suppress(OSError):  # it died at once; that is noticed with its first task
            assert worker.stdin is not None
            send(worker.stdin, self._work)
        return worker

    def end(self) -> None:
        """End the workers."""
        with self._lock:
            self._ended = True
            workers = list(self._workers)
        for worker in workers:
            worker.kill()
            worker.wait()
        for thread in self._threads:
            thread.join()
        for worker in workers:
            for stream in (worker.stdin, worker.stdout):
                with contextlib.suppress(OSError):
                    if stream is not None:
                        stream.close()


def search_path() -> list[str]:
    """The search path of this process without the working directory, which `python -m` puts first, and with our own."""
    entries = [os.path.abspath(entry) for entry in sys.path if entry]
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return [*(entry for entry in entries if entry not in (os.getcwd(), own)), own]


def _ask(worker: subprocess.Popen[bytes], task: int) -> Any:
    """The result of a task; `Died` if the worker dies."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write(_NUMBER.pack(task))
        worker.stdin.flush()
        answer = receive(worker.stdout)
    except OSError:
        answer = None
    if answer is not None:
        return pickle.loads(answer)
    code = worker.wait()
    return Died(f"signal {-code}" if code < 0 else f"exit code {code}")


def send(stream: IO[bytes], data: bytes) -> None:
    """Write data with its length. Raises OSError."""
    stream.write(_NUMBER.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """What `send` has sent; None if the stream ends before."""
    head = stream.read(_NUMBER.size)
    if len(head) < _NUMBER.size:
        return None
    size = _NUMBER.unpack(head)[0]
    data = stream.read(size)
    return data if len(data) == size else None


def serve() -> None:
    """Do tasks until there are no more. This is the main program of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the workers
    tasks = os.fdopen(os.dup(0), "rb")
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed must not be taken for a result
    data = receive(tasks)
    if data is None:
        return
    work = pickle.loads(data)
    while len(word := tasks.read(_NUMBER.size)) == _NUMBER.size:
        result = work(_NUMBER.unpack(word)[0])
        send(results, pickle.dumps(result, pickle.HIGHEST_PROTOCOL))
