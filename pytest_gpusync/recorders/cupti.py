"""Counts every sync call of the process at the driver, through a CUPTI callback subscriber.

Only host-blocking calls and the copies before them are enabled, so a kernel launch costs nothing. A runtime call that
enters the driver counts once. A blocking torch copy is an asynchronous copy and a stream synchronize from the same
Python instruction: one sync, with the copy's direction and bytes. A ``non_blocking`` copy of pageable memory that waits
by itself is a sync of kind ``pageable``.

The gate buffers calls of the main thread once their place is known. They become syncs when the region closes, without
entering Python. Calls of other threads, and the first call from each place, are dispatched to Python.

Calls that torch may make under its allocator lock (event synchronize and frees; with expandable segments every
synchronize) are logged natively and delivered a moment later, see :mod:`pytest_gpusync.recorders.gate`. Their line is
read from the thread's stack just after the call returned.

CUPTI has one subscriber at a time. An idle Kineto (torch.profiler was used and has stopped) is detached. If a profiler
runs, or Nsight holds CUPTI, this recorder leaves it alone and refuses.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import sys
import threading
import time
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from pytest_gpusync.machine.native_libraries import NativeUnavailable
from pytest_gpusync.model.measurement import PAGEABLE_H2D_WAITS_ABOVE, RawSync
from pytest_gpusync.recorders import cupti_api, gate, obstacles
from pytest_gpusync.recorders.allocation_watch import AllocationWatch
from pytest_gpusync.recorders.base import FORKED, Recorder, RecorderUnavailable
from pytest_gpusync.recorders.forward_lines import ForwardLines, operator_counter
from pytest_gpusync.source import attribution

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from pytest_gpusync.model.measurement import Attribution, Coverage, Direction, Kind, SyncSink

    _Handler = Callable[[Any, "_Call", "_Thread"], None]
    """Handles a call that has returned: (the call's entry in the table, the call, its thread)."""

_SYNCHRONIZE: Final[dict[str, Kind]] = {
    "cudaStreamSynchronize": "stream",
    "cudaDeviceSynchronize": "device",
    "cuStreamSynchronize": "stream",
    "cuCtxSynchronize": "device",
}
_LOCKED: Final[dict[str, Kind]] = {
    "cudaEventSynchronize": "event",
    "cuEventSynchronize": "event",
    "cudaFree": "free",
    "cuMemFree": "free",
    "cudaFreeHost": "free",
    "cuMemFreeHost": "free",
}
"""Calls that the allocator makes under its lock: never dispatched to Python."""

_BLOCKING_COPIES: Final[dict[str, Direction | None]] = {
    "cudaMemcpy": None,
    "cuMemcpyDtoH": "D2H",
    "cuMemcpyHtoD": "H2D",
}
_ASYNC_COPIES: Final[dict[str, Direction | None]] = {
    "cudaMemcpyAsync": None,
    "cuMemcpyDtoHAsync": "D2H",
    "cuMemcpyHtoDAsync": "H2D",
}

_LAUNCHES: Final = frozenset(
    {
        "cuLaunchKernel",
        "cuLaunchKernelEx",
        "cuLaunchCooperativeKernel",
        "cuGraphLaunch",
        "cuMemsetD8Async",
        "cuMemsetD32Async",
    }
)
"""Calls of the driver that give the device work; the runtime's launches make them too. They are enabled only until a
region is known to use the device."""

_MEMCPY_KINDS: Final[dict[int, Direction]] = {1: "H2D", 2: "D2H"}
"""Values of cudaMemcpyKind. Copies between device buffers (3) do not wait; for cudaMemcpyDefault (4) the driver
determines the direction."""

_new = tuple.__new__
"""Makes a named tuple in a third of the time; used for every sync."""

_COPY_WORDS: Final = 3
_RUNTIME_COPY_WORDS: Final = 4
"""Parameters of a copy that are read: destination, source, bytes; in the runtime API also its kind."""

_WAIT_WORDS: Final[dict[Kind, int]] = {"stream": 1}
"""Parameters of a synchronize that are read: the stream."""

_MAX_BETWEEN_HALVES_NS: Final = 5_000_000
"""Most time between a copy and the synchronize that completes it, made by the same Python instruction; usually
microseconds."""

_MEMORY_TYPE_ATTRIBUTE: Final = 2
"""CU_POINTER_ATTRIBUTE_MEMORY_TYPE; cuPointerGetAttribute refuses pageable pointers."""


class _Call(NamedTuple):
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
    call: _Call
    """Without its frame, which would keep the caller's locals alive; with its site if that may be needed."""
    host: int | None
    """Host address of a copy that waits by itself if that memory is pageable; None for a copy that cannot wait."""


class _Thread:
    """The state of one thread."""

    __slots__ = ("copy", "ident")

    def __init__(self, ident: int) -> None:
        self.ident = ident
        self.copy: _Copy | None = None


class _Places:
    """Attributions of the calls from places that the gate buffers by itself."""

    def __init__(self) -> None:
        self.charges: dict[int, Attribution] = {}
        self._codes: dict[int, CodeType] = {}
        """Code objects of the places' frames, kept so that no other object gets their identity."""
        self._version = attribution.cache_version()

    def learn(self, entry: gate.CallGate, place: int, frame: FrameType, charge: Attribution) -> None:
        """Let the gate buffer further calls from the position of `frame`, which is `place` if the gate could determine
        it.
        """
        codes = attribution.codes_up_to_user_frame(frame)
        # Without user code the gate would not know where to stop reading frames. And one call of the engine runs many
        # operators, each with another attribution.
        if not codes or attribution.runs_backward(frame):
            return
        if not entry.knows(place, id(codes[-1])):
            self.forget(entry)
            entry.knows(place, id(codes[-1]))
        self._codes.update((id(code), code) for code in codes)
        if place:
            self.charges[place] = charge

    def refresh(self, entry: gate.CallGate) -> None:
        """Forget places learned before :mod:`attribution` cleared its caches."""
        if self._version != attribution.cache_version():
            self.forget(entry)

    def forget(self, entry: gate.CallGate) -> None:
        """Forget all places."""
        entry.forget_places()
        self.charges.clear()
        self._codes.clear()
        self._version = attribution.cache_version()


class CuptiRecorder(Recorder):
    """See the module docstring."""

    name: ClassVar[str] = "cupti"
    coverage: ClassVar[Coverage] = "driver"
    blind_spots: ClassVar[str] = ""
    reads_clock: ClassVar[bool] = True

    def __init__(self) -> None:
        self._sink: SyncSink | None = None
        self._cupti: cupti_api.Cupti | None = None
        self._gate: gate.CallGate | None = None
        self._handlers: dict[tuple[int, int], tuple[_Handler, Any]] = {}
        self._logged_kinds: dict[tuple[int, int], Kind] = {}
        self._launches: list[tuple[int, int]] = []
        self._work_watcher: Callable[[int], bool] | None = None
        """Called at the next launch; None once it knows enough."""
        self._workers: set[int] = set()
        """The threads that were seen to give the device work since the watch began."""
        self._launches_are_enabled = False
        self._allocations = AllocationWatch()
        self._threads: dict[int, _Thread] = {}
        self._buffered_thread: int | None = None
        """The main thread, if the gate can read its frames."""
        self._places = _Places()
        self._read_lock = threading.RLock()
        """Held while the gate's buffer is read. A signal handler may start reading while its own thread does."""
        self._is_reading = False
        self._forward = ForwardLines()
        self._device_of_context: dict[int, int | None] = {}
        self._awaited: dict[int, int | None] = {}
        """The device of the event that a thread is waiting for: the driver only knows the current one."""
        self._error: Exception | None = None
        self._logs_every_synchronize = False
        """With expandable segments, the allocator makes every kind of synchronize under its lock."""
        self._undo: list[Callable[[], None]] = []
        self._is_forked = False
        """True in a child that was forked while this was started: CUPTI's subscription belongs to the parent."""
        self._pointer_attribute: Any = None

    def start(self, sink: SyncSink) -> None:
        """See :meth:`Recorder.start`."""
        if self._is_forked or _in_bad_fork():
            raise RecorderUnavailable(FORKED)
        if _profiler_is_running():
            raise RecorderUnavailable("torch.profiler is running and holds CUPTI; stop it to count at the driver")
        cupti, entry = self._prepare()
        self._sink = sink
        # CUPTI crashes if callbacks run on other threads while a subscription begins or ends.
        entry.close()
        self._places.refresh(entry)
        main = threading.main_thread().ident or 0
        # With expandable segments the second half of a copy is logged, and the halves would not be in order.
        notes = not self._logs_every_synchronize and entry.note_calls_of(main)
        if not entry.counts_operators:
            entry.count_operators(operator_counter())
        self._buffered_thread = main if notes else None
        self.calls = entry.noted
        self._work_watcher = None
        self._launches_are_enabled = False
        self._subscribe(cupti, entry)
        entry.open()
        self._follow_event_waits()
        self._make_room_for_profiler()
        attribution.forward_line_of = self._forward_line
        self._undo.append(_forget_forward_line)

    def watch_device_work(self, watcher: Callable[[int], bool]) -> None:
        """See :meth:`Recorder.watch_device_work`: the launches are enabled until `watcher` has returned True."""
        if self._sink is None or self._cupti is None or self._gate is None:
            return
        self._allocations.start(watcher)
        self._work_watcher = watcher
        self._workers = set()
        for domain, callback_id in self._launches:
            self._gate.set_action(domain, callback_id, gate.PYTHON)
            if not self._launches_are_enabled:
                self._cupti.enable(domain, callback_id)
        self._launches_are_enabled = bool(self._launches)

    def look_for_device_work(self) -> None:
        """See :meth:`Recorder.look_for_device_work`."""
        # The allocator's counters do not say which thread made a tensor.
        if self._work_watcher is not None and self._workers <= {get_ident()}:
            self._allocations.look(get_ident())

    def _worked(self) -> None:
        """Tell the watcher that this thread gave the device work. Runs in callbacks: CUPTI is not called here."""
        watcher = self._work_watcher
        self._workers.add(get_ident())
        if watcher is not None and watcher(get_ident()):
            self._unwatch()

    def _unwatch(self) -> None:
        self._work_watcher = None
        if self._gate is None:
            return
        self._allocations.stop()
        for domain, callback_id in self._launches:
            self._gate.set_action(domain, callback_id, gate.IGNORE)

    def _disable_launches(self) -> None:
        """Let launches go without a callback again, once nobody watches them."""
        if self._launches_are_enabled and self._work_watcher is None and self._cupti is not None:
            self._launches_are_enabled = False
            for domain, callback_id in self._launches:
                self._cupti.disable(domain, callback_id)

    def buffer_calls(self, allowed: bool) -> None:
        """See :meth:`Recorder.buffer_calls`."""
        entry = self._gate
        if entry is None or self._sink is None or self._logs_every_synchronize:
            return
        if not allowed and self._buffered_thread is not None:
            entry.note_no_calls()
            self._deliver_buffered()
            self._buffered_thread = None
        elif allowed and self._buffered_thread is None:
            main = threading.main_thread().ident or 0
            if entry.note_calls_of(main):
                self._buffered_thread = main

    def stop(self) -> None:
        """See :meth:`Recorder.stop`."""
        if self._sink is None:
            return
        self._work_watcher = None
        self._allocations.stop()
        while self._undo:
            self._undo.pop()()
        assert self._cupti is not None
        assert self._gate is not None
        self._gate.close()
        try:
            self._cupti.unsubscribe()
        finally:
            self._sink = None
            self._threads.clear()

    def forget_in_forked_child(self) -> None:
        """See :meth:`Recorder.forget_in_forked_child`."""
        self._is_forked = True
        self._sink = None
        self._read_lock = threading.RLock()  # the thread that held it does not exist here
        self._is_reading = False
        while self._undo:
            self._undo.pop()()

    def mark(self) -> int:
        """See :meth:`Recorder.mark`."""
        entry = self._gate
        if self._launches_are_enabled:
            self._disable_launches()
        if entry is None or self._buffered_thread is None or len(self._threads) > 1:
            self.flush()
        elif entry.logged.value != entry.drained:
            self._deliver_logged()
        return self.calls.value

    def flush(self) -> None:
        """Deliver the buffered and the logged calls, and the copies that turned out to wait by themselves."""
        self._deliver_buffered()
        self._deliver_logged()
        for thread in list(self._threads.values()):
            if self._copy_is_final(thread):
                self._report_pageable_copy(thread)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._gate is not None and self._gate.lost:
            lost, self._gate.lost = self._gate.lost, 0
            raise RuntimeError(f"{lost} records of event synchronizes and frees were overwritten before they were read")

    # Subscription

    def _prepare(self) -> tuple[cupti_api.Cupti, gate.CallGate]:
        """Load CUPTI and fill the gate's table, once per process."""
        if self._cupti is not None and self._gate is not None:
            return self._cupti, self._gate
        built = obstacles.cuda_of_torch()
        path = cupti_api.find_library(built[0] if built is not None else None)
        if path is None:
            raise RecorderUnavailable(obstacles.no_library())
        if not cupti_api.has_driver():
            raise RecorderUnavailable(obstacles.NO_DRIVER)
        try:
            entry = gate.CallGate(self._callback, self._deliver_logged)
        except NativeUnavailable as error:
            raise RecorderUnavailable(f"{error}; to count at the driver, {error.remedy}") from None
        try:
            cupti = cupti_api.Cupti(path)
            self._fill_table(cupti, entry)
        except (OSError, AttributeError) as error:
            raise RecorderUnavailable(f"CUPTI cannot be used: {error}") from error
        self._pointer_attribute = _pointer_attribute_function()
        self._cupti, self._gate = cupti, entry
        return cupti, entry

    def _subscribe(self, cupti: cupti_api.Cupti, entry: gate.CallGate) -> None:
        try:
            try:
                cupti.subscribe(entry.function, entry.user_data)
            except cupti_api.CuptiError as error:
                if error.code != cupti_api.MULTIPLE_SUBSCRIBERS or obstacles.injected_tool():
                    raise
                # Kineto subscribes once and never unsubscribes. It is idle (checked above), so CUPTI may be detached
                # from it.
                cupti.finalize()
                cupti.subscribe(entry.function, entry.user_data)
            for domain, callback_id in self._handlers:
                cupti.enable(domain, callback_id)
            for domain, callback_id in self._logged_kinds:
                cupti.enable(domain, callback_id)
        except cupti_api.CuptiError as error:
            self._sink = None
            raise RecorderUnavailable(obstacles.explain(error)) from error

    def _fill_table(self, cupti: cupti_api.Cupti, entry: gate.CallGate) -> None:
        all_locked = self._logs_every_synchronize = _expandable_segments()
        for domain, words in ((gate.DRIVER, _COPY_WORDS), (gate.RUNTIME, _RUNTIME_COPY_WORDS)):
            for callback_id, full_name in cupti.names(domain):
                name = _base_name(full_name)
                key = (domain, callback_id)
                if domain == gate.DRIVER and name in _LAUNCHES:
                    self._launches.append(key)
                if name in _LOCKED or (all_locked and name in _SYNCHRONIZE):
                    self._logged_kinds[key] = _LOCKED[name] if name in _LOCKED else _SYNCHRONIZE[name]
                    entry.set_action(domain, callback_id, gate.LOG)
                elif name in _SYNCHRONIZE:
                    self._handlers[key] = self._synchronized, _SYNCHRONIZE[name]
                    entry.set_action(domain, callback_id, gate.PYTHON_ON_EXIT, _WAIT_WORDS.get(_SYNCHRONIZE[name], 0))
                elif name in _BLOCKING_COPIES:
                    self._handlers[key] = self._copied, _BLOCKING_COPIES[name]
                    entry.set_action(domain, callback_id, gate.PYTHON_ON_EXIT, words)
                elif name in _ASYNC_COPIES:
                    self._handlers[key] = self._copy_issued, _ASYNC_COPIES[name]
                    entry.set_action(domain, callback_id, gate.PYTHON_ON_EXIT, words)

    def _follow_event_waits(self) -> None:
        """Deliver an event synchronize made from Python on its own thread, while its line is still on the stack."""
        streams = sys.modules.get("torch.cuda.streams")
        if streams is None:
            return
        event: Any = streams.Event
        original = event.synchronize

        def synchronize(event: Any) -> None:
            ident = get_ident()
            self._awaited[ident] = getattr(event.device, "index", None)
            try:
                original(event)
            finally:
                self._deliver_logged(sys._getframe(1))
                self._awaited.pop(ident, None)

        synchronize.__doc__ = original.__doc__
        event.synchronize = synchronize

        def restore() -> None:
            if event.synchronize is synchronize:
                event.synchronize = original

        self._undo.append(restore)

    def _make_room_for_profiler(self) -> None:
        """Leave CUPTI to a torch.profiler that starts now: next to another subscriber it would silently
        record nothing.
        """
        profiler: Any = sys.modules.get("torch.autograd.profiler")
        prepare = getattr(profiler, "_prepare_profiler", None)
        if prepare is None:
            return

        def prepare_profiler(*arguments: Any, **options: Any) -> Any:
            if self.on_eviction is not None and self._sink is not None:
                self.on_eviction("torch.profiler was started in the region and needs CUPTI")
            return prepare(*arguments, **options)

        profiler._prepare_profiler = prepare_profiler

        def restore() -> None:
            if profiler._prepare_profiler is prepare_profiler:
                profiler._prepare_profiler = prepare

        self._undo.append(restore)

    # Delivery, on the thread that makes the call

    def _callback(self, _user_data: int, domain: int, callback_id: int, address: int) -> None:
        try:
            entry = self._gate
            if entry is None or self._sink is None:
                return
            try:
                frame: FrameType | None = sys._getframe(1)
            except ValueError:
                frame = None  # a C++ thread
            if (domain, callback_id) in self._launches:
                self._worked()
                return
            if self._work_watcher is not None:
                self._worked()  # a copy or a wait
            if get_ident() == self._buffered_thread:
                if not entry.counts_operators:
                    entry.count_operators(operator_counter())  # torch may have been loaded since then
                self._deliver_buffered(frame)
                return
            if self._logs_every_synchronize:
                self._deliver_logged(frame)
            self._dispatched(entry, domain, callback_id, address, frame)
        except Exception as error:
            self._error = self._error or error
        except BaseException as raised:
            # A signal handler (for Ctrl-C, or a test's time limit) ran in here, and what it raised cannot leave the
            # callback.
            _raise_later_in_main_thread(raised)

    def _dispatched(
        self, entry: gate.CallGate, domain: int, callback_id: int, address: int, frame: FrameType | None
    ) -> None:
        """Handle a call of a thread whose calls are not buffered, from CUPTI's data at `address`."""
        found = self._handlers.get((domain, callback_id))
        if found is None:
            return
        handler, argument = found
        thread = self._thread(get_ident())
        if handler == self._synchronized:
            count = _WAIT_WORDS.get(argument, 0)
        else:
            count = _RUNTIME_COPY_WORDS if domain == gate.RUNTIME else _COPY_WORDS
        words = cupti_api.parameters(address, count)
        caller, instruction = (0, 0) if frame is None else (id(frame), id(frame.f_code) + frame.f_lasti)
        times = entry.times(thread.ident)
        context = cupti_api.context(address)
        handler(argument, _Call(frame, None, caller, instruction, *times, context, *words, 0, None), thread)

    def _deliver_buffered(self, frame: FrameType | None = None) -> None:
        """Report the calls that the gate buffered, in order.

        Args:
            frame: the innermost frame of the buffered thread, if its last call was dispatched here.
        """
        entry = self._gate
        if entry is None or self._buffered_thread is None or self._sink is None:
            return
        own = self._buffered_thread
        handlers, charges = self._handlers, self._places.charges
        with self._read_lock:
            thread = self._thread(own)
            self._is_reading = True
            sequence: int | None = None
            try:
                for noted in entry.take():
                    found = handlers.get((noted[1], noted[0]))
                    if found is None:
                        continue
                    place, where = noted[2], None
                    charge = charges.get(place)
                    if charge is None:
                        # Python was entered for it, so it is the last one, unless an exception was raised there. Or
                        # another thread reads it before the buffered thread does; that thread's frame has not changed.
                        where = frame or (sys._getframe(1) if get_ident() == own else sys._current_frames().get(own))
                        charge = attribution.charge(where, own)
                        if frame is not None and entry.noted.value == noted[13] + 1:
                            self._places.learn(entry, place, frame, charge)
                    self._forward.note(noted[12], charge)
                    found[0](found[1], _new(_Call, (where, charge, *noted[3:])), thread)
            finally:
                self._is_reading = False
        watcher = self._work_watcher
        if watcher is not None and sequence is not None and watcher(own):
            self._unwatch()

    def _forward_line(self, operator: int) -> str | None:
        """Return the line that created the operator of this number, whose gradient waits now, if known."""
        # The buffered calls show it. If they are being read already, do not wait: this may be running inside that.
        if not self._is_reading and self._read_lock.acquire(blocking=False):
            try:
                self._deliver_buffered()
            finally:
                self._read_lock.release()
        return self._forward.line_of(operator)

    def _thread(self, ident: int) -> _Thread:
        thread = self._threads.get(ident)
        if thread is None:
            thread = self._threads[ident] = _Thread(ident)
        return thread

    def _synchronized(self, kind: Kind, call: _Call, thread: _Thread) -> None:
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

    def _copied(self, direction: Direction | None, call: _Call, thread: _Thread) -> None:
        """Handle a copy call that blocks by itself and has returned."""
        direction = direction or _MEMCPY_KINDS.get(call.direction)
        if direction is None:
            return  # a copy between device buffers does not wait
        self._report_pageable_copy(thread)
        self._report("copy", thread.ident, call, direction, call.nbytes)

    def _copy_issued(self, direction: Direction | None, call: _Call, thread: _Thread) -> None:
        """Handle an asynchronous copy that has returned: the first half of a blocking torch copy, or a copy that waited
        by itself.

        Which of the two is known only at the thread's next call. Most are a first half, so expensive checks are left
        until then: whether the driver knows the host memory. torch frees memory that it has pinned only much later.
        """
        if thread.copy is not None:
            self._report_pageable_copy(thread)
        direction = direction or _MEMCPY_KINDS.get(call.direction)
        if direction is None:
            return
        may_wait = direction == "D2H" or call.nbytes > PAGEABLE_H2D_WAITS_ABOVE
        if call.frame is not None:
            charge = call.charge
            if charge is None and (may_wait or self._logs_every_synchronize):
                charge = attribution.charge(call.frame, thread.ident)
            call = call._replace(frame=None, charge=charge)
        host = (call.destination if direction == "D2H" else call.source) if may_wait else None
        thread.copy = _new(_Copy, (direction, call, host))

    def _report(
        self,
        kind: Kind,
        ident: int,
        call: _Call,
        direction: Direction | None = None,
        nbytes: int | None = None,
        first: _Call | None = None,
    ) -> None:
        """Make a sync of a call and pass it to the sink.

        Args:
            first: the call of its first half. The host may have waited there: a copy of pageable memory returns when it
                is done, and the synchronize after it has nothing left to wait for.
        """
        sink = self._sink
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
        sink = self._sink
        if sink is not None:
            sink(raw)

    def _device_of(self, context: int) -> int | None:
        """Return the device of a context; CUPTI is queried once."""
        if context not in self._device_of_context:
            known = context and self._cupti is not None
            self._device_of_context[context] = self._cupti.device_of(context) if known and self._cupti else None
        return self._device_of_context[context]

    def _report_pageable_copy(self, thread: _Thread) -> None:
        """Report the thread's last copy if it waited by itself, because no synchronize of its own followed."""
        copy, thread.copy = thread.copy, None
        if copy is not None and copy.host and self._is_pageable(copy.host):
            self._report("pageable", thread.ident, copy.call, copy.direction, copy.call.nbytes)

    def _copy_is_final(self, thread: _Thread) -> bool:
        """Return whether no synchronize can complete the last copy of a thread any more."""
        copy, entry = thread.copy, self._gate
        if copy is None or entry is None or thread.ident == get_ident():
            return True
        # Another thread may be inside the synchronize that completes its copy, or just before it.
        if entry.is_in_call(thread.ident) or time.perf_counter_ns() < copy.call.left + _MAX_BETWEEN_HALVES_NS:
            return thread.ident not in sys._current_frames()
        return True

    def _is_pageable(self, pointer: int) -> bool:
        """Return whether host memory is pageable, which the driver does not know, rather than pinned."""
        if self._pointer_attribute is None:
            return False
        kind = ctypes.c_uint32()
        return bool(self._pointer_attribute(ctypes.byref(kind), _MEMORY_TYPE_ATTRIBUTE, ctypes.c_uint64(pointer)) != 0)

    def _deliver_logged(self, frame: FrameType | None = None) -> None:
        """Report the calls that the gate logged. `frame` is the innermost frame of the calling thread, if it
        made them.
        """
        entry = self._gate
        if entry is None or self._sink is None:
            return
        calls = entry.drain()
        if not calls:
            return
        own = get_ident()
        for call in calls:
            kind = self._logged_kinds.get((call.domain, call.callback_id))
            if kind is None:
                continue
            device = self._device_of(call.context)
            awaited = self._awaited.get(call.thread)
            if kind == "event" and awaited is not None:
                device = awaited
            copy = self._copy_completed_by(kind, call.thread)
            if copy is not None:
                began = copy.call.entered
                blocked = call.began_ns + call.blocked_ns - began
                details = (copy.direction, copy.call.nbytes, blocked, device, copy.call.charge, began)
                self._emit(RawSync(kind, None, call.thread, *details))
                continue
            # Frames of this package above the caller's are skipped when the call is attributed to a line.
            where = (frame or sys._getframe(1)) if call.thread == own else sys._current_frames().get(call.thread)
            self._emit(
                RawSync(kind, where, call.thread, blocked_ns=call.blocked_ns, device=device, began_ns=call.began_ns)
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


def _forget_forward_line() -> None:
    attribution.forward_line_of = None


def _base_name(name: str) -> str:
    """Return a function's name without its version and stream suffixes: ``cuMemcpyDtoHAsync_v2_ptsz``."""
    return name.split("_", 1)[0]


def _pointer_attribute_function() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
    except (OSError, AttributeError):
        return None


def _expandable_segments() -> bool:
    settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + "," + os.environ.get("PYTORCH_ALLOC_CONF", "")
    return "expandable_segments:true" in settings.replace(" ", "").lower()


def _in_bad_fork() -> bool:
    cuda: Any = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda._is_in_bad_fork())


def _profiler_is_running() -> bool:
    profiler = sys.modules.get("torch.autograd.profiler")
    if profiler is None:
        return False
    import torch

    return bool(torch._C._autograd._profiler_enabled())


def _raise_later_in_main_thread(raised: BaseException) -> None:
    """Raise again what a signal handler raised inside a callback, after the callback has returned."""

    def deliver() -> None:
        time.sleep(0.001)
        if isinstance(raised, KeyboardInterrupt):
            _thread.interrupt_main()
        else:
            main = threading.main_thread().ident
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main or 0), ctypes.py_object(type(raised)))

    _thread.start_new_thread(deliver, ())
