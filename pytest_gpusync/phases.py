"""The innermost NVTX or ``record_function`` range that is open on a thread: the phase of a sync.

Ranges are followed by wrapping the Python entry points of torch while a region is open; a range opened from C++ or
before the region is not seen.
"""

from __future__ import annotations

import os
import sys
import threading
from bisect import bisect_right
from threading import get_ident
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_lock = threading.Lock()
noted: Callable[[], int] = int
"""Says how many calls of the main thread the recorder has noted so far; at first 0."""
_until: list[int] = []
_phases: list[str | None] = []
"""The past of the main thread: the phase that held for the calls noted before each of the numbers."""
_main = threading.main_thread().ident or 0
_users = 0
_restore: list[Callable[[], None]] = []
open_ranges: dict[int, list[str]] = {}
"""Names of the open ranges by thread, outermost first. Only the thread itself changes its list."""


if hasattr(os, "register_at_fork"):
    # In a child, the thread that held it does not exist.
    os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.Lock()))


def current(thread: int) -> str | None:
    """Return the innermost open range of `thread`."""
    ranges = open_ranges.get(thread)
    return ranges[-1] if ranges else None


def at(call: int) -> str | None:
    """Return the innermost open range of the main thread when it made its call number `call`, counted from 0."""
    position = bisect_right(_until, call)
    return _phases[position] if position < len(_until) else current(_main)


def follow() -> None:
    """Begin to follow ranges, if torch is loaded; calls nest."""
    global _users
    with _lock:
        _users += 1
        if not _restore and "torch" in sys.modules:
            _wrap_entry_points()


def unfollow() -> None:
    """End what :func:`follow` began; the last call restores torch's entry points."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            while _restore:
                _restore.pop()()
            open_ranges.clear()
            _until.clear()
            _phases.clear()


def _push(name: object) -> None:
    thread = get_ident()
    ranges = open_ranges.get(thread)
    if ranges is None:
        ranges = open_ranges[thread] = []
    if thread == _main:
        _remember(ranges)
    ranges.append(str(name))


def _pop() -> None:
    thread = get_ident()
    ranges = open_ranges.get(thread)
    if ranges:
        if thread == _main:
            _remember(ranges)
        ranges.pop()


def _remember(ranges: list[str]) -> None:
    """Keep the phase of the main thread that ends here, if any call was noted in it."""
    calls = noted()
    if calls and (not _until or _until[-1] != calls):
        _until.append(calls)
        _phases.append(ranges[-1] if ranges else None)


def _wrap_entry_points() -> None:
    from torch.autograd.profiler import record_function
    from torch.cuda import nvtx

    enter: Any
    leave: Any
    push: Any
    pop: Any
    enter, leave = record_function.__enter__, record_function.__exit__
    push, pop = nvtx.range_push, nvtx.range_pop

    def __enter__(self: Any) -> Any:  # noqa: N807 (takes the place of the method of that name)
        _push(self.name)
        return enter(self)

    def __exit__(self: Any, *exc: Any) -> Any:  # noqa: N807
        _pop()
        return leave(self, *exc)

    def range_push(msg: str) -> Any:
        _push(msg)
        return push(msg)

    def range_pop() -> Any:
        _pop()
        return pop()

    def replace(owner: Any, name: str, wrapper: Any) -> None:
        original = getattr(owner, name)
        setattr(owner, name, wrapper)

        def restore() -> None:
            # Somebody who wrapped our wrapper keeps it: putting the original back would undo their work.
            if getattr(owner, name) is wrapper:
                setattr(owner, name, original)

        _restore.append(restore)

    replace(record_function, "__enter__", __enter__)
    replace(record_function, "__exit__", __exit__)
    replace(nvtx, "range_push", range_push)
    replace(nvtx, "range_pop", range_pop)
