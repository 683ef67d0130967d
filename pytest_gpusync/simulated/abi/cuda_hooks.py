"""Makes C++ believe that an accelerator called CUDA is present and initialized.

ATen queries the object returned by ``at::detail::getCUDAHooks()``; for example, the autograd engine refuses cuda
tensors unless that object allows them. The object gets a copy of the virtual table of its base class,
``at::CUDAHooksInterface``, which behaves like a CPU build (no cuDNN, no device pointers), with five entries replaced by
existing C functions.
"""

from __future__ import annotations

import ctypes
from typing import Final

import torch

from pytest_gpusync.simulated.base.native import function, pointer_at, symbol
from pytest_gpusync.simulated.base.versions import INSTALL, SimulationUnavailable

_LIBRARY = "libtorch_cpu.so"
_WIDTH = 8
_HEADER = 2
"""A virtual table is preceded by the offset to top and the type information."""
_ENTRIES = 48
"""Number of virtual functions of ``at::CUDAHooksInterface`` in torch 2.11 to 2.15 (its exported table has
400 bytes)."""
_ANSWERS_TRUE: Final = {"isBuilt": 2, "isAvailable": 3, "hasPrimaryContext": 4, "init": 5}
_PINNED_ALLOCATOR: Final = 12
_CUDA = 1


class AcceleratorHooks:
    """Replaces the virtual table of the CUDA hooks object and restores the original."""

    def __init__(self) -> None:
        self._object: int | None = None
        self._original: int | None = None
        # The table lives as long as the process: a thread may be inside one of its functions.
        self._table = (ctypes.c_void_p * (_HEADER + _ENTRIES))()

    def install(self) -> None:
        """Install the altered table.

        Raises:
            SimulationUnavailable: the object is not as expected, or C++ does not accept the result; nothing was
                changed.
        """
        hooks: int = function(_LIBRARY, "_ZN2at6detail12getCUDAHooksEv", ctypes.c_void_p)()
        base = symbol(_LIBRARY, "_ZTVN2at18CUDAHooksInterfaceE")
        if pointer_at(base + _WIDTH).value != symbol(_LIBRARY, "_ZTIN2at18CUDAHooksInterfaceE"):
            raise SimulationUnavailable(
                f"torch {torch.__version__} lays out its CUDA hooks in an unknown way: {INSTALL}"
            )
        for index in range(_HEADER + _ENTRIES):
            self._table[index] = pointer_at(base + index * _WIDTH).value
        # Py_IsInitialized takes no argument, ignores those it is given, and returns 1.
        true = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value
        for slot in _ANSWERS_TRUE.values():
            self._table[_HEADER + slot] = true
        self._table[_HEADER + _PINNED_ALLOCATOR] = symbol("libc10.so", "_ZN3c1015GetCPUAllocatorEv")
        self._object, self._original = hooks, pointer_at(hooks).value
        pointer_at(hooks).value = ctypes.addressof(self._table) + _HEADER * _WIDTH
        if not _accelerator_is_cuda():
            self.remove()
            raise SimulationUnavailable(
                f"torch {torch.__version__} does not accept CUDA as its accelerator: "
                "another accelerator backend is registered; run without it"
            )

    def remove(self) -> None:
        """Restore the hooks object's own table."""
        if self._object is not None:
            pointer_at(self._object).value = self._original
            self._object = None


def _accelerator_is_cuda() -> bool:
    """Return whether ``at::getAccelerator(false)``, a ``std::optional`` of a one-byte enum, holds CUDA."""
    answer = function(_LIBRARY, "_ZN2at11accelerator14getAcceleratorEb", ctypes.c_uint32, ctypes.c_bool)(False)
    value, present = answer & 0xFF, (answer >> 8) & 1
    return bool(present and value == _CUDA)
