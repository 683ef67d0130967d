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
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpusync.recorders.base import CallCounter

_lock = threading.Lock()
_main = threading.main_thread().ident or 0
_users = 0
_restore: list[Callable[[], None]] = []
open_ranges: dict[int, list[str]] = {}
"""Names of the open ranges by thread, outermost first. Only the thread itself changes its list."""
_of_main: list[str] = []
"""Those of the main thread, which is in a hurry: torch's optimizers open two in every step."""


_calls: CallCounter = SimpleNamespace(value=0)
_until: list[int] = [0]
_phases: list[str | None] = [None]
"""The past of the main thread: the phase that held for the calls noted before each of the numbers."""


if hasattr(os, "register_at_fork"):
    # In a child, the thread that held it does not exist.
    os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.Lock()))


def current(thread: int) -> str | None:
    """Return the innermost open range of `thread`."""
    ranges = _of_main if thread == _main else open_ranges.get(thread)
    return ranges[-1] if ranges else None


def are_open() -> bool:
    """Tell whether any thread is in a range."""
    return bool(_of_main or open_ranges)


def at(call: int) -> str | None:
    """Return the innermost open range of the main thread when it made its call number `call`, counted from 0."""
    position = bisect_right(_until, call)
    return _phases[position] if position < len(_until) else current(_main)


def count_by(calls: CallCounter) -> None:
    """Take what says how many calls of the main thread were noted, from now on."""
    global _calls
    _calls = calls


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
            _of_main.clear()
            _until[:] = [0]
            _phases[:] = [None]


def _push(name: str) -> None:
    if get_ident() == _main:
        if _calls.value != _until[-1]:
            _keep_phase()
        _of_main.append(name)
    else:
        open_ranges.setdefault(get_ident(), []).append(name)


def _pop() -> None:
    if get_ident() == _main:
        if _calls.value != _until[-1]:
            _keep_phase()
        ranges: list[str] | None = _of_main
    else:
        ranges = open_ranges.get(get_ident())
    if ranges:
        ranges.pop()


def _keep_phase() -> None:
    """Keep the phase of the main thread that ends here: calls were noted in it."""
    _until.append(_calls.value)
    _phases.append(_of_main[-1] if _of_main else None)


def _wrap_entry_points() -> None:
    from torch.autograd.profiler import record_function
    from torch.cuda import nvtx

    enter: Any
    leave: Any
    push: Any
    pop: Any
    enter, leave = record_function.__enter__, record_function.__exit__
    push, pop = nvtx.range_push, nvtx.range_pop

    # Optimizers open ranges in every step, as cold code, where to call a function is a microsecond more: these two do
    # the main thread's part of _push() and _pop() themselves.
    def __enter__(self: Any) -> Any:  # noqa: N807 (takes the place of the method of that name)
        if get_ident() == _main:
            if _calls.value != _until[-1]:
                _keep_phase()
            _of_main.append(self.name)
        else:
            _push(self.name)
        return enter(self)

    def __exit__(self: Any, *exc: Any) -> Any:  # noqa: N807
        if get_ident() == _main:
            if _calls.value != _until[-1]:
                _keep_phase()
            if _of_main:
                _of_main.pop()
        else:
            _pop()
        return leave(self, *exc)

    def range_push(msg: str) -> Any:
        _push(str(msg))
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
