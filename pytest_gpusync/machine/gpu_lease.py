"""GPUs shared by pytest-xdist workers: each worker gets a GPU of its own as long as there are enough, and timed tests
have their GPU to themselves.

A worker sees every GPU that the caller made visible, its own first: ``cuda`` means that one, and a test that needs two
GPUs still finds two. The lease is a lock on a file, which the system releases when the process ends, however it ends.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_TAKEN: Final = "PYTEST_GPUSYNC_WORKER"
"""Set once a worker has put its GPU first. Processes it starts inherit both variables and must not reorder the list
again."""


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
def lease(gpu: str | None, *, exclusive: bool) -> Iterator[None]:
    """Hold a GPU while the block runs, shared or exclusively. Waits without a time limit.

    Args:
        gpu: NVML's identifier of the GPU; None if there is nothing to hold.
        exclusive: nobody else may hold it at the same time.
    """
    if gpu is None:
        yield
        return
    import fcntl

    # Opened for reading: the file may belong to another user, and a lock needs no more.
    name = f"pytest-gpusync-{re.sub(r'[^A-Za-z0-9-]', '_', gpu)}.lock"
    file = os.open(os.path.join(tempfile.gettempdir(), name), os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)
