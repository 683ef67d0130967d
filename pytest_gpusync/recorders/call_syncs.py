"""Makes syncs of calls of CUDA that have returned.

A runtime call that enters the driver counts once. A blocking torch copy is an asynchronous copy and a stream
synchronize from the same Python instruction: one sync, with the copy's direction and bytes. A ``non_blocking`` copy of
pageable memory that waits by itself is a sync of kind ``pageable``. So the last copy of each thread is kept until its
next call decides what it was.
"""

from __future__ import annotations

import sys
import time
from threading import get_ident
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpusync.model.measurement import PAGEABLE_H2D_WAITS_ABOVE, RawSync
from pytest_gpusync.recorders.driver_calls import MEMCPY_KINDS
from pytest_gpusync.source import attribution

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from pytest_gpusync.model.measurement import Attribution, Direction, Kind, SyncSink
    from pytest_gpusync.recorders.gate import LoggedCall

_new = tuple.__new__
"""Makes a named tuple in a third of the time; used for every sync."""

_MAX_BETWEEN_HALVES_NS: Final = 5_000_000
"""Most time between a copy and the synchronize that completes it, made by the same Python instruction; usually
microseconds."""


class Call(NamedTuple):
    """A call that has returned."""

    frame: FrameType | None
    """Innermost frame of the caller; None if there is none, or if the line of the call is known."""
    charge: Attribution | None
    """Its site and thread, if already known."""
    caller: int
    instruction: int
    """Identities of that frame and of its position, 0 without a frame. Two calls from one instruction are halves of one
    operation."""
    entered: int
    left: int
    """When it was entered and when it returned, by ``time.perf_counter_ns()``."""
    context: int
    destination: int
    """For a copy; for a stream synchronize, the stream."""
    source: int
    nbytes: int
    direction: int
    """A copy's cudaMemcpyKind; 0 if the call has none."""
    made: int
    """Number of operators that autograd had created on its thread; 0 if not counted."""
    sequence: int | None
    """Number of calls of its thread buffered before it; None on a thread whose calls are not buffered."""


class _Copy(NamedTuple):
    """The last copy of a thread, until a sync completes it or it turns out to have waited by itself."""

    direction: Direction
    call: Call
    """Without its frame, which would keep the caller's locals alive; with its site if that may be needed."""
    host: int | None
    """Host address of a copy that waits by itself if that memory is pageable; None for a copy that cannot wait."""


class Thread:
    """The calls of one thread."""

    __slots__ = ("copy", "ident")

    def __init__(self, ident: int) -> None:
        self.ident = ident
        self.copy: _Copy | None = None


