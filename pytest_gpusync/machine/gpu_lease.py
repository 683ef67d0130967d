"""GPUs shared by pytest-xdist workers: each worker gets a GPU of its own as long as there are enough, and timed tests
have their GPU to themselves.

A worker sees every GPU that the caller made visible, its own first: ``cuda`` means that one, and a test that needs two
GPUs still finds two. The lease is a lock on a file, which the system releases when the process ends, however it ends.
Processes that a test forks, such as the workers of a DataLoader, do not keep it: they close the file.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOTE_SECONDS: Final = 30.0
"""After this time a wait is announced, with the processes that hold the GPU."""
LIMIT_SECONDS: Final = 3600.0
"""After this time a wait ends with an error. Tests hold a GPU while they run, which may take long."""
_POLL_SECONDS: Final = 0.05

_TAKEN: Final = "PYTEST_GPUSYNC_WORKER"
"""Set once a worker has put its GPU first. Processes it starts inherit both variables and must not reorder the list
again."""
_open_files: set[int] = set()
"""The lock files that this process has open."""


class LeaseUnavailable(RuntimeError):
    """The GPU cannot be leased; the message is one sentence that says why and what to do."""


def worker_number() -> int | None:
    """Return the number of this pytest-xdist worker, from 0; None if this process is not a worker."""
    found = re.fullmatch(r"gw(\d+)", os.environ.get("PYTEST_XDIST_WORKER", ""))
    return int(found[1]) if found else None


def own_gpu_first(visible: str | None, count: int, worker: int) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES with a worker's GPU first.

    Args:
        visible: the value set by the caller; None for all GPUs.
        count: number of GPUs of the machine.
        worker: number of the worker, from 0.
    """
    gpus = [gpu.strip() for gpu in visible.split(",")] if visible else [str(number) for number in range(count)]
    own = worker % len(gpus)
    return ",".join(gpus[own:] + gpus[:own])


def take_own_gpu() -> None:
    """Put this worker's GPU first for torch, which must not have queried GPUs yet. Does nothing
    outside pytest-xdist.
    """
    worker = worker_number()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if worker is None or _TAKEN in os.environ or (visible is not None and visible.strip() in ("", "-1")):
        return
    from pytest_gpusync.machine.devices import count_gpus

    count = count_gpus()
    if count:
        os.environ["CUDA_VISIBLE_DEVICES"] = own_gpu_first(visible, count, worker)
        os.environ[_TAKEN] = str(worker)


@contextmanager
def lease(
    gpu: str | None,
    *,
    exclusive: bool,
    announce: Callable[[str], None] = lambda message: None,
    note_after: float = NOTE_SECONDS,
    limit: float = LIMIT_SECONDS,
) -> Iterator[None]:
    """Hold a GPU while the block runs, shared or exclusively.

    Args:
        gpu: NVML's identifier of the GPU; None if there is nothing to hold.
        exclusive: nobody else may hold it at the same time.
        announce: called once with a sentence, if the wait takes longer than `note_after` seconds.
        note_after: seconds.
        limit: seconds after which waiting ends with an error.

    Raises:
        LeaseUnavailable: others held the GPU for longer than `limit`, or there is no safe folder for lock files.
    """
    if gpu is None:
        yield
        return
    path = _folder() / f"{re.sub(r'[^A-Za-z0-9-]', '_', gpu)}.lock"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise LeaseUnavailable(f"{path}: the lock file of the GPU cannot be opened ({error.strerror})") from None
    try:
        _open_files.add(file)
        _lock(file, gpu, exclusive, announce, note_after, limit)
        yield
    finally:
        if file in _open_files:  # not in a forked child, which has closed it
            _open_files.discard(file)
            os.close(file)


def _lock(
    file: int, gpu: str, exclusive: bool, announce: Callable[[str], None], note_after: float, limit: float
) -> None:
    import fcntl

    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    began, announced = time.monotonic(), False
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            return
        waited = time.monotonic() - began
        if waited >= limit:
            raise LeaseUnavailable(f"waited {limit:.0f} s for {gpu}, which is held by {_holders(file)}: end it")
        if waited >= note_after and not announced:
            announced = True
            announce(f"waiting for {gpu}, which is held by {_holders(file)}")
        time.sleep(_POLL_SECONDS)


def _folder() -> Path:
    """Return this user's folder for lock files; others can neither create nor hold locks in it.

    Raises:
        LeaseUnavailable: another user has taken its name, or it cannot be made.
    """
    folder = Path(tempfile.gettempdir()) / f"pytest-gpusync-{os.getuid()}"
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise LeaseUnavailable(f"{folder}: the folder for lock files cannot be made ({error.strerror})") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise LeaseUnavailable(
            f"{folder} is not a folder of this user alone, so the lock files of GPUs are not safe in it: "
            "remove it, or set TMPDIR to another folder"
        )
    return folder


def _holders(file: int) -> str:
    """Return the other processes that hold a lock on an open file, with their commands."""
    wanted = os.fstat(file)
    found = []
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    about = descriptor.stat()
                    if (about.st_dev, about.st_ino) != (wanted.st_dev, wanted.st_ino):
                        continue
                    if "FLOCK" in (process / "fdinfo" / descriptor.name).read_text():
                        command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                        found.append(f"process {process.name} ({command.strip()[:80]})")
                        break
    return ", ".join(found) or "a process of another user or container"


def _close_in_forked_child() -> None:
    """Close the inherited lock files: the parent's lock would outlive it in the child."""
    while _open_files:
        with suppress(OSError):
            os.close(_open_files.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_forked_child)
