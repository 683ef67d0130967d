"""The processes that analyze, so that the server answers while they work and outlives their crashes."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from gpusync_lint.run.spawned import receive, search_path, send
from gpusync_lint.server.analysis import Answer, FolderAnalysis

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_START = "import sys; sys.path[:] = {path!r}; from gpusync_lint.server.worker import serve; serve()"
_STACK = 64 * 2**20
"""The size of the stack of the thread that analyzes, in bytes: code is followed recursively."""


class WorkerDiedError(Exception):
    """The process ended during an analysis. The message is one line that says how."""


class Worker:
    """A process that analyzes folders. It is started when it is first needed, and again after it has died."""

    def __init__(self, observed: Sequence[str]) -> None:
        self._observed = tuple(observed)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, call: str, folder: Path, named: str | None, *arguments: object) -> Answer | None:
        """Call a method of `FolderAnalysis`, and wait for its answer.

        Raises:
            WorkerDiedError: the process died, or could not be started.
        """
        data = pickle.dumps((call, folder, named, self._observed, arguments), pickle.HIGHEST_PROTOCOL)
        with self._lock:
            if self._closed:
                raise WorkerDiedError("the server is ending")
            try:
                process = self._started()
                assert process.stdin is not None
                assert process.stdout is not None
                send(process.stdin, data)
                answer = receive(process.stdout)
            except OSError:
                answer = None
            if answer is None:
                raise WorkerDiedError(self._ended())
        result: Answer | Failure | None = pickle.loads(answer)
        if isinstance(result, Failure):
            raise WorkerDiedError(result.message)
        return result

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            program = _START.format(path=search_path())
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        return self._process

    def _ended(self) -> str:
        process, self._process = self._process, None
        if process is None:
            return "the process that analyzes could not be started"
        self._stop(process)
        code = process.returncode
        return f"the process that analyzes died ({f'signal {-code}' if code < 0 else f'exit code {code}'})"

    def close(self) -> None:
        """End the process, also during an analysis."""
        self._closed = True
        process, self._process = self._process, None
        if process is not None:
            self._stop(process)

    @staticmethod
    def _stop(process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(OSError):
            process.kill()
        process.wait()


class Failure:
    """An exception of an analysis, in place of its answer."""

    def __init__(self, message: str) -> None:
        self.message = message


def serve() -> None:
    """Answer requests until there are no more. This is the main program of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends it
    threading.stack_size(_STACK)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()


def _serve() -> None:
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed must not be taken for an answer
    folders: dict[tuple[Path, str | None], FolderAnalysis] = {}
    while (data := receive(requests)) is not None:
        call, folder, named, observed, arguments = pickle.loads(data)
        answer: Answer | Failure | None
        try:
            analysis = folders.get((folder, named))
            if analysis is None:
                analysis = folders[folder, named] = FolderAnalysis(folder, named, observed)
            answer = getattr(analysis, call)(*arguments)
        except Exception:
            import traceback

            folders.pop((folder, named), None)
            answer = Failure(f"internal error, a bug in gpusync:\n{traceback.format_exc()}")
        try:
            send(answers, pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
        except OSError:  # the server has ended
            return
