"""A callback for CUPTI that takes no lock: it decides which calls may enter Python and logs the others natively.

Why it exists. A Python callback waits for the GIL. torch's caching allocator frees device memory and waits for events
while it holds its own lock, and a thread that holds the GIL may be waiting for that lock to drop a tensor: a callback
that asks for the GIL there deadlocks the training job. So CUPTI calls a few instructions of machine code instead. They
look the call up in a table and either return, jump to the Python callback, or write one record into a ring buffer and
ask the interpreter (``Py_AddPendingCall``, which takes no GIL) to run :attr:`CallGate.on_pending` soon. They also leave
out what a runtime call does inside the driver, and note when each thread entered and left its call, so that Python need
not be entered twice per call.

The calls of one thread, the main thread, are cheaper still. The gate reads the thread's own Python frames, which nobody
else changes while it is in here, and identifies the place of the call: code objects and instructions of the frames up
to the first one of the user's. A call from a place that Python has seen before is noted, with its times and what it
copies, and Python is not entered: what is left of counting is well below a microsecond, and the notes are read when a
region closes. Out of a training step Python is cold code: entered for a sync, it took ten times as long as in a loop.

The code is in gate.c, compiled into gate_code.py. The thread pointer it uses is what glibc's ``pthread_self()`` and
with it ``threading.get_ident()`` return. Two threads that happen to share one of the 4,096 slots disturb each other's
times while both are in a call; and should one of them enter the driver from a runtime call at that moment, the call is
handed to Python twice.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from pytest_gpusync.machine.machine_code import executable, supported
from pytest_gpusync.recorders.frames import find_layout
from pytest_gpusync.recorders.gate_code import CODE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MULTIPLIER: Final = 0x9E3779B97F4A7C15
_SLOT_BITS: Final = 12
_SLOTS: Final = 1 << _SLOT_BITS

DRIVER: Final = 1
RUNTIME: Final = 2
_IDS_PER_DOMAIN: Final = 1024
_CALIBRATION_ID: Final = _IDS_PER_DOMAIN - 1
"""A callback id that CUPTI does not use; calling the gate with it reads the time-stamp counter."""

IGNORE: Final = 0
PYTHON: Final = 1
PYTHON_ON_EXIT: Final = 2
LOG: Final = 3

_RECORD: Final = struct.Struct("<IBBHQQQQ")
_CALL: Final = struct.Struct("<II11Q")
_CLOCK_INTERVAL_NS: Final = 20_000_000
"""The clocks are compared anew after this long: the rate is then known better, and an error of it has not added up."""

_CAPACITY: Final = 1 << 15
"""Records in the ring, two per call: enough for the syncs between two drains, which happen at least once a step."""

_NOTES: Final = 1 << 12
"""Calls that may be noted; at half of them Python is entered, which reads them."""

_PLACES: Final = 1 << 14
_STOPS: Final = 1 << 12
"""Sizes of the gate's tables, which are kept at most half full."""

_PATIENCE_S: Final = 1.0
"""Longest wait for calls that Python was handed; one that hangs there must not hang whoever closes the gate."""

_FLOOD: Final = 64
"""Calls in one drain that only other threads can have logged."""

_STEP_OUT_S: Final = 0.0001

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
_PENDING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class LoggedCall(NamedTuple):
    """One call that was logged natively, from its entry and exit records."""

    domain: int
    callback_id: int
    thread: int
    blocked_ns: int
    began_ns: int
    """When it was entered, by the clock of ``time.perf_counter_ns()``."""
    context: int
    """The CUcontext it was made in; 0 if it had none."""


