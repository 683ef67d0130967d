"""Counts every sync call of the process at the driver, through a CUPTI callback subscriber.

Only the host-blocking calls and the copies before them are enabled, so a kernel launch costs nothing. A runtime call
that enters the driver counts once. A blocking torch copy is an asynchronous copy and a stream synchronize from the same
Python instruction: one sync, with the copy's direction and bytes. A ``non_blocking`` copy of pageable memory that waits
by itself is a sync of kind ``pageable``.

Calls that torch may make under its allocator lock (event synchronize and frees; with expandable segments every
synchronize) are logged natively and delivered a moment later, see :mod:`pytest_gpusync.recorders.gate`. Their line is
taken from the thread's stack just after the call returned.

CUPTI has one subscriber at a time. An idle Kineto (torch.profiler was used and has stopped) is released; a running one,
or Nsight, is left alone and this recorder refuses.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import sys
import threading
import time
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from pytest_gpusync import attribution
from pytest_gpusync.events import PAGEABLE_H2D_WAITS_ABOVE, RawSync
from pytest_gpusync.recorders import cupti_api, gate
from pytest_gpusync.recorders.base import Recorder, RecorderUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from pytest_gpusync.events import Charge, Coverage, Direction, Kind
    from pytest_gpusync.recorders.base import Sink

    _Instruction = tuple[int, int, int]
    """Identities of a frame and of its code, and the offset in the bytecode: two CUDA calls from the same instruction
    are halves of one operation."""

    _Handler = Callable[[Any, int, FrameType | None, "_Thread"], None]
    """Handles a call that has returned: (what the table says of the call, address of CUPTI's data, innermost Python
    frame or None on a C++ thread, thread)."""

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
"""Calls that the allocator makes under its lock: never handed to Python."""

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

_MEMCPY_KINDS: Final[dict[int, Direction]] = {1: "H2D", 2: "D2H"}
"""Values of cudaMemcpyKind. Copies between device buffers (3) do not wait; cudaMemcpyDefault (4) leaves the direction
to the driver."""

_NO_INSTRUCTION: Final = (0, 0, 0)
"""Of a thread without Python frames."""

_NO_TICKS: Final = (0, 0)
"""Of a copy that cannot wait: nobody asks how long it took."""

_new = tuple.__new__
"""Makes a named tuple of a tuple. What is done at every sync adds to the step, and out of a training step it is cold
code that costs a multiple of what it does in a loop: fewer functions are better than faster ones."""

_MEMORY_TYPE_ATTRIBUTE: Final = 2
"""CU_POINTER_ATTRIBUTE_MEMORY_TYPE; cuPointerGetAttribute refuses pageable pointers."""


class _Copy(NamedTuple):
    """The last copy of a thread, until the sync that completes it, or until it turns out to be one itself."""

    direction: Direction
    nbytes: int
    instruction: _Instruction
    charge: Charge | None
    """Its line; looked up only where somebody may ask for it, since a frame kept would keep the caller's locals."""
    host: int | None
    """Address on the host of a copy that waits by itself if that memory is pageable; None for one that cannot."""
    context: int
    ticks: tuple[int, int]
    """When it was entered and left, as the gate counts."""


class _Thread:
    """What is under way on one thread."""

    __slots__ = ("copy", "ident", "slot", "ticks")

    def __init__(self, ident: int, entry: gate.CallGate) -> None:
        self.ident = ident
        self.slot = gate.slot_of(ident)
        self.ticks = partial(entry.ticks, self.slot)
        """Returns when it entered and left the call it was in last, as the gate counts."""
        self.copy: _Copy | None = None


