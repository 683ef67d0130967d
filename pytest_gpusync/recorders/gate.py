"""A callback for CUPTI that takes no lock: it decides which calls may enter Python and logs the others natively.

Why it exists. A Python callback waits for the GIL. torch's caching allocator frees device memory and waits for events
while it holds its own lock, and a thread that holds the GIL may be waiting for that lock to drop a tensor: a callback
that asks for the GIL there deadlocks the training job. So CUPTI calls a few instructions of machine code instead. They
look the call up in a table and either return, jump to the Python callback, or write one record into a ring buffer and
ask the interpreter (``Py_AddPendingCall``, which takes no GIL) to run :attr:`CallGate.on_pending` soon. They also leave
out what a runtime call does inside the driver, and note when each thread entered and left its call, so that Python need
not be entered twice per call.

The code, for x86-64 and the System V calling convention; rdi is the context below, esi the domain, edx the callback
id, rcx points to the call's data, whose first field, the site, is 0 on entry and 1 on exit::

    index = (domain - 1) << 10 | id;  if index >= 2048: return
    action = context.table[index];    if action == IGNORE: return
    thread = thread pointer;          slot = highest 12 bits of (thread * multiplier)
    domain driver:  if context.inside[slot] == thread: return
    domain runtime: on entry context.inside[slot] = thread, on exit clear it
    on entry context.entered[slot] = time-stamp counter, on exit context.left[slot] = time-stamp counter
    PYTHON_ON_EXIT: return on entry
    LOG: ticket = atomic increment of context.head
         context.ring[ticket & mask] = {id, domain << 8 | site, thread, time-stamp counter, ticket + 1}
         on entry return; context.asked = 1, and if it was 1 before: return
         jump to Py_AddPendingCall(context.pending, NULL)
    atomic increment of context.handed
    jump to context.python_callback

The thread pointer is what glibc's ``pthread_self()`` and with it ``threading.get_ident()`` return. Two threads that
happen to share one of the 4,096 slots disturb each other's times while both are in a call; and should one of them enter
the driver from a runtime call at that moment, the call is handed to Python twice.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from pytest_gpusync.machine_code import executable, supported

if TYPE_CHECKING:
    from collections.abc import Callable

_MACHINE_CODE: Final = bytes.fromhex(
    "8d46ffc1e00a01d03d000800000f83f40000000fb644073085c00f84e7000000448b01644c8b0c2510000000"
    "49ba157c4a7fb979379e4d0fafd149c1ea344e8d14d783fe02740f4d398a300800000f84b3000000eb224585"
    "c075094d898a30080000eb144d398a30080000750b49c782300800000000000050520f3148c1e2204809c249"
    "89d35a584585c0750e4d899a3088000083f802746eeb074d899a3008010083f803740bf048ff8730880100ff"
    "6718b801000000f0480fc1074989c24823470848c1e005480347108910c1e6084409c68970044c8948084c89"
    "581049ffc24c8950184585c0741db801000000488787388801004885c0750c488b4720488b7f2831f6ffe0c3"
)
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

_RECORD: Final = struct.Struct("<IIQQQ")
_CLOCK_INTERVAL_NS: Final = 20_000_000
"""The clocks are compared anew after this long: the rate is then known better, and an error of it has not added up."""

_CAPACITY: Final = 1 << 15
"""Records in the ring, two per call: enough for the syncs between two drains, which happen at least once a step."""

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
        self._context = _Context(
            head=0,
            mask=_CAPACITY - 1,
            ring=ctypes.addressof(self._ring),
            python_callback=_address(self._python_callback),
            add_pending_call=_address(ctypes.pythonapi.Py_AddPendingCall),
            pending=_address(self._pending),
        )
        self._entered_at = self._context.entered
        self._left_at = self._context.left
        self.user_data = ctypes.addressof(self._context)
        self._code = executable(_MACHINE_CODE)
        self.function = CALLBACK(self._code)
        self._drained = 0
        self._drain_lock = threading.Lock()
        self._entered: dict[int, tuple[int, int, int]] = {}
        """Logged calls that were entered and not left, by thread: (domain, id, time stamp)."""
        self._last_drained = 0
        self._rests_until = 0
        """Time by ``perf_counter_ns()`` before which the interpreter asks in vain."""
        self.lost = 0
        """Records overwritten before they were drained."""
        self._actions = bytearray(2 * _IDS_PER_DOMAIN)
        self._is_open = True
        self.set_action(DRIVER, _CALIBRATION_ID, LOG)
        self._first_clocks = self._clocks = self._read_clocks()
        """Time-stamp counter and ``perf_counter_ns()`` at one moment: when the gate was made, and lately."""
        time.sleep(0.005)
        self._ns_per_tick = 0.0
        self._compare_clocks()
        CallGate._alive.append(self)

    def set_action(self, domain: int, callback_id: int, action: int) -> None:
        """Choose what happens to a call: IGNORE, PYTHON, PYTHON_ON_EXIT or LOG."""
        if not 0 <= callback_id < _IDS_PER_DOMAIN:
            raise ValueError(f"callback id {callback_id} is outside the table")
        index = (domain - 1) * _IDS_PER_DOMAIN + callback_id
        self._actions[index] = action
        if self._is_open or callback_id == _CALIBRATION_ID:
            self._context.table[index] = action

    def open(self) -> None:
        """Do with each call what was chosen for it. A new gate is open."""
        self._is_open = True
        for index, action in enumerate(self._actions):
            if action:
                self._context.table[index] = action

    def close(self) -> None:
        """Ignore every call from now on, and wait until those that Python was handed have left it.

        CUPTI does not wait for them: a thread that comes back from a callback after the subscription ended crashes
        the process. That was seen on an H200 with CUPTI 13.0 where regions closed beside busy threads.
        """
        self._is_open = False
        for index, action in enumerate(self._actions):
            if action and index != (DRIVER - 1) * _IDS_PER_DOMAIN + _CALIBRATION_ID:
                self._context.table[index] = IGNORE
        until = time.monotonic() + _PATIENCE_S
        while self._context.handed > self.returned and time.monotonic() < until:
            time.sleep(_STEP_OUT_S)
        if len(sys._current_frames()) > 1:
            # From the callback's last instruction back into CUPTI: a few microseconds, of which nothing tells.
            time.sleep(_STEP_OUT_S)

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
        if self._context.head == self._drained or not self._drain_lock.acquire(blocking=False):
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
        if head - self._drained > _CAPACITY:
            self.lost += head - self._drained - _CAPACITY
            self._drained = head - _CAPACITY
            self._entered.clear()
        while self._drained < head:
            offset = (self._drained & (_CAPACITY - 1)) * _RECORD.size
            callback_id, domain_site, thread, ticks, ticket = _RECORD.unpack_from(self._ring, offset)
            if ticket != self._drained + 1:
                break  # the thread that took this slot has not finished writing it
            self._drained += 1
            domain, site = domain_site >> 8, domain_site & 0xFF
            if callback_id == _CALIBRATION_ID:
                continue
            if site == 0:
                self._entered.setdefault(thread, (domain, callback_id, ticks))
                continue
            outer = self._entered.get(thread)
            # An exit without entry began before the recorder did; an inner call's exit is not the outer's.
            if outer is not None and outer[:2] == (domain, callback_id):
                del self._entered[thread]
                calls.append(LoggedCall(domain, callback_id, thread, *self.span(outer[2], ticks)))
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


def _address(function: object) -> int:
    value = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert value is not None
    return value
