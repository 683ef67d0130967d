"""The key with which the documents of the cache are authenticated.

The cache is in the folder of the project, so a pull request or an archive can bring one along, and findings could be
hidden in it. Therefore each document is authenticated with a secret key of the user, which is kept outside of all
projects. What the user's own processes write there is trusted.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from gpusync_lint.files.regular_file import read_regular

_LENGTH = 32
"""The length of the key in bytes."""


class NoKeyError(OSError):
    """There is no key, and none can be created. The message is one line for the user."""


def user_key() -> bytes:
    """The key of the user. It is created if there is none.

    Raises:
        NoKeyError: it cannot be read or created, or others can read or replace it.
    """
    try:
        path = _cache_home() / "gpusync" / "lint-cache.key"
        try:
            return _read(path)
        except FileNotFoundError:
            _create(path)
            return _read(path)
    except NoKeyError:
        raise
    except (OSError, RuntimeError) as error:  # pathlib raises RuntimeError for a user without a home folder
        raise NoKeyError(f"the key of the user cannot be read or created: {error}") from None


def _read(path: Path) -> bytes:
    key = read_regular(path, 2 * _LENGTH, follow=False)
    status = path.lstat()
    if hasattr(os, "geteuid") and (status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077):
        raise NoKeyError(f"others may read or replace {path}; delete it")
    if len(key) != _LENGTH:
        raise NoKeyError(f"{path} is damaged; delete it")
    return key


def _create(path: Path) -> None:
    from gpusync_lint.files.atomic_write import replace_file

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, os.urandom(_LENGTH), 0o600)


def _cache_home() -> Path:
    """The folder for caches of the user."""
    given = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", "")
    if given and Path(given).is_absolute():
        return Path(given)
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
