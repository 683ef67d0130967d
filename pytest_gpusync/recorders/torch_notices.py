"""Notices from torch that a recorder at the driver needs: waits for events, and profilers that start.

Each function replaces a function of torch and returns what puts it back, or None if torch is not loaded.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def profiler_is_running() -> bool:
    """Return whether a torch.profiler holds CUPTI now."""
    profiler = sys.modules.get("torch.autograd.profiler")
    if profiler is None:
        return False
    import torch

    return bool(torch._C._autograd._profiler_enabled())


def notice_event_waits(
    began: Callable[[int | None], None], ended: Callable[[FrameType], None]
) -> Callable[[], None] | None:
    """Notice each event synchronize that is made from Python.

    Args:
        began: called with the index of the event's device before the wait.
        ended: called with the caller's frame after it.
    """
    streams = sys.modules.get("torch.cuda.streams")
    if streams is None:
        return None
    event: Any = streams.Event
    original = event.synchronize

    def synchronize(event: Any) -> None:
        began(getattr(event.device, "index", None))
        try:
            original(event)
        finally:
            ended(sys._getframe(1))

    synchronize.__doc__ = original.__doc__
    event.synchronize = synchronize

    def restore() -> None:
        if event.synchronize is synchronize:
            event.synchronize = original

    return restore


def notice_profilers(starts: Callable[[], None]) -> Callable[[], None] | None:
    """Call `starts` before a torch.profiler takes CUPTI."""
    profiler: Any = sys.modules.get("torch.autograd.profiler")
    prepare = getattr(profiler, "_prepare_profiler", None)
    if prepare is None:
        return None

    def prepare_profiler(*arguments: Any, **options: Any) -> Any:
        starts()
        return prepare(*arguments, **options)

    profiler._prepare_profiler = prepare_profiler

    def restore() -> None:
        if profiler._prepare_profiler is prepare_profiler:
            profiler._prepare_profiler = prepare

    return restore
