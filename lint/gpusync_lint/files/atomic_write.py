"""Atomic replacement of files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(target: Path, data: bytes, mode: int | None = None) -> None:
    """Replace the content of a file atomically. If this raises OSError the file is unchanged.

    Args:
        target: the file; not a symbolic link, which would be replaced itself.
        data: the new content.
        mode: the permissions; None for those of a new file.
    """
    import tempfile  # it imports random and much else, which a run that writes no file does not need

    if mode is None:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(temporary).chmod(mode)
        Path(temporary).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
