"""Work in a forked child, and what it says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def in_forked_child(work: Callable[[], object]) -> str:
    """Return what `work` returns in a forked child, as text; or the error that it raised."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "raised"
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        return pipe.read()
