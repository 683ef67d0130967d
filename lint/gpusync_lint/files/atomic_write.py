"""Writing a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(target: Path, data: bytes, mode: int | None = None) -> None:
    """Put a new content in the place of a file. Raises OSError, and then leaves the file as it was.

    `mode` are its permissions; None gives those that a new file has. `target` must not be a symbolic link, which would
    be replaced itself.
    """
    import tempfile  # loads random and much else, which a run that writes nothing does without

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
