"""Whether the simulated device is on in this process, and for how long."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import AbstractContextManager, ContextDecorator
from typing import TYPE_CHECKING, Final

from pytest_gpusync.machine.deferred_signals import finish, with_signals_deferred
from pytest_gpusync.model.sizes import parse_size
from pytest_gpusync.simulated.base.versions import SimulationUnavailable, check_supported

if TYPE_CHECKING:
    from pytest_gpusync.simulated.device import SimulatedDevice

_lock = threading.RLock()
_users: set[object] = set()
"""The open requests for the device. A set, so that a request that was interrupted can be closed again."""
_UNTIL_EXIT: Final = "switch_on"
"""The request of :func:`switch_on`, which is never closed."""
_inherited = False
"""True if the device is on because the parent process had it, and nobody in this process has requested it yet."""
_device: SimulatedDevice | None = None


class simulated_cuda(AbstractContextManager[None], ContextDecorator):  # noqa: N801 (used like a function)
    """Simulate `devices` CUDA devices within a ``with`` block; None means one, or under torchrun one per local process.

    `memory` is the memory of each device, in bytes or as text such as "80 GiB". None means as much as the host has, or
    the current size if the device is on already.

    With ``values=False`` operators compute only shapes, and memory is counted but not touched: for models that do not
    fit the host. Syncs are those of a run with values. A program that needs a value, to branch or for a copy to the
    host, is stopped with an error that names the line. Numbers that are read only to be printed are ``?``.

    Blocks may be nested and repeated. When the outermost one ends, ``torch.cuda``, ``torch.Tensor`` and everything else
    that was replaced is restored, and tensors of the device refuse further work. The kernels stay registered with
    torch, and refuse: code that uses ``cuda`` afterwards gets torch's own error. A device guard that does nothing stays
    too. That holds also if a signal handler raises meanwhile, as that of Ctrl-C does.

    Raises:
        SimulationUnavailable: the device cannot be simulated here, or is on with fewer devices or another amount of
            memory.
        ValueError: `memory` is not a size, or 0.
    """

    def __init__(self, devices: int | None = None, *, memory: int | str | None = None, values: bool = True) -> None:
        self._settings = devices, memory, values
        self._requests: list[object] = []

    def _recreate_cm(self) -> simulated_cuda:
        devices, memory, values = self._settings
        return simulated_cuda(devices, memory=memory, values=values)

    def __enter__(self) -> None:
        request = object()
        self._requests.append(request)
        try:
            _enter(request, *self._settings)
        except BaseException:
            self._leave()
            raise

    def __exit__(self, *exc: object) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._requests:
            request = self._requests[-1]
            finish(lambda: _leave(request))
            self._requests.pop()

    def __del__(self) -> None:
        # An interrupt at the very start of __exit__(), which nothing can defer, left the block open.
        while getattr(self, "_requests", None) and not sys.is_finalizing():
            self._leave()


def switch_on(devices: int | None = None, *, memory: int | str | None = None, values: bool = True) -> None:
    """Simulate `devices` CUDA devices from now on until the process ends. Does nothing when called again.

    The arguments are those of :func:`simulated_cuda`.

    Raises:
        SimulationUnavailable: the device cannot be simulated here, or is on with fewer devices or another amount of
            memory.
        ValueError: `memory` is not a size, or 0.
    """
    _enter(_UNTIL_EXIT, devices, memory, values)


def inherit(devices: int, memory: int | None, values: bool) -> None:
    """:func:`switch_on` for a process whose parent has the device.

    Code that requests the device in this process before it is used may choose another memory size, or another `values`.
    """
    global _inherited
    if not _users:
        switch_on(devices, memory=memory, values=values)
        _inherited = True


def is_on() -> bool:
    """Return whether the simulated device is on in this process."""
    return bool(_users)


def parse_memory(size: int | str) -> int:
    """Return the bytes of memory that a device is to have.

    Raises:
        ValueError: `size` is not a size, or 0.
    """
    nbytes = parse_size(size)
    if not nbytes:
        raise ValueError(f'a device needs memory: give a size such as "80 GiB", not {size!r}')
    return nbytes


def _enter(request: object, devices: int | None, memory: int | str | None, values: bool) -> None:
    global _device
    nbytes = None if memory is None else parse_memory(memory)
    if devices is None:
        devices = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    if not _users:
        # This imports torch, which may switch the device on by itself (see startup/).
        check_supported()
    with _lock:
        if _device is None:
            from pytest_gpusync.simulated.device import SimulatedDevice

            _device = SimulatedDevice(inherit)
    with_signals_deferred(lambda: _request(request, devices, nbytes, values))


def _request(request: object, devices: int, nbytes: int | None, values: bool) -> None:
    assert _device is not None
    with _lock:
        if not _users:
            _device.switch_on(devices, nbytes, values)
        else:
            _require(_device, devices, nbytes, values)
        _users.add(request)


def _require(device: SimulatedDevice, devices: int, memory: int | None, values: bool) -> None:
    global _inherited
    import torch

    try:
        device.require(devices, memory, values)
    except SimulationUnavailable:
        if not _inherited or torch.cuda.is_initialized():
            raise
        device.switch_off()
        device.switch_on(devices, memory, values)
    _inherited = False


def _forget_lock() -> None:
    global _lock
    _lock = threading.RLock()  # the thread that held it does not exist in a forked child


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


def _leave(request: object) -> None:
    """Close a request. Does nothing if it is closed already; continues where an interrupted call ended."""
    with _lock:
        _users.discard(request)
        if not _users and _device is not None:
            _device.switch_off()
