"""State shared by the parts of the simulated device: whether it may be used, the number of devices, the current one."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class _PerThread(threading.local):
    device = 0
    in_backward = False


class _Process:
    """State of this process."""

    on = False
    blocked = True
    """True until the first use, while the device is off, in a child forked after its use, and while the next use is
    watched. Kernels check this flag."""
    bad_fork = False
    devices = 1
    values = True
    """True if operators compute values, otherwise only shapes."""
    tracking = False
    """True while the accesses of operators to device memory are followed, to find races."""
    set_guard_device: Callable[[int], None] | None = None
    """Sets the calling thread's current device in C++; None before there is a device guard."""
    changed: Callable[[], None] = staticmethod(lambda: None)
    """Called when something may have changed that decides whether kernels may bypass Python."""
    memory: int | None = None
    """Bytes of each device; None for as many as the host has."""
    use_watcher: Callable[[int], bool] | None = None
    """See :func:`watch_use`."""


process = _Process()
_thread = _PerThread()


def current_device() -> int:
    """Return the index of the calling thread's current device."""
    return _thread.device


def in_backward() -> bool:
    """Return whether the calling thread is in a backward pass, which on a GPU runs on a thread of its own."""
    return _thread.in_backward


def enter_backward(inside: bool = True) -> bool:
    """Set whether the calling thread is in a backward pass; return the previous value."""
    before, _thread.in_backward = _thread.in_backward, inside
    return before


def set_device(index: int) -> None:
    """Make `index` the calling thread's current device; a negative index changes nothing, as in torch.

    Raises:
        RuntimeError: there is no such device.
    """
    if index < 0:
        return
    check_ordinal(index)
    _thread.device = index
    if process.set_guard_device is not None:
        process.set_guard_device(index)


def exchange_device(index: int) -> int:
    """Make `index` the current device and return the previous one; a negative index changes nothing and returns -1."""
    if index < 0:
        return -1
    previous = _thread.device
    set_device(index)
    return previous


def check_ordinal(index: int) -> None:
    """Raise CUDA's error, with the options that simulate more devices, if there is no device `index`."""
    if index >= process.devices:
        raise RuntimeError(f"CUDA error: invalid device ordinal: {no_such_device(index)}")


def no_such_device(index: int) -> str:
    """Return why there is no device `index`, and the options that simulate it."""
    simulated = f"{process.devices} device" if process.devices == 1 else f"{process.devices} devices"
    return (
        f"cuda:{index} does not exist, the simulated device is on with {simulated}; for more use `gpusync trace "
        f"--devices {index + 1}`, `pytest --gpu-simulated-devices={index + 1}` or `simulated_cuda(devices={index + 1})`"
    )


def device_index(device: torch.device | int | str | None) -> int:
    """Return the ordinal that `device` means for the calling thread."""
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device if device >= 0 else current_device()
    device = torch.device(device)
    return device.index if device.index is not None else current_device()


def ensure_usable() -> None:
    """Initialize CUDA on first use, and report a use that is watched; called by kernels that find themselves blocked.

    Raises:
        RuntimeError: the process was forked after CUDA had been used.
        Exception: the device is off; the error is the one that torch raises on this machine.
    """
    torch.cuda._lazy_init()
    if not process.on:
        raise RuntimeError("the simulated device has been switched off: its tensors can no longer be used")
    watcher = process.use_watcher
    if watcher is not None and not watcher(threading.get_ident()):
        return
    process.blocked = False
    process.changed()


def watch_use(watcher: Callable[[int], bool] | None) -> None:
    """Call `watcher` when the device is used next, with the thread that uses it, until it returns True.

    Until then every kernel enters Python, where it finds the device blocked. None stops an earlier watcher.
    """
    process.use_watcher = watcher
    if watcher is not None:
        process.blocked = True
        process.changed()


def _after_fork_in_child() -> None:
    if process.on and torch.cuda._initialized:
        process.bad_fork = process.blocked = True
        process.changed()


os.register_at_fork(after_in_child=_after_fork_in_child)
