"""A callback for CUPTI that takes no lock: it decides which calls may enter Python and logs the others natively.

Why it exists. A Python callback waits for the GIL. torch's caching allocator frees device memory and waits for events
while it holds its own lock, and a thread that holds the GIL may be waiting for that lock to drop a tensor: a callback
that asks for the GIL there deadlocks the training job. So CUPTI calls a few instructions of machine code instead.
They look the call up in a table and either return, jump to the Python callback, or write one record into a ring buffer
and ask the interpreter (``Py_AddPendingCall``, which takes no GIL) to run :attr:`CallGate.on_pending` soon.

The code, for x86-64 and the System V calling convention; rdi is the context below, esi the domain, edx the callback id,
rcx points to the call's data, whose first field is 0 on entry and 1 on exit::

    index = (domain - 1) << 10 | id;  if index >= 2048: return
    action = context.table[index];    site = *data
    action 0: return
    action 1: jump to context.python_callback
    action 2: the same on entry, return on exit
    action 3: ticket = atomic increment of context.head
              context.ring[ticket & mask] = {id, domain << 8 | site, thread pointer, time-stamp counter, ticket + 1}
              on exit: jump to Py_AddPendingCall(context.pending, NULL)

The thread pointer is what glibc's ``pthread_self()`` and with it ``threading.get_ident()`` return.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_MACHINE_CODE: Final = bytes.fromhex(
    "89f0ffc8c1e00a01d03d0008000073750fb6440730448b0183f8017268740a83f80275084585c0755cff6718"
    "41b901000000f04c0fc10f4d89ca49ffc24c234f0849c1e1054c034f10418911c1e6084409c641897104"
    "64488b042510000000498941080f3148c1e2204809d0498941104d8951184585c0740c"
    "488b4720488b7f2831f6ffe0c3"
)

DRIVER: Final = 1
RUNTIME: Final = 2
_IDS_PER_DOMAIN: Final = 1024
_CALIBRATION_ID: Final = _IDS_PER_DOMAIN - 1
"""A callback id that CUPTI does not use; calling the gate with it reads the time-stamp counter."""

IGNORE: Final = 0
PYTHON: Final = 1
PYTHON_ON_ENTRY: Final = 2
LOG: Final = 3

_RECORD: Final = struct.Struct("<IIQQQ")
_CAPACITY: Final = 1 << 15
"""Records in the ring, two per call: enough for the syncs between two drains, which happen at least once a step."""

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
_PENDING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class LoggedCall(NamedTuple):
    """One call that was logged natively, from its entry and exit records."""

    domain: int
    callback_id: int
    thread: int
    blocked_ns: int


class _Context(ctypes.Structure):
    _fields_ = (
        ("head", ctypes.c_uint64),
        ("mask", ctypes.c_uint64),
        ("ring", ctypes.c_void_p),
        ("python_callback", ctypes.c_void_p),
        ("add_pending_call", ctypes.c_void_p),
        ("pending", ctypes.c_void_p),
        ("table", ctypes.c_uint8 * (2 * _IDS_PER_DOMAIN)),
    )


def supported() -> bool:
    """Tell whether the machine code fits this platform."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and struct.calcsize("P") == 8


class CallGate:
    """The gate, its table and its log. Its memory is never released: a late call into it must find code."""

    _alive: ClassVar[list[CallGate]] = []

    def __init__(self, callback: Callable[[int, int, int, int], None], on_pending: Callable[[], None]) -> None:
        """Build a gate whose table ignores everything.

        Args:
            callback: receives (user data, domain, callback id, address of the call's data); it takes the GIL.
            on_pending: called on the main thread soon after calls were logged.

        Raises:
            OSError: the platform is not supported, or it does not let a process make executable memory.
        """
        if not supported():
            raise OSError("the native call gate needs Linux on x86-64")
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
        self.user_data = ctypes.addressof(self._context)
        self._code = _executable(_MACHINE_CODE)
        self.function = CALLBACK(self._code)
        self._drained = 0
        self._drain_lock = threading.Lock()
        self._entered: dict[int, list[tuple[int, int, int]]] = {}
        """Calls entered and not left, by thread: (domain, id, time stamp); a driver's nests in a runtime's."""
        self.lost = 0
        """Records overwritten before they were drained."""
        self.set_action(DRIVER, _CALIBRATION_ID, LOG)
        self._first_reading = self._read_clocks()
        CallGate._alive.append(self)

    def set_action(self, domain: int, callback_id: int, action: int) -> None:
        """Choose what happens to a call: IGNORE, PYTHON, PYTHON_ON_ENTRY or LOG."""
        if not 0 <= callback_id < _IDS_PER_DOMAIN:
            raise ValueError(f"callback id {callback_id} is outside the table")
        self._context.table[(domain - 1) * _IDS_PER_DOMAIN + callback_id] = action

    def drain(self) -> list[LoggedCall]:
        """Return the calls logged since the last drain; an empty list while another thread is draining."""
        # A pending call may run inside a drain on the same thread: never wait here.
        if self._context.head == self._drained or not self._drain_lock.acquire(blocking=False):
            return []
        try:
            return self._drain()
        finally:
            self._drain_lock.release()

    def _drain(self) -> list[LoggedCall]:
        calls: list[LoggedCall] = []
        ns_per_tick = 0.0
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
            stack = self._entered.setdefault(thread, [])
            if site == 0:
                stack.append((domain, callback_id, ticks))
                continue
            if not stack:
                continue  # entered before the recorder was started
            _, _, began = stack.pop()
            if not stack:
                del self._entered[thread]
                ns_per_tick = ns_per_tick or self._ns_per_tick()
                calls.append(LoggedCall(domain, callback_id, thread, int((ticks - began) * ns_per_tick)))
        return calls

    def _run_pending(self, _: int | None) -> int:
        try:
            self._on_pending()
        except BaseException:  # raising here would surface at an arbitrary line of the user's code
            return 0
        return 0

    def _read_clocks(self) -> tuple[int, int]:
        """Return (time-stamp counter, nanoseconds) read at the same moment."""
        site = ctypes.c_int(0)
        slot = self._context.head & (_CAPACITY - 1)
        self.function(self.user_data, DRIVER, _CALIBRATION_ID, ctypes.addressof(site))
        ticks = _RECORD.unpack_from(self._ring, slot * _RECORD.size)[3]
        return ticks, time.perf_counter_ns()

    def _ns_per_tick(self) -> float:
        ticks, now = self._read_clocks()
        return (now - self._first_reading[1]) / max(1, ticks - self._first_reading[0])


def _address(function: object) -> int:
    value = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert value is not None
    return value


def _executable(code: bytes) -> int:
    """Copy `code` into memory of its own that may be executed and no longer written; return its address."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise OSError(ctypes.get_errno(), "this system does not let a process make executable memory")
    _code_pages.append(memory)
    return address


_code_pages: list[mmap.mmap] = []
