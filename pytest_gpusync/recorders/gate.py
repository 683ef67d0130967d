"""A callback for CUPTI that takes no lock: it decides which calls may enter Python and records the others natively.

Why it exists. A Python callback waits for the GIL. torch's caching allocator frees device memory and waits for events
while it holds its own lock, and a thread that holds the GIL may be waiting for that lock to drop a tensor: a callback
that asks for the GIL there deadlocks the training job. So CUPTI calls a function of a native library instead, gate.c.
It looks the call up in a table and either returns, calls the Python callback, or writes one record into a ring buffer
and asks the interpreter (``Py_AddPendingCall``, which takes no GIL) to run :attr:`CallGate.on_pending` soon. It also
leaves out what a runtime call does inside the driver, and notes when each thread entered and left its call, so that
Python need not be entered twice per call.

The calls of one thread, the main thread, are cheaper still. The gate reads the thread's own Python frames, which nobody
else changes while it is in here, and identifies the place of the call: code objects and instructions of the frames up
to the first one of the user's. A call from a place that Python has seen before is noted, with its times and what it
copies, and Python is not entered: what is left of counting is well below a microsecond, and the notes are read when a
region closes. Out of a training step Python is cold code: entered for a sync, it took ten times as long as in a loop.

Threads are told apart by what ``threading.get_ident()`` returns, and times are those of ``time.perf_counter_ns()``. Two
threads that happen to share one of the 4,096 slots disturb each other's times while both are in a call; and should one
of them enter the driver from a runtime call at that moment, the call is counted twice.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from pytest_gpusync.machine import native_libraries
from pytest_gpusync.recorders.frames import Layout, find_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DRIVER: Final = 1
RUNTIME: Final = 2
_IDS_PER_DOMAIN: Final = 1024

IGNORE: Final = 0
PYTHON: Final = 1
PYTHON_ON_EXIT: Final = 2
LOG: Final = 3

_LOGGED: Final = struct.Struct("<IHHQQQ")
_NOTE: Final = struct.Struct("<II12Q")
_AT_ONCE: Final = 1 << 10
"""Records or notes that are copied out of the gate by one call."""

_PATIENCE_S: Final = 1.0
"""Longest wait for threads that are in the gate; one that hangs there must not hang whoever closes the gate."""

_FLOOD: Final = 64
"""Calls in one drain that only other threads can have logged."""

_POLL_S: Final = 0.0001

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
_PENDING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_POINTER, _NUMBER, _WORD = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
_WORDS = ctypes.POINTER(ctypes.c_uint64)
_FUNCTIONS: Final = {
    "gate_new": (_POINTER, _POINTER, _POINTER, _POINTER, _POINTER),
    "gate_set_action": (None, _POINTER, _NUMBER, _NUMBER, _NUMBER, _NUMBER),
    "gate_open": (None, _POINTER),
    "gate_close": (None, _POINTER),
    "gate_inside": (_WORD, _POINTER),
    "gate_note_thread": (None, _POINTER, _WORD, _POINTER),
    "gate_count_operators": (None, _POINTER, _POINTER),
    "gate_learn_place": (ctypes.c_int, _POINTER, _WORD, _WORD),
    "gate_forget_places": (None, _POINTER),
    "gate_take_notes": (_NUMBER, _POINTER, _WORD, _POINTER, _NUMBER),
    "gate_let_ask": (None, _POINTER),
    "gate_read_log": (_NUMBER, _POINTER, _WORDS, _POINTER, _NUMBER),
    "gate_times": (None, _POINTER, _WORD, _WORDS, _WORDS),
}
"""The functions of gate.c, which describes them: result and arguments."""


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


NotedCall = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int]
"""One call of the noted thread: callback id, domain, place (identifies the frames up to the first of the user's, 0 if
none of them was known to be), identity of the innermost frame and of the instruction it is at (two calls made by the
same one are alike in both; 0 if the thread had no frame), times of entry and exit in nanoseconds, CUcontext, and of a
copy destination, source, bytes and cudaMemcpyKind, or of a stream synchronize the stream in the first place, 0 where
the call has none of them; how many operators autograd had made on the thread, and how many calls were noted before it.
A plain tuple, for they are many."""


class _Layout(ctypes.Structure):
    """``struct layout`` of gate.c."""

    _fields_ = (
        ("state_to_frame", _WORD),
        ("has_cframe", _WORD),
        ("cframe_to_frame", _WORD),
        ("code", _WORD),
        ("previous", _WORD),
        ("instruction", _WORD),
    )


def library() -> ctypes.PyDLL:
    """Return the native library, with the types of its functions.

    Raises:
        NativeUnavailable: there is none here.
    """
    found = native_libraries.load("recorders/gate")
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def is_available() -> bool:
    """Tell whether the native library is there."""
    try:
        library()
    except native_libraries.NativeUnavailable:
        return False
    return True


class CallGate:
    """The gate, its table and its log. Its memory is never released: a late call must find it."""

    _alive: ClassVar[list[CallGate]] = []

    def __init__(self, callback: Callable[[int, int, int, int], None], on_pending: Callable[[], None]) -> None:
        """Build a gate whose table ignores everything.

        Args:
            callback: receives (user data, domain, callback id, address of the call's data); it takes the GIL.
            on_pending: called on the main thread soon after calls were logged.

        Raises:
            NativeUnavailable: the native library is missing.
        """
        self._library = library()
        self._python_callback = CALLBACK(callback)
        self._on_pending = on_pending
        self._pending = _PENDING(self._run_pending)
        self.user_data: int = self._library.gate_new(
            ctypes.cast(self._python_callback, _POINTER),
            ctypes.cast(ctypes.pythonapi.Py_AddPendingCall, _POINTER),
            ctypes.cast(self._pending, _POINTER),
            ctypes.cast(ctypes.pythonapi.PyGILState_GetThisThreadState, _POINTER),
        )
        if not self.user_data:
            raise MemoryError
        self.function = CALLBACK(ctypes.cast(self._library.gate_call, _POINTER).value or 0)
        """What CUPTI calls, with :attr:`user_data`."""
        # Read at every step and every range of a profile, so without a function of Python's around them.
        self.logged, self.noted, self.returned = (_WORD.from_address(self.user_data + 8 * word) for word in range(3))
        """Their values are how many records were logged, how many calls were noted, and how many Python was entered for
        and has returned from, in the gate's life."""
        self._layout = find_layout()
        self._notes = ctypes.create_string_buffer(_NOTE.size * _AT_ONCE)
        self._copied: deque[NotedCall] = deque()
        """Notes that were copied out of the gate and not handed on yet."""
        self._next_note = 0
        self._records = ctypes.create_string_buffer(_LOGGED.size * _AT_ONCE)
        self._next = _WORD(0)
        self._drain_lock = threading.Lock()
        self._entered: dict[int, tuple[int, int, int]] = {}
        """Logged calls that were entered and not left, by thread: (domain, id, time)."""
        self._last_drained = 0
        self._rests_until = 0
        """Time by ``perf_counter_ns()`` before which the interpreter asks in vain."""
        self.lost = 0
        """Records overwritten before they were drained."""
        self.counts_operators = False
        """Whether noted calls tell how many operators autograd had made."""
        self.is_open = False
        CallGate._alive.append(self)
        self.open()

    @property
    def drained(self) -> int:
        """How many records were drained or lost."""
        return self._next.value

    @property
    def reads_frames(self) -> bool:
        """Whether the layout of this interpreter's frames is known, so that calls can be noted."""
        return self._layout is not None

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
        self._library.gate_set_action(self.user_data, domain, callback_id, action, words)

    def open(self) -> None:
        """Do with each call what was chosen for it. A new gate is open."""
        self.is_open = True
        self._library.gate_open(self.user_data)

    def close(self) -> None:
        """Ignore every call from now on, and wait until those that are in the gate have left it.

        CUPTI does not wait for them: a thread that comes back from a callback after the subscription ended crashes
        the process. That was seen on an H200 with CUPTI 13.0 where regions closed beside busy threads.
        """
        self.is_open = False
        self._library.gate_close(self.user_data)
        until = time.monotonic() + _PATIENCE_S
        while self._library.gate_inside(self.user_data) and time.monotonic() < until:
            time.sleep(_POLL_S)

    def count_operators(self, function: int) -> None:
        """Ask the function at this address, in each noted call, how many operators autograd has made on the thread."""
        self._library.gate_count_operators(self.user_data, function or None)
        self.counts_operators = bool(function)

    def note_calls_of(self, thread: int) -> bool:
        """Note the calls of this thread instead of handing over each; False where its frames cannot be read."""
        self._copied.clear()
        self._next_note = self.noted.value
        packed = None if self._layout is None else ctypes.byref(_packed(self._layout))
        self._library.gate_note_thread(self.user_data, thread, packed)
        return packed is not None

    def note_no_calls(self) -> None:
        """Hand over each call again; those that are noted can still be taken."""
        self._library.gate_note_thread(self.user_data, 0, None)

    def take(self) -> Iterator[NotedCall]:
        """Yield the noted calls, oldest first; keep others out meanwhile."""
        copied, notes = self._copied, self._notes
        while True:
            while copied:
                note = copied.popleft()
                # A signal handler may have read them all while they were being copied here.
                if note[-1] >= self._next_note:
                    self._next_note = note[-1] + 1
                    yield note
            count = self._library.gate_take_notes(self.user_data, self._next_note, notes, _AT_ONCE)
            if not count:
                return
            copied.extend(_NOTE.iter_unpack(memoryview(notes)[: count * _NOTE.size]))

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
        return bool(self._library.gate_learn_place(self.user_data, place, code))

    def forget_places(self) -> None:
        """Hand the next call from each place to Python again; on the noted thread, or while the gate is closed."""
        self._library.gate_forget_places(self.user_data)

    def times(self, thread: int) -> tuple[int, int]:
        """Return when a thread entered and left the call that it was in last, by ``time.perf_counter_ns()``."""
        entered, left = _WORD(), _WORD()
        self._library.gate_times(self.user_data, thread, ctypes.byref(entered), ctypes.byref(left))
        return entered.value, left.value

    def is_in_call(self, thread: int) -> bool:
        """Tell whether a thread is inside a call."""
        entered, left = self.times(thread)
        return entered > left

    def drain(self) -> list[LoggedCall]:
        """Return the calls logged since the last drain; an empty list while another thread is draining."""
        self._library.gate_let_ask(self.user_data)  # the interpreter may have had no room to be asked
        # A pending call may run inside a drain on the same thread: never wait here.
        if self.logged.value == self.drained or not self._drain_lock.acquire(blocking=False):
            return []
        try:
            calls = self._drain()
            self._last_drained = len(calls)
            return calls
        finally:
            self._drain_lock.release()

    def _drain(self) -> list[LoggedCall]:
        calls: list[LoggedCall] = []
        count = _AT_ONCE
        while count == _AT_ONCE:
            first = self._next.value
            count = self._library.gate_read_log(self.user_data, ctypes.byref(self._next), self._records, _AT_ONCE)
            lost = self._next.value - first - count
            if lost:
                self.lost += lost
                self._entered.clear()
            for callback_id, domain, site, thread, moment, context in _LOGGED.iter_unpack(
                memoryview(self._records)[: count * _LOGGED.size]
            ):
                if site == 0:
                    self._entered.setdefault(thread, (domain, callback_id, moment))
                    continue
                outer = self._entered.get(thread)
                # An exit without entry began before the recorder did; an inner call's exit is not the outer's.
                if outer is not None and outer[:2] == (domain, callback_id):
                    del self._entered[thread]
                    calls.append(LoggedCall(domain, callback_id, thread, moment - outer[2], outer[2], context))
        return calls

    def _run_pending(self, _: int | None) -> int:
        self._library.gate_let_ask(self.user_data)  # first: what is logged from now on asks anew
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


def _packed(layout: Layout) -> _Layout:
    cframe = layout.cframe_to_frame
    return _Layout(
        layout.state_to_frame, cframe is not None, cframe or 0, layout.code, layout.previous, layout.instruction
    )
