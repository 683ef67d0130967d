"""Access to the C++ libraries that torch has loaded: symbols by name, or an error that names what is missing."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pytest_gpusync.simulated.base.versions import INSTALL, SimulationUnavailable


@cache
def _library(name: str) -> ctypes.CDLL:
    path = Path(torch.__file__).parent / "lib" / name
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise SimulationUnavailable(
            f"torch {torch.__version__} has no usable {name} ({error}): reinstall torch from PyPI or pytorch.org"
        ) from None


def symbol(library: str, name: str) -> int:
    """Return the address of the exported symbol `name` (mangled) of `library`, a file in torch's ``lib`` folder."""
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(_library(library), name))
    except ValueError:
        raise SimulationUnavailable(
            f"torch {torch.__version__} does not export {name}, which the simulated device needs: {INSTALL}"
        ) from None


def function(library: str, name: str, result: Any, *arguments: Any) -> Any:
    """Return the exported C++ function `name` as a callable; it holds the GIL while it runs."""
    return ctypes.PYFUNCTYPE(result, *arguments)(symbol(library, name))


def pointer_at(address: int) -> ctypes.c_void_p:
    """Return the pointer-sized cell at `address`; read and write its ``value``."""
    return ctypes.c_void_p.from_address(address)


cells = memoryview((ctypes.c_int64 * (1 << 45)).from_address(0)).cast("B").cast("q")
"""The memory of the process as 8-byte numbers: ``cells[address >> 3]``. Many times faster than :func:`pointer_at`.
Addresses have 47 bits on x86-64 and 48 on aarch64.
"""
