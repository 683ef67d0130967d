"""Runs work that a signal handler must not interrupt, because doing half of it would be worse than not doing it."""

from __future__ import annotations

import signal
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")
# The functions behind `signal`, without the conversion to enums that takes most of their time.
_signal: Any = import_module("_signal")
_SIGNALS = sorted(
    (int(number) for number in signal.valid_signals() if isinstance(number, signal.Signals)),
    key=lambda number: number == signal.SIGINT,
)


def finish(work: Callable[[], object]) -> None:
    """Call `work`, which restores something, and see it through although signal handlers may raise.

    `work` must continue where an interrupted call of it ended: it is called again if an interrupt arrives before
    signals are deferred.
    """
    try:
        with_signals_deferred(work)
    except BaseException:
        work()
        raise


def with_signals_deferred(work: Callable[[], _Result]) -> _Result:
    """Call `work` and return its result; signals with a Python handler are handled after it.

    Such handlers run on the main thread, between any two bytecode instructions, and may raise there, as that of Ctrl-C
    does. On other threads `work` is simply called.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    arrived: set[int] = set()
    handlers: dict[int, Any] = {}
    try:
        for number in _SIGNALS:
            handler = _signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                _signal.signal(number, lambda number, frame: arrived.add(number))
        return work()
    finally:
        interruption = None
        while handlers:
            try:
                for number in list(handlers):
                    _signal.signal(number, handlers[number])
                    del handlers[number]
            except BaseException as error:  # raised by a handler that is already restored
                interruption = error
        for late in sorted(arrived):
            signal.raise_signal(late)
        if interruption is not None:
            raise interruption
