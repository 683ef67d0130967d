"""Gives torch a device guard for CUDA that does nothing, so that C++ code can switch between simulated devices.

C++ queries the *device guard* of a device type for the current device, streams and events. A CPU build has none for
CUDA; that of a CUDA build calls the driver. torch has a no-op guard, and one function that installs it,
``torch._C._ensureCUDADeviceGuardSet`` (made for fake tensors), which acts only if a guard is registered and reports no
device. A CUDA build without a GPU is in that state. A CPU build is brought into it by temporarily registering the guard
of lazy tensors for CUDA, which reports no device as long as no lazy backend is loaded.

Once simulated tensors exist the guard stays, even while the device is off: autograd queries it for every such tensor
that is still alive, and without a guard the process aborts. The guard does nothing.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from pytest_gpusync.simulated.base import state
from pytest_gpusync.simulated.base.native import pointer_at, symbol
from pytest_gpusync.simulated.base.versions import INSTALL, SimulationUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
"""``c10::impl::device_guard_impl_registry``: one pointer per ``c10::DeviceType``."""
_CUDA, _LAZY = 1, 17
"""Values of ``c10::DeviceType``, which are fixed because they are serialized."""
_WIDTH = 8
_NO_OP = b"N3c104impl13FakeGuardImplILNS_10DeviceTypeE1EEE"
"""The mangled name of torch's no-op guard for CUDA."""
_GET_DEVICE, _SET_DEVICE = 2, 3
"""Entries of the virtual table of ``c10::impl::DeviceGuardImplInterface``."""


class DeviceGuard:
    """Installs the no-op guard for CUDA; restores the previous one if the device could not be switched on."""

    def __init__(self) -> None:
        self._previous: int | None = None
        self._installed = False

    def install(self) -> None:
        """Install the no-op guard, if it is not installed yet.

        Raises:
            SimulationUnavailable: torch did not install it; nothing was changed.
        """
        if self._installed:
            return
        registry = symbol("libc10.so", _REGISTRY)
        cuda = pointer_at(registry + _CUDA * _WIDTH)
        lazy = pointer_at(registry + _LAZY * _WIDTH)
        self._previous = cuda.value
        if cuda.value and _class_name(cuda.value) == _NO_OP:
            # torch has installed it itself, as its compiler does.
            self._installed = True
            state.process.set_guard_device = _setter(cuda.value)
            return
        if not cuda.value:
            if not lazy.value:
                raise SimulationUnavailable(
                    f"torch {torch.__version__} was built without lazy tensors, which the simulated device needs: "
                    "install torch from PyPI"
                )
            cuda.value = lazy.value
        lent = cuda.value
        try:
            torch._C._ensureCUDADeviceGuardSet()
        except BaseException:
            cuda.value = self._previous
            raise
        if cuda.value == lent:
            cuda.value = self._previous
            raise SimulationUnavailable(
                "torch did not install its no-op device guard, as where a GPU was found or a lazy backend is in use: "
                "switch the simulated device on before that, or hide the GPU with CUDA_VISIBLE_DEVICES= (empty)"
            )
        self._installed = True
        state.process.set_guard_device = _setter(cuda.value or 0)

    def remove(self) -> None:
        """Restore the previous guard."""
        if self._installed:
            pointer_at(symbol("libc10.so", _REGISTRY) + _CUDA * _WIDTH).value = self._previous
            self._installed = False
            state.process.set_guard_device = None


def _class_name(address: int) -> bytes:
    """Return the mangled name of the class of a C++ object with virtual functions."""
    table = pointer_at(address).value or 0
    kind = pointer_at(table - _WIDTH).value or 0
    return ctypes.string_at(pointer_at(kind + _WIDTH).value or 0)


def _setter(guard: int) -> Callable[[int], None]:
    """Return a function that sets the calling thread's current device in the no-op guard, which ``x.cuda()`` queries.

    A ``c10::Device`` is passed in a register: the type in its lowest byte, the index in the next.
    """
    table = pointer_at(guard).value or 0
    get_device, set_device = (
        ctypes.CFUNCTYPE(result, ctypes.c_void_p, *arguments)(pointer_at(table + entry * _WIDTH).value or 0)
        for entry, result, arguments in (
            (_GET_DEVICE, ctypes.c_uint16, ()),
            (_SET_DEVICE, None, (ctypes.c_uint16,)),
        )
    )
    for index in (1, 0):
        set_device(guard, _CUDA | index << 8)
        if get_device(guard) != _CUDA | index << 8:
            raise SimulationUnavailable(
                f"torch {torch.__version__} lays out its device guards in an unknown way: {INSTALL}"
            )
    return lambda index: set_device(guard, _CUDA | index << 8)
