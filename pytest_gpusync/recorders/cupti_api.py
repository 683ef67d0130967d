"""The functions of CUPTI that a callback subscriber needs, through ctypes.

Names, layouts and codes are from cupti_callbacks.h, cupti_result.h and generated_cuda_runtime_api_meta.h of CUDA 12 and
13. Callback ids are resolved by name at run time, so none is written here.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SUCCESS: Final = 0
MULTIPLE_SUBSCRIBERS: Final = 39
"""CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED."""
INSUFFICIENT_PRIVILEGES: Final = 35
VIRTUALIZED_DEVICE: Final = 40
CONFIDENTIAL_COMPUTING: Final = 41
MIG_DEVICE: Final = 43
WSL_DEVICE: Final = 45

_CALLBACK_IDS: Final = 1023
"""Highest id tried when names are resolved; CUDA 13 ends near 800."""

_MEMORY_TYPE_ATTRIBUTE: Final = 2
"""CU_POINTER_ATTRIBUTE_MEMORY_TYPE; cuPointerGetAttribute refuses pageable pointers."""

_CallbackWords = ctypes.c_uint64 * 6
"""The first fields of CUpti_CallbackData, eight bytes each: callback site, function name, parameters, return value,
symbol name, context."""


def context(address: int) -> int:
    """Return the CUcontext of the call whose data CUPTI put at `address`; 0 if it has none."""
    found: int = _CallbackWords.from_address(address)[5]
    return found


def parameters(address: int, count: int) -> tuple[int, int, int, int]:
    """Return the first `count` parameters of the call whose data CUPTI put at `address`, and 0 for the others.

    For a copy they are (destination, source, bytes, cudaMemcpyKind), the last one only in the runtime API; for a stream
    synchronize, the stream.
    """
    found = _CallbackWords.from_address(address)[2]
    if not count or not found:
        return 0, 0, 0, 0
    words = [*(ctypes.c_uint64 * count).from_address(found), 0, 0, 0]
    return words[0], words[1], words[2], words[3] & 0xFFFFFFFF


class CuptiError(RuntimeError):
    """A CUPTI call failed; `code` is its CUptiResult."""

    def __init__(self, function: str, code: int, meaning: str) -> None:
        super().__init__(f"{function} returned {code} ({meaning})")
        self.code = code


class Cupti:
    """One loaded libcupti."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._library = ctypes.CDLL(path)
        self._handle = ctypes.c_void_p()
        self._pointer_attribute = _pointer_attribute_function()

    def version(self) -> int:
        """Return the CUPTI API version, 130000 for CUDA 13.0."""
        version = ctypes.c_uint32()
        self._call("cuptiGetVersion", ctypes.byref(version))
        return version.value

    def subscribe(self, function: object, user_data: int) -> None:
        """Subscribe; nothing is enabled yet.

        Raises:
            CuptiError: with code MULTIPLE_SUBSCRIBERS if a profiler holds CUPTI.
        """
        self._call("cuptiSubscribe", ctypes.byref(self._handle), function, ctypes.c_void_p(user_data))

    def unsubscribe(self) -> None:
        """End the subscription; waits for running callbacks."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        self._call("cuptiUnsubscribe", handle)

    def finalize(self) -> None:
        """Detach CUPTI from the process, and with it an idle subscriber."""
        self._call("cuptiFinalize")

    def enable(self, domain: int, callback_id: int) -> None:
        """Enable the callbacks of one function of one domain."""
        self._set_enabled(1, domain, callback_id)

    def disable(self, domain: int, callback_id: int) -> None:
        """Disable the callbacks of one function of one domain."""
        self._set_enabled(0, domain, callback_id)

    def _set_enabled(self, enabled: int, domain: int, callback_id: int) -> None:
        self._call(
            "cuptiEnableCallback",
            ctypes.c_uint32(enabled),
            self._handle,
            ctypes.c_int(domain),
            ctypes.c_uint32(callback_id),
        )

    def names(self, domain: int) -> Iterator[tuple[int, str]]:
        """Yield (callback id, name) for a domain, with CUPTI's names: ``cudaStreamSynchronize_v3020``."""
        name = ctypes.c_char_p()
        function = self._library.cuptiGetCallbackName
        for callback_id in range(1, _CALLBACK_IDS):
            if (
                function(ctypes.c_int(domain), ctypes.c_uint32(callback_id), ctypes.byref(name)) == SUCCESS
                and name.value
            ):
                yield callback_id, name.value.decode()

    def device_of(self, context: int) -> int | None:
        """Return the ordinal of the device that a CUcontext belongs to."""
        device = ctypes.c_uint32()
        code = self._library.cuptiGetDeviceId(ctypes.c_void_p(context), ctypes.byref(device))
        return device.value if code == SUCCESS else None

    def is_pageable(self, pointer: int) -> bool:
        """Return whether host memory is pageable, which the driver does not know, rather than pinned."""
        if self._pointer_attribute is None:
            return False
        kind = ctypes.c_uint32()
        return bool(self._pointer_attribute(ctypes.byref(kind), _MEMORY_TYPE_ATTRIBUTE, ctypes.c_uint64(pointer)) != 0)

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code != SUCCESS:
            text = ctypes.c_char_p()
            self._library.cuptiGetResultString(ctypes.c_int(code), ctypes.byref(text))
            raise CuptiError(function, code, (text.value or b"unknown").decode())


def _pointer_attribute_function() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
    except (OSError, AttributeError):
        return None


def has_driver() -> bool:
    """Return whether the driver's library exists. Without it, CUPTI 13.2 terminates a process that calls it."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def find_library(cuda: int | None = None) -> str | None:
    """Return the path of the libcupti to use: the one already loaded, else the one torch depends on, else CUDA's.

    Args:
        cuda: major version of the CUDA that torch was built for; a library of that version is preferred.
    """
    # Two copies in one process would be two CUPTIs, and one of them would never get a callback.
    loaded = next(_loaded_libraries(), None)
    if loaded is not None:
        return loaded
    found = list(_installed_libraries())
    fitting = [path for path in found if cuda is not None and f".so.{cuda}" in path]
    return next(iter(fitting or found), None)


def _loaded_libraries() -> Iterator[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                found = re.search(r"(/\S*/libcupti\.so\S*)$", line.rstrip())
                if found:
                    yield found.group(1)
    except OSError:
        return


def _installed_libraries() -> Iterator[str]:
    target = "sbsa-linux" if platform.machine() == "aarch64" else "x86_64-linux"
    for folder in sys.path:
        for pattern in ("nvidia/*/lib/libcupti.so*", "torch/lib/libcupti*.so*"):
            # Newest first. Only names with a digit: libcupti.so itself is a development link.
            yield from sorted((str(path) for path in Path(folder or ".").glob(pattern)), reverse=True)
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if root:
            for place in ("extras/CUPTI/lib64", "lib64", f"targets/{target}/lib"):
                yield from sorted((str(path) for path in Path(root, place).glob("libcupti.so*")), reverse=True)
