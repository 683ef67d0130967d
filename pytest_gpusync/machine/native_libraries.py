"""Loads the native libraries of this package, or says why one is missing.

They are compiled from the C and C++ files of this package when a wheel is built (``hatch_build.py``), and are optional:
what uses one says what is lost without it. No memory is made executable at run time. ``GPUSYNC_NATIVE=0`` in the
environment keeps them from being loaded, so that the rest can be tested without them.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import struct
import sys
from pathlib import Path
from typing import Final

MACHINES: Final = {"x86_64": 62, "aarch64": 183}
"""Machines that wheels with native libraries are built for, by name: their number in the header of an ELF file."""
_PACKAGE: Final = Path(__file__).parents[1]
_MACHINE_FIELD: Final = 18
"""Offset of the machine in the header of an ELF file, two bytes."""


class NativeUnavailable(Exception):
    """A native library cannot be used. The message is the cause, as a clause; `remedy` is what would help."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause)
        self.remedy = remedy


def load(name: str) -> ctypes.PyDLL:
    """Return a native library; calls of its functions keep the GIL.

    Args:
        name: path of its source in this package, without suffix: ``recorders/gate``.

    Raises:
        NativeUnavailable: it was switched off, was not built, is out of date, or cannot be loaded here.
    """
    if os.environ.get("GPUSYNC_NATIVE") == "0":
        raise NativeUnavailable("native code is switched off by GPUSYNC_NATIVE=0", "unset GPUSYNC_NATIVE")
    machine = platform.machine()
    if sys.platform != "linux" or machine not in MACHINES or sys.maxsize < 1 << 32:
        raise NativeUnavailable(
            f"there is no native code for {platform.system()} on {machine}", "use Linux on x86-64 or aarch64"
        )
    path = library_path(name)
    if not path.is_file():
        raise NativeUnavailable("this installation has no native code", _remedy())
    built_for = _machine_of(path)
    if built_for != MACHINES[machine]:
        known = {number: name for name, number in MACHINES.items()}
        raise NativeUnavailable(
            f"native code was built for {known.get(built_for, 'another machine')}, and this is {machine}", _remedy()
        )
    try:
        library = ctypes.PyDLL(str(path))
    except OSError as error:
        raise NativeUnavailable(f"native code cannot be loaded: {error}", _remedy()) from None
    source = _source(name)
    if source is not None:
        digest = hashlib.sha256(source.read_bytes()).hexdigest().encode()
        if (ctypes.c_char * len(digest)).in_dll(library, "gpusync_source").raw != digest:
            raise NativeUnavailable(f"native code is out of date: {source.name} has changed since", _remedy())
    return library


def library_path(name: str) -> Path:
    """Where the library `name` lies, if it was built."""
    source = _PACKAGE / name
    return source.with_name(f"libgpusync_{source.name}.so")


def _source(name: str) -> Path | None:
    """The source of a library; None in an installation, which has none."""
    found = (_PACKAGE / f"{name}{suffix}" for suffix in (".c", ".cpp"))
    return next((path for path in found if path.is_file()), None)


def _remedy() -> str:
    if (_PACKAGE.parent / "hatch_build.py").is_file():
        return "install gcc and g++, and run `python hatch_build.py` in the checkout"
    again = "pip install --force-reinstall --no-cache-dir --no-deps pytest-gpusync"
    return f"install gcc and g++, and run `{again}`"


def _machine_of(path: Path) -> int:
    """The machine that an ELF file is for, by its number; 0 if it is no such file."""
    with path.open("rb") as file:
        header = file.read(_MACHINE_FIELD + 2)
    if len(header) < _MACHINE_FIELD + 2 or not header.startswith(b"\x7fELF"):
        return 0
    number: int = struct.unpack_from("<H", header, _MACHINE_FIELD)[0]
    return number
