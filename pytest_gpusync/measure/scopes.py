"""Which part of a program a region or an ``allow()`` block covers: threads, tasks of an event loop, and generators.

Code that is not in a task of an event loop runs to its end before its thread does anything else, so a block there
covers all that its thread does until it closes. A task shares its thread with other tasks: a block that a task opens
covers the task itself and the tasks and threads that it hands work to. A context variable carries this. A generator has
no context of its own: while one that opened a block is suspended, its consumer runs, and the block covers nothing.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_held: ContextVar[tuple[Scope, ...]] = ContextVar("pytest_gpusync_scopes", default=())
"""The open blocks that were opened in this context, or in one that it was copied from."""
_open: tuple[Scope, ...] = ()
"""All open blocks, in the order in which they were opened. Replaced, never changed in place."""
_lock = threading.RLock()

_NO_GENERATOR: Final = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE


class Scope:
    """The extent of one block, from :meth:`enter` to :meth:`leave`."""

    __slots__ = ("_frame", "_generator", "in_task", "is_immediate", "is_region", "thread")

    def __init__(self, *, is_region: bool) -> None:
        self.is_region = is_region
        self.is_immediate = False
        """True if its syncs have to be delivered at the moment they are made in any case."""
        self.thread = threading.get_ident()
        self.in_task = _in_task()
        """True if a task of an event loop opened the block: then it does not cover all that its thread does."""
        self._frame: FrameType | None = None
        """The frame of the coroutine that opened the block in a task."""
        self._generator: FrameType | None = None
        """The frame of the generator that opened the block, if its consumer is not part of the block."""

    @property
    def needs_immediate_delivery(self) -> bool:
        """True if only at the moment of a sync it is known whether it is covered."""
        return self.is_immediate or self.in_task or self._generator is not None

    def enter(self, frame: FrameType | None) -> None:
        """Open the block, for the code that runs in `frame`."""
        global _open
        self._frame = _coroutine(frame) if self.in_task else None
        self._generator = None if self.is_region else _generator_iterated(frame)
        _held.set((*_held.get(), self))
        with _lock:
            _open = (*_open, self)

    def leave(self) -> None:
        """Close the block. The frames are released: contexts of tasks that still run refer to this object."""
        global _open
        self._frame = self._generator = None
        _held.set(tuple(scope for scope in _held.get() if scope is not self))
        with _lock:
            _open = tuple(scope for scope in _open if scope is not self)

    def covers(self, thread: int, held: tuple[Scope, ...]) -> bool:
        """Return whether a call on `thread`, in a context that holds `held`, is inside the block."""
        if self._generator is not None and self._generator.f_back is None:
            return False  # it is suspended: its consumer runs
        return self in held or (not self.in_task and thread == self.thread)


def held(owner: int | None = None) -> tuple[Scope, ...]:
    """Return the scopes held by the context of the calling thread; for another thread `owner`, as for autograd's
    threads, those of tasks whose frames are on its stack.
    """
    if owner is None or owner == threading.get_ident() or not any(scope.in_task for scope in _open):
        return _held.get()
    frame = sys._current_frames().get(owner)
    frames = set()
    while frame is not None:
        frames.add(id(frame))
        frame = frame.f_back
    return tuple(scope for scope in _open if scope._frame is not None and id(scope._frame) in frames)


def traced_by_compiler() -> bool:
    """Return whether torch.compile traces the calling code, which does not run then."""
    compiler: Any = getattr(sys.modules.get("torch"), "compiler", None)
    return compiler is not None and bool(compiler.is_compiling())


def need_immediate_delivery() -> bool:
    """Return whether any open block needs syncs to be delivered at the moment they are made."""
    return any(scope.needs_immediate_delivery for scope in _open)


def forget_in_forked_child() -> None:
    """Drop the blocks of the parent process."""
    global _open, _lock
    _lock = threading.RLock()  # the thread that held it does not exist here
    _open = ()
    _held.set(())


class HandedWork:
    """While attached, work submitted to a thread pool belongs to the blocks that submitted it."""

    def __init__(self) -> None:
        self._restore: Callable[[], None] | None = None

    def attach(self) -> None:
        """Wrap ``ThreadPoolExecutor.submit``. Does nothing if attached."""
        if self._restore is not None:
            return
        from concurrent.futures import ThreadPoolExecutor as Pool

        original: Any = Pool.submit

        @functools.wraps(original)
        def submit(pool: Any, function: Any, /, *arguments: Any, **named: Any) -> Any:
            scopes = _covering_this_thread()
            if not scopes:
                return original(pool, function, *arguments, **named)
            return original(pool, _within, scopes, function, *arguments, **named)

        def restore() -> None:
            if Pool.submit is submit:
                Pool.submit = original  # type: ignore[method-assign]

        self._restore = restore
        Pool.submit = submit  # type: ignore[method-assign]

    def detach(self) -> None:
        """Restore the method. Does nothing if not attached."""
        if self._restore is not None:
            self._restore()
            self._restore = None


def _within(scopes: tuple[Scope, ...], function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    __tracebackhide__ = True
    token = _held.set(scopes)
    try:
        return function(*arguments, **named)
    finally:
        _held.reset(token)


def _covering_this_thread() -> tuple[Scope, ...]:
    own, inherited = threading.get_ident(), _held.get()
    return tuple(scope for scope in _open if scope.covers(own, inherited))


def _in_task() -> bool:
    """Return whether this runs in an event loop of asyncio or trio (anyio uses either)."""
    asyncio: Any = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        return True
    trio: Any = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


def _coroutine(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of a coroutine from `frame` on."""
    while frame is not None and not frame.f_code.co_flags & inspect.CO_COROUTINE:
        frame = frame.f_back
    return frame


def _generator_iterated(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the generator in which a block is opened, if what consumes its values is not in the block.

    A generator behind ``@contextmanager`` or a pytest fixture is no iteration: what runs while it is suspended is the
    block's body.
    """
    while frame is not None and frame.f_code.co_filename == contextlib.__file__:
        frame = frame.f_back  # ExitStack
    while frame is not None:
        flags = frame.f_code.co_flags
        if flags & _NO_GENERATOR or not flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
            return None
        resumed_by = frame.f_back
        if resumed_by is None or "_pytest" in resumed_by.f_globals.get("__name__", ""):
            return None
        if resumed_by.f_code.co_filename != contextlib.__file__:
            return frame
        while resumed_by is not None and resumed_by.f_code.co_filename == contextlib.__file__:
            resumed_by = resumed_by.f_back
        frame = resumed_by
    return None
