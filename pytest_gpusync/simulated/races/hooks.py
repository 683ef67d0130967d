"""What the simulated device tells this package about itself, on which the package may not depend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType


class _Hooks:
    current_stream: Callable[[int], int] = staticmethod(lambda index: 0)
    """The id of the calling thread's current stream of a device."""
    catch_up: Callable[[], None] = staticmethod(lambda: None)
    """Bring the model of the allocator up to date."""
    learn_codes: Callable[[FrameType | None], None] = staticmethod(lambda frame: None)
    """Let native code know the code from a frame to the user's innermost one."""
    code: Callable[[int], CodeType | None] = staticmethod(lambda identity: None)
    """The code object that native code named."""
    shared_counters: int | None = None
    """Cell of the first counter by which native code knows memory that another stream may still use; None without
    native code."""
    key_of: Callable[[int], int | None] = staticmethod(lambda base: None)
    """What the allocator knows the memory by that begins at an address."""


hooks: Final = _Hooks()