NotedCall = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""One call of the noted thread: callback id, domain, place (identifies the frames up to the first of the user's, 0 if
none of them was known to be), identity of the innermost frame and of the instruction it is at (two calls made by the
same one are alike in both; 0 if the thread had no frame), time stamps of entry and exit, CUcontext, and of a copy
destination, source, bytes and cudaMemcpyKind, or of a stream synchronize the stream in the first place, 0 where the
call has none of them, and how many operators autograd had
made on the thread. A plain tuple, for they are many."""


class _Context(ctypes.Structure):
    _fields_ = (
        ("head", ctypes.c_uint64),
        ("mask", ctypes.c_uint64),
        ("ring", ctypes.c_void_p),
        ("python_callback", ctypes.c_void_p),
        ("add_pending_call", ctypes.c_void_p),
        ("pending", ctypes.c_void_p),
        ("table", ctypes.c_uint8 * (2 * _IDS_PER_DOMAIN)),
        ("inside", ctypes.c_uint64 * _SLOTS),
        ("entered", ctypes.c_uint64 * _SLOTS),
        ("left", ctypes.c_uint64 * _SLOTS),
        ("handed", ctypes.c_uint64),
        ("asked", ctypes.c_uint64),
        ("noted_thread", ctypes.c_uint64),
        ("thread_state", ctypes.c_void_p),
        ("operators_made", ctypes.c_void_p),
        ("state_to_frame", ctypes.c_uint64),
        ("through_cframe", ctypes.c_uint64),
        ("cframe_to_frame", ctypes.c_uint64),
        ("frame_to_code", ctypes.c_uint64),
        ("frame_to_previous", ctypes.c_uint64),
        ("frame_to_instruction", ctypes.c_uint64),
        ("noted", ctypes.c_uint64),
        ("taken", ctypes.c_uint64),
        ("capacity", ctypes.c_uint64),
        ("calls", ctypes.c_void_p),
        ("places", ctypes.c_uint64 * _PLACES),
        ("stops", ctypes.c_uint64 * _STOPS),
    )


def slot_of(thread: int) -> int:
    """Return where the gate notes the times of a thread."""
    return (thread * _MULTIPLIER & 0xFFFFFFFFFFFFFFFF) >> 64 - _SLOT_BITS


class CallGate:
    """The gate, its table and its log. Its memory is never released: a late call into it must find code."""

    _alive: ClassVar[list[CallGate]] = []

    def __init__(self, callback: Callable[[int, int, int, int], None], on_pending: Callable[[], None]) -> None:
        """Build a gate whose table ignores everything.

        Args:
            callback: receives (user data, domain, callback id, address of the call's data); it takes the GIL, and
                adds one to :attr:`returned` at its end.
            on_pending: called on the main thread soon after calls were logged.

        Raises:
            OSError: the platform is not supported, or it does not let a process make executable memory.
        """
        if not supported():
            raise OSError("the native call gate needs Linux on x86-64")
        self.returned = 0
        """Calls that Python was handed and has done with: `callback` adds one as the last thing it does."""
        self._python_callback = CALLBACK(callback)
        self._on_pending = on_pending
        self._pending = _PENDING(self._run_pending)
        self._ring = (ctypes.c_char * (_RECORD.size * _CAPACITY))()
        self._calls = (ctypes.c_char * (_CALL.size * _NOTES))()
        self._context = _Context(
            head=0,
            mask=_CAPACITY - 1,
            ring=ctypes.addressof(self._ring),
            python_callback=_address(self._python_callback),
            add_pending_call=_address(ctypes.pythonapi.Py_AddPendingCall),
            pending=_address(self._pending),
            thread_state=_address(ctypes.pythonapi.PyGILState_GetThisThreadState),
            capacity=_NOTES,
            calls=ctypes.addressof(self._calls),
        )
        # Read at every step and every range of a profile, so without a function of Python's around them.
        self.logged = ctypes.c_uint64.from_buffer(self._context, _Context.head.offset)
        """Its value is how many records were logged in the gate's life."""
        self.noted = ctypes.c_uint64.from_buffer(self._context, _Context.noted.offset)
        """Its value is how many calls were noted in the gate's life."""
        self._frames_are_readable = self._find_frames()
        self._known_places = _Table(self._context.places, _PLACES)
        self._known_stops = _Table(self._context.stops, _STOPS)
        self._entered_at = self._context.entered
        self._left_at = self._context.left
        self.user_data = ctypes.addressof(self._context)
        self._code = executable(CODE)
        self.function = CALLBACK(self._code)
        self.drained = 0
        """Records that were drained."""
        self._drain_lock = threading.Lock()
        self._entered: dict[int, tuple[int, int, int]] = {}
        """Logged calls that were entered and not left, by thread: (domain, id, time stamp)."""
        self._last_drained = 0
        self._rests_until = 0
        """Time by ``perf_counter_ns()`` before which the interpreter asks in vain."""
        self.lost = 0
        """Records overwritten before they were drained."""
        self._actions: dict[int, int] = {}
        """What was chosen for calls, by their index in the table."""
        self._is_open = True
        self.set_action(DRIVER, _CALIBRATION_ID, LOG)
        self._first_clocks = self._clocks = self._read_clocks()
        """Time-stamp counter and ``perf_counter_ns()`` at one moment: when the gate was made, and lately."""
        time.sleep(0.005)
        self._ns_per_tick = 0.0
        self._compare_clocks()
        CallGate._alive.append(self)

    def set_action(self, domain: int, callback_id: int, action: int, words: int = 0) -> None:
        """Choose what happens to a call: IGNORE, PYTHON, PYTHON_ON_EXIT or LOG.

        Args:
            domain: DRIVER or RUNTIME.
            callback_id: CUPTI's number of the call.
            action: one of the four.
            words: parameters that are noted: of a copy destination, source and bytes (3), its cudaMemcpyKind too (4);
                of a stream synchronize the stream (1).
        """
        if not 0 <= callback_id < _IDS_PER_DOMAIN:
            raise ValueError(f"callback id {callback_id} is outside the table")
        index = (domain - 1) * _IDS_PER_DOMAIN + callback_id
        entry = action | words << 4
        self._actions[index] = entry
        if self._is_open or callback_id == _CALIBRATION_ID:
            self._context.table[index] = entry

    def open(self) -> None:
        """Do with each call what was chosen for it. A new gate is open."""
        self._is_open = True
        for index, action in self._actions.items():
            self._context.table[index] = action

    def close(self) -> None:
        """Ignore every call from now on, and wait until those that Python was handed have left it.

        CUPTI does not wait for them: a thread that comes back from a callback after the subscription ended crashes
        the process. That was seen on an H200 with CUPTI 13.0 where regions closed beside busy threads.
        """
        self._is_open = False
        for index in self._actions:
            if index != (DRIVER - 1) * _IDS_PER_DOMAIN + _CALIBRATION_ID:
                self._context.table[index] = IGNORE
        until = time.monotonic() + _PATIENCE_S
        while self._context.handed > self.returned and time.monotonic() < until:
            time.sleep(_STEP_OUT_S)
        if len(sys._current_frames()) > 1:
            # From the callback's last instruction back into CUPTI: a few microseconds, of which nothing tells.
            time.sleep(_STEP_OUT_S)

    @property
    def counts_operators(self) -> bool:
        """Whether noted calls tell how many operators autograd had made."""
        return self._context.operators_made is not None

    def count_operators(self, function: int) -> None:
        """Ask the function at this address, in each noted call, how many operators autograd has made on the thread."""
        self._context.operators_made = function or None

    def note_calls_of(self, thread: int) -> bool:
        """Note the calls of this thread instead of handing over each; False where its frames cannot be read."""
        self._context.taken = self._context.noted
        self._context.noted_thread = thread if self._frames_are_readable else 0
        return self._frames_are_readable

    def note_no_calls(self) -> None:
        """Hand over each call again; those that are noted can still be taken."""
        self._context.noted_thread = 0

    def take(self) -> Iterator[tuple[int, NotedCall]]:
        """Yield the noted calls, each with how many were noted before it; keep others out meanwhile."""
        context, calls, mask = self._context, self._calls, _NOTES - 1
        while (sequence := context.taken) != self.noted.value:
            values = _CALL.unpack_from(calls, (sequence & mask) * _CALL.size)
            context.taken = sequence + 1
            yield sequence, values

    def knows(self, place: int, code: int) -> bool:
        """From now on note calls from `place` without entering Python, and let places end at `code`.

        Called on the noted thread. The code objects of the place's frames must be kept: another one at the same address
        would be taken for them.

        Args:
            place: as a noted call has it, or 0.
            code: identity of the user's code object that the place leads to.

        Returns:
            False if there is no room; :meth:`forget_places` makes some.
        """
        return self._known_stops.add(code) and (place == 0 or self._known_places.add(place))

    def forget_places(self) -> None:
        """Hand the next call from each place to Python again; on the noted thread, or while the gate is closed."""
        self._known_places.clear()
        self._known_stops.clear()

    def _find_frames(self) -> bool:
        layout = find_layout()
        if layout is None:
            return False
        context = self._context
        context.state_to_frame = layout.state_to_frame
        context.through_cframe = layout.cframe_to_frame is not None
        context.cframe_to_frame = layout.cframe_to_frame or 0
        context.frame_to_code = layout.code
        context.frame_to_previous = layout.previous
        context.frame_to_instruction = layout.instruction
        return True

    def ticks(self, slot: int) -> tuple[int, int]:
        """Return the time stamps of when the thread of `slot` entered and left the call it was in last."""
        return self._entered_at[slot], self._left_at[slot]

    def span(self, entered: int, left: int) -> tuple[int, int]:
        """Return how long a call took, in nanoseconds, and when it began, by ``time.perf_counter_ns()``.

        Args:
            entered: time stamp of its entry.
            left: time stamp of its exit.
        """
        then, now = self._clocks
        return int((left - entered) * self._ns_per_tick), now + int((entered - then) * self._ns_per_tick)

    def is_in_call(self, slot: int) -> bool:
        """Tell whether the thread of `slot` is inside a call."""
        return bool(self._entered_at[slot] > self._left_at[slot])

    def keep_time(self) -> None:
        """Compare the clocks, if the last time is a while ago; call it now and then, as at the ends of steps."""
        if time.perf_counter_ns() - self._clocks[1] > _CLOCK_INTERVAL_NS:
            self._compare_clocks()

    def drain(self) -> list[LoggedCall]:
        """Return the calls logged since the last drain; an empty list while another thread is draining."""
        self._context.asked = 0  # the interpreter may have had no room to be asked
        # A pending call may run inside a drain on the same thread: never wait here.
        if self._context.head == self.drained or not self._drain_lock.acquire(blocking=False):
            return []
        try:
            calls = self._drain()
            self._last_drained = len(calls)
            return calls
        finally:
            self._drain_lock.release()

    def _drain(self) -> list[LoggedCall]:
        calls: list[LoggedCall] = []
        head = self._context.head
        if head - self.drained > _CAPACITY:
            self.lost += head - self.drained - _CAPACITY
            self.drained = head - _CAPACITY
            self._entered.clear()
        while self.drained < head:
            offset = (self.drained & (_CAPACITY - 1)) * _RECORD.size
            callback_id, site, domain, _, thread, ticks, context, ticket = _RECORD.unpack_from(self._ring, offset)
            if ticket != self.drained + 1:
                break  # the thread that took this slot has not finished writing it
            self.drained += 1
            if callback_id == _CALIBRATION_ID:
                continue
            if site == 0:
                self._entered.setdefault(thread, (domain, callback_id, ticks))
                continue
            outer = self._entered.get(thread)
            # An exit without entry began before the recorder did; an inner call's exit is not the outer's.
            if outer is not None and outer[:2] == (domain, callback_id):
                del self._entered[thread]
                calls.append(LoggedCall(domain, callback_id, thread, *self.span(outer[2], ticks), context))
        return calls

    def _run_pending(self, _: int | None) -> int:
        self._context.asked = 0  # first: what is logged from now on asks anew
        began = time.perf_counter_ns()
        if began < self._rests_until:
            return 0
        try:
            self._on_pending()
        except BaseException:  # raising here would surface at an arbitrary line of the user's code
            return 0
        finally:
            # Half of its time at least is the main thread's own, however fast the other threads log. Its own calls
            # come one at a time, and are never late: their line is looked for on the stack.
            ended = time.perf_counter_ns()
            self._rests_until = 2 * ended - began if self._last_drained > _FLOOD else 0
        return 0

    def _compare_clocks(self) -> None:
        """Tell anew how the time-stamp counter, which runs at one rate on every core, and ``perf_counter_ns()`` go."""
        self._clocks = self._read_clocks()
        ticks, nanoseconds = (now - first for now, first in zip(self._clocks, self._first_clocks, strict=True))
        self._ns_per_tick = nanoseconds / max(1, ticks)

    def _read_clocks(self) -> tuple[int, int]:
        """Return (time-stamp counter, nanoseconds) read at the same moment."""
        site = ctypes.c_int(0)
        before = time.perf_counter_ns()
        self.function(self.user_data, DRIVER, _CALIBRATION_ID, ctypes.addressof(site))
        after = time.perf_counter_ns()
        return self._entered_at[slot_of(threading.get_ident())], (before + after) // 2


class _Table:
    """A hash table of the context, of numbers that are not 0, as gate.c looks them up."""

    def __init__(self, slots: ctypes.Array[ctypes.c_uint64], size: int) -> None:
        self._slots = slots
        self._size = size
        self._used = 0

    def add(self, value: int) -> bool:
        """Add a value; False if the table is half full."""
        slot = (value * _MULTIPLIER & 0xFFFFFFFFFFFFFFFF) >> 32
        while (found := self._slots[slot & self._size - 1]) not in (0, value):
            slot += 1
        if found == value:
            return True
        if self._used >= self._size // 2:
            return False
        self._slots[slot & self._size - 1] = value
        self._used += 1
        return True

    def clear(self) -> None:
        """Remove all."""
        ctypes.memset(self._slots, 0, ctypes.sizeof(self._slots))
        self._used = 0


def _address(function: object) -> int:
    value = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert value is not None
    return value
