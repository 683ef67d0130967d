"""A simulated CUDA device: code that says ``cuda`` runs on the CPU, with a GPU's errors and a GPU's syncs.

A tensor of the device is an ordinary tensor over host memory whose device says ``cuda``; the operators' CUDA
kernels run the CPU's; all of torch above them is untouched. So whatever makes the host wait on a GPU happens here as
well, and is announced (see :mod:`.ledger`). Values are those of the CPU. Time is not simulated. Python processes that
the program starts have the device too, by whatever means it starts them.

It needs torch 2.11 to 2.15 on Linux (x86-64, aarch64), a CPU build or a CUDA build. Nothing is imported or changed
before it is switched on. Where there is a GPU it must be switched on before the process uses that, which it then finds
no more.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pytest_gpusync.sizes import parse_size

from .versions import SimulationUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .device import SimulatedDevice

__all__ = ["SimulationUnavailable", "is_on", "simulated_cuda", "switch_on"]

_lock = threading.RLock()
_users = 0
"""How many have asked for the device and not yet left it; :func:`switch_on` never leaves."""
_kept_on = False
_inherited = False
"""It is on because the process that started this one had it, and nobody here has asked for it yet."""
_device: SimulatedDevice | None = None


@contextmanager
def simulated_cuda(
    devices: int | None = None, *, memory: int | str | None = None, values: bool = True
) -> Iterator[None]:
    """Simulate `devices` CUDA devices within a ``with`` block; None: one, under torchrun one for each local process.

    `memory` is how much each of them has, in bytes or as text like "80 GiB"; None stands for as much as the host has,
    or for what it is where the device is on already.

    With ``values=False`` operators compute shapes only, and memory is counted and not touched: for models that do not
    fit the host. Syncs are those of a run with values. A program that needs a value, to branch or for a copy to the
    host, is stopped with an error that names the line. Numbers that are read only to be printed are ``?``.

    Blocks may be nested and repeated. When the outermost one ends, ``torch.cuda``, ``torch.Tensor`` and whatever
    else was replaced are as before, and tensors of the device refuse further work. The kernels stay registered with
    torch, and refuse: so does code that asks for ``cuda`` afterwards, with torch's own error. A device guard that does
    nothing stays too.

    Raises:
        SimulationUnavailable: the device cannot be simulated here, or is on with fewer devices or another memory.
        ValueError: `memory` is no size.
    """
    _enter(devices, memory, values)
    try:
        yield
    finally:
        _leave()


def switch_on(devices: int | None = None, *, memory: int | str | None = None, values: bool = True) -> None:
    """Simulate `devices` CUDA devices from now on to the end of the process; harmless when called again.

    The arguments are those of :func:`simulated_cuda`.

    Raises:
        SimulationUnavailable: the device cannot be simulated here, or is on with fewer devices or another memory.
        ValueError: `memory` is no size.
    """
    global _kept_on
    with _lock:
        already = _kept_on
        _enter(devices, memory, values)
        _kept_on = True
        if already:
            _leave()


def inherit(devices: int, memory: int | None, values: bool) -> None:
    """:func:`switch_on` for a process that was started by one with the device.

    Who asks for the device here before it is used may ask for another memory, or for none or all of its values.
    """
    global _inherited
    if not _users:
        switch_on(devices, memory=memory, values=values)
        _inherited = True


def is_on() -> bool:
    """Whether the simulated device is on in this process."""
    return _users > 0


def _enter(devices: int | None, memory: int | str | None, values: bool) -> None:
    global _users, _device
    nbytes = None if memory is None else parse_size(memory)
    if devices is None:
        devices = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    if not _users:
        from .versions import check_supported

        # It imports torch, with which the device may come by itself (see children.py).
        check_supported()
    with _lock:
        if not _users:
            if _device is None:
                from .device import SimulatedDevice

                _device = SimulatedDevice()
            _device.switch_on(devices, nbytes, values)
        elif _device is not None:
            _require(_device, devices, nbytes, values)
        _users += 1


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


def _leave() -> None:
    global _users
    with _lock:
        _users -= 1
        if not _users and _device is not None:
            _device.switch_off()