class CallSyncs:
    """Passes the syncs that calls are to :attr:`sink`."""

    def __init__(self, device_of: Callable[[int], int | None], is_pageable: Callable[[int], bool]) -> None:
        """Make syncs of no call yet.

        Args:
            device_of: returns the index of the device of a CUcontext; called once for each.
            is_pageable: returns whether the driver does not know the host memory at an address.
        """
        self.sink: SyncSink | None = None
        """What takes the syncs; None while nobody counts."""
        self.keeps_lines_of_copies = False
        """True if a synchronize may be delivered after its frame has gone on, so that the line is that of its copy."""
        self._query_device = device_of
        self._is_pageable = is_pageable
        self._threads: dict[int, Thread] = {}
        self._device_of_context: dict[int, int | None] = {}

    @property
    def has_several_threads(self) -> bool:
        """True if calls of more than one thread were seen."""
        return len(self._threads) > 1

    def thread(self, ident: int) -> Thread:
        """Return the calls of a thread."""
        thread = self._threads.get(ident)
        if thread is None:
            thread = self._threads[ident] = Thread(ident)
        return thread

    def forget_threads(self) -> None:
        """Forget all threads, and copies that nothing has completed."""
        self._threads.clear()

    def finish_copies(self, is_in_call: Callable[[int], bool]) -> None:
        """Report the copies that turned out to wait by themselves; `is_in_call`: whether a thread is inside a call."""
        for thread in list(self._threads.values()):
            if self._copy_is_final(thread, is_in_call):
                self._report_pageable_copy(thread)

    def synchronized(self, kind: Kind, call: Call, thread: Thread) -> None:
        """Handle a stream or device synchronize that has returned: a sync, with the copy it completes."""
        copy = thread.copy
        if copy is None:
            self._report(kind, thread.ident, call)
        elif copy.call.instruction == call.instruction and copy.call.caller == call.caller:
            thread.copy = None
            self._report(kind, thread.ident, call, copy.direction, copy.call.nbytes, copy.call)
        else:
            self._report_pageable_copy(thread)
            self._report(kind, thread.ident, call)

    def copied(self, direction: Direction | None, call: Call, thread: Thread) -> None:
        """Handle a copy call that blocks by itself and has returned."""
        direction = direction or MEMCPY_KINDS.get(call.direction)
        if direction is None:
            return  # a copy between device buffers does not wait
        self._report_pageable_copy(thread)
        self._report("copy", thread.ident, call, direction, call.nbytes)

    def copy_issued(self, direction: Direction | None, call: Call, thread: Thread) -> None:
        """Handle an asynchronous copy that has returned: the first half of a blocking torch copy, or a copy that waited
        by itself.

        Which of the two is known only at the thread's next call. Most are a first half, so expensive checks are left
        until then: whether the driver knows the host memory. torch frees memory that it has pinned only much later.
        """
        if thread.copy is not None:
            self._report_pageable_copy(thread)
        direction = direction or MEMCPY_KINDS.get(call.direction)
        if direction is None:
            return
        may_wait = direction == "D2H" or call.nbytes > PAGEABLE_H2D_WAITS_ABOVE
        if call.frame is not None:
            charge = call.charge
            if charge is None and (may_wait or self.keeps_lines_of_copies):
                charge = attribution.charge(call.frame, thread.ident)
            call = call._replace(frame=None, charge=charge)
        host = (call.destination if direction == "D2H" else call.source) if may_wait else None
        thread.copy = _new(_Copy, (direction, call, host))

    def logged(self, kind: Kind, call: LoggedCall, frame: FrameType | None, awaited: int | None) -> None:
        """Handle a call that was logged natively.

        Args:
            kind: kind of the sync.
            call: the call.
            frame: the innermost frame of its thread now.
            awaited: index of the device of the event that its thread waits for, if known.
        """
        device = self._device_of(call.context)
        if kind == "event" and awaited is not None:
            device = awaited
        copy = self._copy_completed_by(kind, call.thread)
        if copy is not None:
            began = copy.call.entered
            blocked = call.began_ns + call.blocked_ns - began
            details = (copy.direction, copy.call.nbytes, blocked, device, copy.call.charge, began)
            self._emit(RawSync(kind, None, call.thread, *details))
        else:
            self._emit(
                RawSync(kind, frame, call.thread, blocked_ns=call.blocked_ns, device=device, began_ns=call.began_ns)
            )

    def _copy_completed_by(self, kind: Kind, ident: int) -> _Copy | None:
        """Return and remove the copy before a logged stream synchronize of the same thread: together they are one
        blocking copy.
        """
        thread = self._threads.get(ident)
        if kind != "stream" or thread is None or thread.copy is None or thread.copy.call.charge is None:
            return None
        copy, thread.copy = thread.copy, None
        return copy

    def _report(
        self,
        kind: Kind,
        ident: int,
        call: Call,
        direction: Direction | None = None,
        nbytes: int | None = None,
        first: Call | None = None,
    ) -> None:
        """Make a sync of a call and pass it to the sink.

        Args:
            first: the call of its first half. The host may have waited there: a copy of pageable memory returns when it
                is done, and the synchronize after it has nothing left to wait for.
        """
        sink = self.sink
        if sink is None:
            return
        began = (first or call).entered
        try:
            device = self._device_of_context[call.context]
        except KeyError:
            device = self._device_of(call.context)
        charge = call.charge if first is None else first.charge or call.charge
        stream = call.destination if kind == "stream" else None
        details = (direction, nbytes, call.left - began, device, charge, began, call.sequence, stream)
        sink(_new(RawSync, (kind, call.frame, ident, *details)))

    def _emit(self, raw: RawSync) -> None:
        sink = self.sink
        if sink is not None:
            sink(raw)

    def _device_of(self, context: int) -> int | None:
        """Return the device of a context."""
        if context not in self._device_of_context:
            self._device_of_context[context] = self._query_device(context) if context else None
        return self._device_of_context[context]

    def _report_pageable_copy(self, thread: Thread) -> None:
        """Report the thread's last copy if it waited by itself, because no synchronize of its own followed."""
        copy, thread.copy = thread.copy, None
        if copy is not None and copy.host and self._is_pageable(copy.host):
            self._report("pageable", thread.ident, copy.call, copy.direction, copy.call.nbytes)

    def _copy_is_final(self, thread: Thread, is_in_call: Callable[[int], bool]) -> bool:
        """Return whether no synchronize can complete the last copy of a thread any more."""
        copy = thread.copy
        if copy is None or thread.ident == get_ident():
            return True
        # Another thread may be inside the synchronize that completes its copy, or just before it.
        if is_in_call(thread.ident) or time.perf_counter_ns() < copy.call.left + _MAX_BETWEEN_HALVES_NS:
            return thread.ident not in sys._current_frames()
        return True
