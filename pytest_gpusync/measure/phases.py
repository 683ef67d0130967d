"""The innermost NVTX or ``record_function`` range open on a thread: the phase of a sync.

Ranges are followed by wrapping torch's Python functions while a region is open. Ranges opened from C++ or before the
region are not seen.
"""

from __future__ import annotations

import os
import sys
import threading
from bisect import bisect_right
from threading import get_ident
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_gpusync.machine.replacements import Replacements

if TYPE_CHECKING:
    from pytest_gpusync.recorders.base import CallCounter

_lock = threading.RLock()
_main = threading.main_thread().ident or 0
_replaced = Replacements()
open_ranges: dict[int, list[str]] = {}
"""Names of the open ranges by thread, outermost first. Only the thread itself changes its list."""
_main_ranges: list[str] = []
"""The open ranges of the main thread, kept apart for speed: torch's optimizers open two in every step."""


_calls: CallCounter = SimpleNamespace(value=0)
_phase_ends: list[int] = [0]
_phase_names: list[str | None] = [None]
"""History of the main thread: the phase of the calls numbered below each entry of ``_phase_ends``."""


if hasattr(os, "register_at_fork"):
    # The thread that held the lock does not exist in a forked child.
    os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.RLock()))


def current(thread: int) -> str | None:
    """Return the innermost open range of `thread`."""
    ranges = _main_ranges if thread == _main else open_ranges.get(thread)
    return ranges[-1] if ranges else None


def are_open() -> bool:
    """Return whether any thread is in a range."""
    return bool(_main_ranges or open_ranges)


def at_call(call: int) -> str | None:
    """Return the innermost range that was open when the main thread made its call number `call`, counted from 0."""
    position = bisect_right(_phase_ends, call)
    return _phase_names[position] if position < len(_phase_ends) else current(_main)


def use_call_counter(calls: CallCounter) -> None:
    """Use this counter of the main thread's buffered calls from now on."""
    global _calls
    _calls = calls


def follow() -> None:
    """Start to follow ranges if torch is loaded. Does nothing if they are followed."""
    with _lock:
        if not _replaced and "torch" in sys.modules:
            _wrap_entry_points()


def unfollow() -> None:
    """Restore torch's functions. Does nothing if ranges are not followed; an interrupted call can be repeated."""
    with _lock:
        _replaced.restore()
        open_ranges.clear()
        _main_ranges.clear()
        _phase_ends[:] = [0]
        _phase_names[:] = [None]


def _push(name: str) -> None:
    if get_ident() == _main:
        if _calls.value != _phase_ends[-1]:
            _keep_phase()
        _main_ranges.append(name)
    else:
        open_ranges.setdefault(get_ident(), []).append(name)


def _pop() -> None:
    if get_ident() == _main:
        if _calls.value != _phase_ends[-1]:
            _keep_phase()
        ranges: list[str] | None = _main_ranges
    else:
        ranges = open_ranges.get(get_ident())
    if ranges:
        ranges.pop()


def _keep_phase() -> None:
    """Keep the main thread's current phase, which ends here and in which calls were buffered."""
    _phase_ends.append(_calls.value)
    _phase_names.append(_main_ranges[-1] if _main_ranges else None)


def _wrap_entry_points() -> None:
    from torch.autograd.profiler import record_function
    from torch.cuda import nvtx

    enter: Any
    leave: Any
    push: Any
    pop: Any
    enter, leave = record_function.__enter__, record_function.__exit__
    push, pop = nvtx.range_push, nvtx.range_pop

    # Optimizers open ranges in every step, with cold caches, where one more function call costs a microsecond. So these
    # two functions do the main thread's part of _push() and _pop() themselves.
    def __enter__(self: Any) -> Any:  # noqa: N807 (replaces the method of that name)
        if get_ident() == _main:
            if _calls.value != _phase_ends[-1]:
                _keep_phase()
            _main_ranges.append(self.name)
        else:
            _push(self.name)
        return enter(self)

    def __exit__(self: Any, *exc: Any) -> Any:  # noqa: N807
        if get_ident() == _main:
            if _calls.value != _phase_ends[-1]:
                _keep_phase()
            if _main_ranges:
                _main_ranges.pop()
        else:
            _pop()
        return leave(self, *exc)

    def range_push(msg: str) -> Any:
        _push(str(msg))
        return push(msg)

    def range_pop() -> Any:
        _pop()
        return pop()

    _replaced.put(record_function, "__enter__", __enter__)
    _replaced.put(record_function, "__exit__", __exit__)
    _replaced.put(nvtx, "range_push", range_push)
    _replaced.put(nvtx, "range_pop", range_pop)
