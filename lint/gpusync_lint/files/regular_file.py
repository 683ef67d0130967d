"""Reading files of which nothing is known: only regular files, and only up to a size.

A tree may contain a pipe, a device or a file of any size, also behind a symbolic link. Reading one could block or
exhaust the memory.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAX_SOURCE = 10_000_000
"""The maximum size of a Python file, in bytes."""
MAX_DOCUMENT = 100_000_000
"""The maximum size of other files, in bytes: notebooks (which contain images), baselines, configurations."""

_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"))


class NotRegularError(OSError):
    """The path names something that is neither a regular file nor a folder: a pipe, a device."""


class TooLargeError(OSError):
    """The file is larger than the limit."""


def read_regular(path: str | Path, limit: int, *, follow: bool = True) -> bytes:
    """The content of a regular file.

    Args:
        path: the file.
        limit: the maximum size in bytes.
        follow: whether the path may be a symbolic link.

    Raises:
        IsADirectoryError: it is a folder.
        NotRegularError: it is another thing than a regular file.
        TooLargeError: it is larger than `limit`.
        OSError: it cannot be read.
    """
    # Opening a device can have an effect, so it is looked at first; and again, because it may have been replaced.
    _check(os.stat(path, follow_symlinks=follow), limit)
    handle = os.open(path, _FLAGS if follow else _FLAGS | getattr(os, "O_NOFOLLOW", 0))
    try:
        size = _check(os.fstat(handle), limit)
        chunks: list[bytes] = []
        left = limit
        while chunk := os.read(handle, min(size, left) + 1):
            chunks.append(chunk)
            left -= len(chunk)
            if left < 0:
                raise _too_large(limit)
            size = max(0, size - len(chunk)) or 65536
    finally:
        os.close(handle)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _check(status: os.stat_result, limit: int) -> int:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError(errno.EINVAL, "not a regular file")
    if status.st_size > limit:
        raise _too_large(limit)
    return status.st_size


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(errno.EFBIG, f"larger than {limit / 1e6:.0f} MB")
