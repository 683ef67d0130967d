"""Atomic replacement of files, with everything about a file but its content preserved.

The new content is written to a temporary file, which then gets the name of the target. A process that is killed may
leave a temporary file; `remove_abandoned` removes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TEMPORARY = re.compile(r"\.(?P<target>.+)\.[a-z0-9_]{8}\.gpusync\.tmp", re.DOTALL)
"""The names of temporary files."""
_ABANDONED = 60
"""The age in seconds from which on a temporary file is not in use any more."""


class NotPreservedError(OSError):
    """Replacing a file would lose something besides its content. The message is one line for the user."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.EPERM, message)


def replace_file(target: Path, data: bytes, mode: int | None = None) -> None:
    """Replace the content of a file atomically. If this raises OSError the file is unchanged.

    The file keeps its owner, its permissions and its extended attributes, which include access control lists.

    Args:
        target: the file; not a symbolic link, which would be replaced itself.
        data: the new content.
        mode: the permissions; None for those of the file, or if it does not exist those of a new file.

    Raises:
        NotPreservedError: its owner or attributes cannot be given to another file, or it has several hard links.
        OSError: it cannot be written.
    """
    import tempfile  # it imports random and much else, which a run that writes no file does not need

    status = target.lstat() if os.path.lexists(target) else None
    if status is not None and status.st_nlink > 1:
        raise NotPreservedError(f"it has {status.st_nlink} hard links, and replacing it would separate them")
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".gpusync.tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        if status is not None:
            _copy_owner(status, name)
        os.chmod(name, _permissions(status) if mode is None else mode)
        if status is not None:
            _copy_attributes(target, name)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _permissions(status: os.stat_result | None) -> int:
    if status is not None:
        return stat.S_IMODE(status.st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _copy_owner(status: os.stat_result, name: str) -> None:
    own = os.stat(name)
    if (own.st_uid, own.st_gid) == (status.st_uid, status.st_gid) or not hasattr(os, "chown"):
        return
    try:
        os.chown(name, status.st_uid, status.st_gid)
    except OSError:
        raise NotPreservedError("it belongs to another user or group, which a new file could not belong to") from None


def _copy_attributes(target: Path, name: str) -> None:
    """Copy the extended attributes, where Python supports them (Linux)."""
    if not hasattr(os, "listxattr"):
        return
    try:
        wanted = {each: os.getxattr(target, each) for each in os.listxattr(target)}
        present = {each: os.getxattr(name, each) for each in os.listxattr(name)} if wanted else {}
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOSYS):  # a file system without extended attributes
            return
        raise
    for each, value in wanted.items():
        if present.get(each) != value:
            try:
                os.setxattr(name, each, value)
            except OSError:
                raise NotPreservedError(f"its extended attribute {each} could not be kept") from None


def remove_abandoned(folder: str | Path, targets: re.Pattern[str]) -> None:
    """Remove the temporary files in a folder that a killed process left, of targets with matching names."""
    with os.scandir(folder) as inside:
        names = [entry.name for entry in inside]
    for name in names:
        match = TEMPORARY.fullmatch(name)
        if match is not None and targets.fullmatch(match["target"]):
            remove_if_abandoned([os.path.join(folder, name)])


def remove_if_abandoned(paths: Iterable[str]) -> list[str]:
    """Remove temporary files that no process can be writing any more. Returns those that were removed."""
    removed = []
    for path in paths:
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            is_own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
            if stat.S_ISREG(status.st_mode) and is_own and time.time() - status.st_mtime > _ABANDONED:
                os.unlink(path)
                removed.append(path)
    return removed
