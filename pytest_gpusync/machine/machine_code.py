"""Executable memory for the few machine instructions that must run where Python cannot."""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys


def supported() -> bool:
    """Tell whether machine code for Linux on x86-64 fits this platform."""
    return sys.platform == "linux" and platform.machine() in {"x86_64", "AMD64"} and struct.calcsize("P") == 8


def executable(code: bytes) -> int:
    """Copy `code` into memory of its own that may be executed and no longer written; return its address.

    The memory is never released: a late call into it must find code.

    Raises:
        OSError: the system does not let a process make executable memory.
    """
    size = -(-len(code) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise OSError(ctypes.get_errno(), "this system does not let a process make executable memory")
    never_release(memory)
    return address


def never_release(memory: mmap.mmap) -> None:
    """Keep `memory` mapped to the very end: native code may use it after the interpreter has cleared every module."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
