"""Workers of pytest-xdist share the GPUs: each has one of its own as far as they go, and where times are taken the
others keep off.

A worker sees all the GPUs that the caller made visible, its own first: what says ``cuda`` runs there, and a test of two
GPUs still finds two. The lease is a lock on a file, which the system gives up with the process, however that ends.
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
"""Set once a worker has put its GPU first: what it starts inherits both, and must not turn the list again."""


def worker_number() -> int | None:
    """Return which worker of pytest-xdist this process is, from 0; None if it is none."""
    found = re.fullmatch(r"gw(\d+)", os.environ.get("PYTEST_XDIST_WORKER", ""))
    return int(found[1]) if found else None


def own_gpu_first(visible: str | None, count: int, worker: int) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES with the GPU of a worker first.

    Args:
        visible: the value as the caller set it; None: all GPUs.
        count: GPUs of the machine.
        worker: number of the worker, from 0.
    """
    gpus = [gpu.strip() for gpu in visible.split(",")] if visible else [str(number) for number in range(count)]
    own = worker % len(gpus)
    return ",".join(gpus[own:] + gpus[:own])


def take_own_gpu() -> None:
    """Put this worker's GPU first for torch, which must not have asked for GPUs yet. Elsewhere nothing happens."""
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
    """Hold a GPU while the block runs: with others, or alone where `exclusive`. Waits for as long as it takes.

    Args:
        gpu: NVML's identifier of the GPU; None: there is nothing to hold.
        exclusive: nobody else holds it meanwhile.
    """
    if gpu is None:
        yield
        return
    import fcntl

    # For reading: the file may be another user's, and a lock needs no more.
    name = f"pytest-gpusync-{re.sub(r'[^A-Za-z0-9-]', '_', gpu)}.lock"
    file = os.open(os.path.join(tempfile.gettempdir(), name), os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)