class CuptiRecorder(Recorder):
    """See the module docstring."""

    name: ClassVar[str] = "cupti"
    coverage: ClassVar[Coverage] = "driver"
    blind_spots: ClassVar[str] = ""
    reads_clock: ClassVar[bool] = True

    def __init__(self) -> None:
        self._sink: Sink | None = None
        self._cupti: cupti_api.Cupti | None = None
        self._gate: gate.CallGate | None = None
        self._handlers: dict[tuple[int, int], tuple[_Handler, Any]] = {}
        self._logged_kinds: dict[tuple[int, int], Kind] = {}
        self._threads: dict[int, _Thread] = {}
        self._device_of_context: dict[int, int | None] = {}
        self._error: Exception | None = None
        self._logs_every_synchronize = False
        """With expandable segments the allocator makes every kind of synchronize under its lock."""
        self._undo: list[Callable[[], None]] = []
        self._pointer_attribute: Any = None

    def start(self, sink: Sink) -> None:
        """See :meth:`Recorder.start`."""
        if _profiler_is_running():
            raise RecorderUnavailable("torch.profiler is running and holds CUPTI; stop it to count at the driver")
        cupti, entry = self._prepare()
        self._sink = sink
        entry.keep_time()
        # Beside busy threads CUPTI bears no callbacks while a subscription begins or ends.
        entry.close()
        self._subscribe(cupti, entry)
        entry.open()
        self._follow_event_waits()
        self._make_room_for_profiler()

    def stop(self) -> None:
        """See :meth:`Recorder.stop`."""
        if self._sink is None:
            return
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

    def flush(self) -> None:
        """Deliver the logged calls, and the copies that turned out to wait by themselves."""
        self._deliver_logged()
        if self._gate is not None:
            self._gate.keep_time()
        own = get_ident()
        for thread in list(self._threads.values()):
            # Another thread may be waiting in the synchronize that its copy is the first half of.
            if thread.ident == own or (self._gate is not None and not self._gate.is_in_call(thread.slot)):
                self._settle(thread)
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
        path = cupti_api.find_library()
        if path is None:
            raise RecorderUnavailable("libcupti was not found; install the nvidia-cuda-cupti that torch depends on")
        try:
            cupti = cupti_api.Cupti(path)
            entry = gate.CallGate(self._callback, self._deliver_logged)
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
                if error.code != cupti_api.MULTIPLE_SUBSCRIBERS or _under_nsight():
                    raise
                # Kineto subscribes once and never lets go. It is idle (checked above): CUPTI may be detached from it.
                cupti.finalize()
                cupti.subscribe(entry.function, entry.user_data)
            for domain, callback_id in self._handlers:
                cupti.enable(domain, callback_id)
            for domain, callback_id in self._logged_kinds:
                cupti.enable(domain, callback_id)
        except cupti_api.CuptiError as error:
            self._sink = None
            raise RecorderUnavailable(_explain(error)) from error

    def _fill_table(self, cupti: cupti_api.Cupti, entry: gate.CallGate) -> None:
        all_locked = self._logs_every_synchronize = _expandable_segments()
        for domain in (gate.DRIVER, gate.RUNTIME):
            for callback_id, full_name in cupti.names(domain):
                name = _base_name(full_name)
                key = (domain, callback_id)
                if name in _LOCKED or (all_locked and name in _SYNCHRONIZE):
                    self._logged_kinds[key] = _LOCKED[name] if name in _LOCKED else _SYNCHRONIZE[name]
                    entry.set_action(domain, callback_id, gate.LOG)
                elif name in _SYNCHRONIZE:
                    self._handlers[key] = self._synchronized, _SYNCHRONIZE[name]
                    entry.set_action(domain, callback_id, gate.PYTHON_ON_EXIT)
                elif name in _BLOCKING_COPIES:
                    self._handlers[key] = self._copied, _BLOCKING_COPIES[name]
                    entry.set_action(domain, callback_id, gate.PYTHON_ON_EXIT)
                elif name in _ASYNC_COPIES:
                    self._handlers[key] = self._copy_issued, _ASYNC_COPIES[name]
                    entry.set_action(domain, callback_id, gate.PYTHON_ON_EXIT)

    def _follow_event_waits(self) -> None:
        """Deliver an event synchronize made from Python on its own thread, while its line is still on the stack."""
        streams = sys.modules.get("torch.cuda.streams")
        if streams is None:
            return
        event: Any = streams.Event
        original = event.synchronize

        def synchronize(event: Any) -> None:
            try:
                original(event)
            finally:
                self._deliver_logged(sys._getframe(1))

        synchronize.__doc__ = original.__doc__
        event.synchronize = synchronize

        def restore() -> None:
            if event.synchronize is synchronize:
                event.synchronize = original

        self._undo.append(restore)

    def _make_room_for_profiler(self) -> None:
        """Leave CUPTI to a torch.profiler that starts now: beside a subscriber it would silently record nothing."""
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
            handler, entry = self._handlers.get((domain, callback_id)), self._gate
            if handler is None or entry is None or self._sink is None:
                return
            ident = get_ident()
            thread = self._threads.get(ident)
            if thread is None:
                thread = self._threads[ident] = _Thread(ident, entry)
            try:
                frame: FrameType | None = sys._getframe(1)
            except ValueError:
                frame = None  # a C++ thread
            if self._logs_every_synchronize:
                self._deliver_logged(frame)
            handler[0](handler[1], address, frame, thread)
        except Exception as error:
            self._error = self._error or error
        except BaseException as raised:
            # A signal handler (Ctrl-C, a test's time limit) ran in here, where nothing it raises can get out.
            _raise_soon_in_main_thread(raised)
        finally:
            if self._gate is not None:
                self._gate.returned += 1

    def _synchronized(self, kind: Kind, address: int, frame: FrameType | None, thread: _Thread) -> None:
        """A stream or device synchronize has returned: a sync, with the copy that it completes."""
        direction, nbytes, charge = None, None, None
        copy = thread.copy
        if copy is not None:
            if copy.instruction == (_NO_INSTRUCTION if frame is None else (id(frame), id(frame.f_code), frame.f_lasti)):
                direction, nbytes, charge = copy.direction, copy.nbytes, copy.charge
                thread.copy = None
            else:
                self._settle(thread)
        self._report(kind, frame, thread.ident, direction, nbytes, charge, cupti_api.context(address), thread.ticks())

    def _copied(self, direction: Direction | None, address: int, frame: FrameType | None, thread: _Thread) -> None:
        """A copy call that blocks by itself has returned."""
        if direction is None:
            context, _, _, nbytes, kind = cupti_api.runtime_copy_call(address)
            direction = _MEMCPY_KINDS.get(kind)
            if direction is None:
                return  # between device buffers the host does not wait
        else:
            context, _, _, nbytes = cupti_api.copy_call(address)
        self._settle(thread)
        self._report("copy", frame, thread.ident, direction, nbytes, None, context, thread.ticks())

    def _copy_issued(self, direction: Direction | None, address: int, frame: FrameType | None, thread: _Thread) -> None:
        """An asynchronous copy has returned: the first half of a blocking torch copy, or one that waited by itself.

        Which of the two shows only at the thread's next call. Most are the first half, so what is dear is left for
        then: whether the driver knows the host's memory, to which torch returns what it pins only much later.
        """
        if thread.copy is not None:
            self._settle(thread)
        if direction is None:
            context, destination, source, nbytes, kind = cupti_api.runtime_copy_call(address)
            direction = _MEMCPY_KINDS.get(kind)
            if direction is None:
                return
        else:
            context, destination, source, nbytes = cupti_api.copy_call(address)
        may_wait = direction == "D2H" or nbytes > PAGEABLE_H2D_WAITS_ABOVE
        charge = attribution.charge(frame, thread.ident) if may_wait or self._logs_every_synchronize else None
        host = (destination if direction == "D2H" else source) if may_wait else None
        instruction = _NO_INSTRUCTION if frame is None else (id(frame), id(frame.f_code), frame.f_lasti)
        ticks = thread.ticks() if may_wait else _NO_TICKS
        thread.copy = _new(_Copy, (direction, nbytes, instruction, charge, host, context, ticks))

    def _report(
        self,
        kind: Kind,
        frame: FrameType | None,
        ident: int,
        direction: Direction | None,
        nbytes: int | None,
        charge: Charge | None,
        context: int,
        ticks: tuple[int, int],
    ) -> None:
        """Make a sync of a call and hand it to the sink."""
        sink, entry = self._sink, self._gate
        if sink is None or entry is None:
            return
        blocked, began = entry.span(*ticks)
        try:
            device = self._device_of_context[context]
        except KeyError:
            device = self._ask_device(context)
        sink(_new(RawSync, (kind, frame, ident, direction, nbytes, blocked, device, charge, began)))

    def _emit(self, raw: RawSync) -> None:
        sink = self._sink
        if sink is not None:
            sink(raw)

    def _ask_device(self, context: int) -> int | None:
        """Ask CUPTI for the device of a context, once."""
        device = self._cupti.device_of(context) if context and self._cupti is not None else None
        self._device_of_context[context] = device
        return device

    def _settle(self, thread: _Thread) -> None:
        """Report the thread's last copy if it waited by itself: no synchronize of its own followed."""
        copy, thread.copy = thread.copy, None
        if copy is not None and copy.host and self._is_pageable(copy.host):
            direction, nbytes, context = copy.direction, copy.nbytes, copy.context
            self._report("pageable", None, thread.ident, direction, nbytes, copy.charge, context, copy.ticks)

    def _is_pageable(self, pointer: int) -> bool:
        """Tell pageable host memory, which the driver does not know, from pinned."""
        if self._pointer_attribute is None:
            return False
        kind = ctypes.c_uint32()
        return bool(self._pointer_attribute(ctypes.byref(kind), _MEMORY_TYPE_ATTRIBUTE, ctypes.c_uint64(pointer)) != 0)

    def _deliver_logged(self, frame: FrameType | None = None) -> None:
        """Report what the gate logged. `frame` is the innermost frame of the calling thread that made the calls."""
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
            copy = self._copy_completed_by(kind, call.thread)
            if copy is not None:
                self._emit(
                    RawSync(
                        kind,
                        None,
                        call.thread,
                        copy.direction,
                        copy.nbytes,
                        call.blocked_ns,
                        charged=copy.charge,
                        began_ns=call.began_ns,
                    )
                )
                continue
            # Frames of this package above the caller's are skipped when the line is looked for.
            where = (frame or sys._getframe(1)) if call.thread == own else sys._current_frames().get(call.thread)
            self._emit(RawSync(kind, where, call.thread, blocked_ns=call.blocked_ns, began_ns=call.began_ns))

    def _copy_completed_by(self, kind: Kind, ident: int) -> _Copy | None:
        """Take the copy before a logged stream synchronize of the same thread: together they are one blocking copy."""
        thread = self._threads.get(ident)
        if kind != "stream" or thread is None or thread.copy is None or thread.copy.charge is None:
            return None
        copy, thread.copy = thread.copy, None
        return copy


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


def _profiler_is_running() -> bool:
    profiler = sys.modules.get("torch.autograd.profiler")
    if profiler is None:
        return False
    import torch

    return bool(torch._C._autograd._profiler_enabled())


def _under_nsight() -> bool:
    return "NSYS_PROFILING_SESSION_ID" in os.environ or "CUDA_INJECTION64_PATH" in os.environ


def _explain(error: cupti_api.CuptiError) -> str:
    if error.code == cupti_api.MULTIPLE_SUBSCRIBERS:
        return "another tool (Nsight, compute-sanitizer, DCGM) holds CUPTI; run without it to count at the driver"
    if error.code == cupti_api.INSUFFICIENT_PRIVILEGES:
        return "CUPTI is not permitted here; the container needs the permission that NVIDIA calls ERR_NVGPUCTRPERM"
    return str(error)


def _raise_soon_in_main_thread(raised: BaseException) -> None:
    """Raise again what a signal handler raised inside a callback, once the callback has returned."""

    def deliver() -> None:
        time.sleep(0.001)
        if isinstance(raised, KeyboardInterrupt):
            _thread.interrupt_main()
        else:
            main = threading.main_thread().ident
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main or 0), ctypes.py_object(type(raised)))

    _thread.start_new_thread(deliver, ())
