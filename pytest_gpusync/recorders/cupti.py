"""Counts every sync call of the process at the driver, through a CUPTI callback subscriber.

Only host-blocking calls and the copies before them are enabled, so a kernel launch costs nothing. What a call is, and
which calls are one sync, is decided in :mod:`~pytest_gpusync.recorders.call_syncs`.

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
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_gpusync.machine.native_libraries import NativeUnavailable
from pytest_gpusync.recorders import cupti_api, driver_calls, gate, obstacles, torch_notices
from pytest_gpusync.recorders.base import FORKED, Recorder, RecorderUnavailable
from pytest_gpusync.recorders.call_syncs import Call, CallSyncs, Thread
from pytest_gpusync.recorders.forward_lines import ForwardLines, operator_counter
from pytest_gpusync.recorders.known_places import KnownPlaces
from pytest_gpusync.recorders.launch_watch import LaunchWatch
from pytest_gpusync.source import attribution

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from pytest_gpusync.model.measurement import Coverage, Kind, SyncSink

    _Handler = Callable[[Any, Call, Thread], None]
    """Handles a call that has returned: (the call's entry in the table, the call, its thread)."""

_new = tuple.__new__
"""Makes a named tuple in a third of the time; used for every call."""


class CuptiRecorder(Recorder):
    """See the module docstring."""

    name: ClassVar[str] = "cupti"
    coverage: ClassVar[Coverage] = "driver"
    blind_spots: ClassVar[str] = ""
    reads_clock: ClassVar[bool] = True

    def __init__(self, library: cupti_api.Cupti | None = None) -> None:
        """Load nothing yet.

        Args:
            library: the libcupti to use; None to find it at the first start.
        """
        self._cupti = library
        self._gate: gate.CallGate | None = None
        self._syncs = CallSyncs(self._device_of, self._is_pageable)
        self._handlers: dict[tuple[int, int], tuple[_Handler, Any, int]] = {}
        """By domain and callback id: what handles the call, its entry in the table, parameters that are read."""
        self._logged_kinds: dict[tuple[int, int], Kind] = {}
        self._launches: LaunchWatch | None = None
        self._buffered_thread: int | None = None
        """The main thread, if the gate can read its frames."""
        self._places = KnownPlaces()
        self._read_lock = threading.RLock()
        """Held while the gate's buffer is read. A signal handler may start reading while its own thread does."""
        self._is_reading = False
        self._forward = ForwardLines()
        self._awaited: dict[int, int | None] = {}
        """The device of the event that a thread is waiting for: the driver only knows the current one."""
        self._error: Exception | None = None
        self._logs_every_synchronize = False
        """With expandable segments, the allocator makes every kind of synchronize under its lock."""
        self._undo: list[Callable[[], None]] = []
        self._is_forked = False
        """True in a child that was forked while this was started: CUPTI's subscription belongs to the parent."""

    def start(self, sink: SyncSink) -> None:
        """See :meth:`Recorder.start`."""
        if self._is_forked or _in_bad_fork():
            raise RecorderUnavailable(FORKED)
        if torch_notices.profiler_is_running():
            raise RecorderUnavailable("torch.profiler is running and holds CUPTI; stop it to count at the driver")
        cupti, entry, launches = self._prepare()
        self._syncs.sink = sink
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
        launches.begin_subscription()
        self._subscribe(cupti, entry)
        entry.open()
        for undo in (
            torch_notices.notice_event_waits(self._event_wait_began, self._event_wait_ended),
            torch_notices.notice_profilers(self._make_room_for_profiler),
        ):
            if undo is not None:
                self._undo.append(undo)
        attribution.forward_line_of = self._forward_line
        self._undo.append(_forget_forward_line)

    def watch_device_work(self, watcher: Callable[[int], bool]) -> None:
        """See :meth:`Recorder.watch_device_work`: the launches are enabled until `watcher` has returned True."""
        if self._syncs.sink is not None and self._launches is not None:
            self._launches.start(watcher)

    def look_for_device_work(self) -> None:
        """See :meth:`Recorder.look_for_device_work`."""
        if self._launches is not None:
            self._launches.look_for_tensors()

    def buffer_calls(self, allowed: bool) -> None:
        """See :meth:`Recorder.buffer_calls`."""
        entry = self._gate
        if entry is None or self._syncs.sink is None or self._logs_every_synchronize:
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
        if self._syncs.sink is None:
            return
        assert self._cupti is not None
        assert self._gate is not None
        assert self._launches is not None
        self._launches.stop()
        while self._undo:
            self._undo.pop()()
        self._gate.close()
        try:
            self._cupti.unsubscribe()
        finally:
            self._syncs.sink = None
            self._syncs.forget_threads()

    def forget_in_forked_child(self) -> None:
        """See :meth:`Recorder.forget_in_forked_child`."""
        self._is_forked = True
        self._syncs.sink = None
        self._read_lock = threading.RLock()  # the thread that held it does not exist here
        self._is_reading = False
        while self._undo:
            self._undo.pop()()

    def mark(self) -> int:
        """See :meth:`Recorder.mark`."""
        entry = self._gate
        if self._launches is not None:
            self._launches.disable_if_done()
        if entry is None or self._buffered_thread is None or self._syncs.has_several_threads:
            self.flush()
        elif entry.logged.value != entry.drained:
            self._deliver_logged()
        return self.calls.value

    def flush(self) -> None:
        """Deliver the buffered and the logged calls, and the copies that turned out to wait by themselves."""
        self._deliver_buffered()
        self._deliver_logged()
        if self._gate is not None:
            self._syncs.finish_copies(self._gate.is_in_call)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._gate is not None and self._gate.lost:
            lost, self._gate.lost = self._gate.lost, 0
            raise RuntimeError(f"{lost} records of event synchronizes and frees were overwritten before they were read")

    # Subscription

    def _prepare(self) -> tuple[cupti_api.Cupti, gate.CallGate, LaunchWatch]:
        """Load CUPTI and fill the gate's table, once per process."""
        if self._cupti is not None and self._gate is not None and self._launches is not None:
            return self._cupti, self._gate, self._launches
        path = self._cupti.path if self._cupti is not None else _find_cupti()
        try:
            entry = gate.CallGate(self._callback, self._deliver_logged)
        except NativeUnavailable as error:
            raise RecorderUnavailable(f"{error}; to count at the driver, {error.remedy}") from None
        try:
            cupti = self._cupti or cupti_api.Cupti(path)
            launches = self._fill_table(cupti, entry)
        except (OSError, AttributeError) as error:
            raise RecorderUnavailable(f"CUPTI cannot be used: {error}") from error
        self._cupti, self._gate, self._launches = cupti, entry, LaunchWatch(cupti, entry, launches)
        return cupti, entry, self._launches

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
            self._syncs.sink = None
            raise RecorderUnavailable(obstacles.explain(error)) from error

    def _fill_table(self, cupti: cupti_api.Cupti, entry: gate.CallGate) -> list[tuple[int, int]]:
        """Decide what the gate does with each call, and return those that launch."""
        all_locked = self._logs_every_synchronize = self._syncs.keeps_lines_of_copies = _expandable_segments()
        synchronize, locked = driver_calls.SYNCHRONIZE, driver_calls.LOCKED
        launches = []
        for domain, copy_words in (
            (gate.DRIVER, driver_calls.COPY_WORDS),
            (gate.RUNTIME, driver_calls.RUNTIME_COPY_WORDS),
        ):
            for callback_id, full_name in cupti.names(domain):
                name = driver_calls.base_name(full_name)
                key = (domain, callback_id)
                if domain == gate.DRIVER and name in driver_calls.LAUNCHES:
                    launches.append(key)
                if name in locked or (all_locked and name in synchronize):
                    self._logged_kinds[key] = locked[name] if name in locked else synchronize[name]
                    entry.set_action(domain, callback_id, gate.LOG)
                    continue
                if name in synchronize:
                    words = driver_calls.WAIT_WORDS.get(synchronize[name], 0)
                    self._handlers[key] = self._syncs.synchronized, synchronize[name], words
                elif name in driver_calls.BLOCKING_COPIES:
                    self._handlers[key] = self._syncs.copied, driver_calls.BLOCKING_COPIES[name], copy_words
                elif name in driver_calls.ASYNC_COPIES:
                    self._handlers[key] = self._syncs.copy_issued, driver_calls.ASYNC_COPIES[name], copy_words
                else:
                    continue
                entry.set_action(domain, callback_id, gate.PYTHON_ON_EXIT, self._handlers[key][2])
        return launches

    def _device_of(self, context: int) -> int | None:
        return None if self._cupti is None else self._cupti.device_of(context)

    def _is_pageable(self, pointer: int) -> bool:
        return self._cupti is not None and self._cupti.is_pageable(pointer)

    # Notices from torch

    def _event_wait_began(self, device: int | None) -> None:
        self._awaited[get_ident()] = device

    def _event_wait_ended(self, frame: FrameType) -> None:
        """Deliver an event synchronize on its own thread, while its line is still on the stack."""
        self._deliver_logged(frame)
        self._awaited.pop(get_ident(), None)

    def _make_room_for_profiler(self) -> None:
        """Leave CUPTI to a torch.profiler that starts now: next to another subscriber it would silently
        record nothing.
        """
        if self.on_eviction is not None and self._syncs.sink is not None:
            self.on_eviction("torch.profiler was started in the region and needs CUPTI")

    # Delivery, on the thread that makes the call

    def _callback(self, _user_data: int, domain: int, callback_id: int, address: int) -> None:
        try:
            entry, launches = self._gate, self._launches
            if entry is None or launches is None or self._syncs.sink is None:
                return
            try:
                frame: FrameType | None = sys._getframe(1)
            except ValueError:
                frame = None  # a C++ thread
            launches.worked()  # a copy or a wait is work too
            if (domain, callback_id) in launches.launches:
                return
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
        handler, argument, count = found
        thread = self._syncs.thread(get_ident())
        words = cupti_api.parameters(address, count)
        caller, instruction = (0, 0) if frame is None else (id(frame), id(frame.f_code) + frame.f_lasti)
        times = entry.times(thread.ident)
        context = cupti_api.context(address)
        handler(argument, Call(frame, None, caller, instruction, *times, context, *words, 0, None), thread)

    def _deliver_buffered(self, frame: FrameType | None = None) -> None:
        """Report the calls that the gate buffered, in order.

        Args:
            frame: the innermost frame of the buffered thread, if its last call was dispatched here.
        """
        entry = self._gate
        if entry is None or self._buffered_thread is None or self._syncs.sink is None:
            return
        own = self._buffered_thread
        handlers, charges = self._handlers, self._places.charges
        with self._read_lock:
            thread = self._syncs.thread(own)
            self._is_reading = True
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
                    found[0](found[1], _new(Call, (where, charge, *noted[3:])), thread)
            finally:
                self._is_reading = False

    def _forward_line(self, operator: int) -> str | None:
        """Return the line that created the operator of this number, whose gradient waits now, if known."""
        # The buffered calls show it. If they are being read already, do not wait: this may be running inside that.
        if not self._is_reading and self._read_lock.acquire(blocking=False):
            try:
                self._deliver_buffered()
            finally:
                self._read_lock.release()
        return self._forward.line_of(operator)

    def _deliver_logged(self, frame: FrameType | None = None) -> None:
        """Report the calls that the gate logged. `frame` is the innermost frame of the calling thread, if it
        made them.
        """
        entry = self._gate
        if entry is None or self._syncs.sink is None:
            return
        calls = entry.drain()
        if not calls:
            return
        own = get_ident()
        for call in calls:
            kind = self._logged_kinds.get((call.domain, call.callback_id))
            if kind is None:
                continue
            # Frames of this package above the caller's are skipped when the call is attributed to a line.
            where = (frame or sys._getframe(1)) if call.thread == own else sys._current_frames().get(call.thread)
            self._syncs.logged(kind, call, where, self._awaited.get(call.thread))


def _forget_forward_line() -> None:
    attribution.forward_line_of = None


def _find_cupti() -> str:
    built = obstacles.cuda_of_torch()
    path = cupti_api.find_library(built[0] if built is not None else None)
    if path is None:
        raise RecorderUnavailable(obstacles.no_library())
    if not cupti_api.has_driver():
        raise RecorderUnavailable(obstacles.NO_DRIVER)
    return path


def _expandable_segments() -> bool:
    settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + "," + os.environ.get("PYTORCH_ALLOC_CONF", "")
    return "expandable_segments:true" in settings.replace(" ", "").lower()


def _in_bad_fork() -> bool:
    cuda: Any = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda._is_in_bad_fork())


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
