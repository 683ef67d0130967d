"""Has most kernels of the CUDA key run in native code instead of Python: the native path.

A Python kernel takes about 10 us longer than the CPU kernel that it runs, which is ten times a small operator.
The Python kernels stay registered; only the function that torch calls to enter them is replaced in the operators'
dispatch tables, by one of native_path.cpp, which has a plan for each of them. It handles the plain cases and passes
all others to the Python kernel, which alone decides what an operator does.

If torch keeps something elsewhere than :mod:`.torch_layout` expects, the dispatch tables stay as they are: slower,
and as correct.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

import torch

from pytest_gpusync.machine import native_libraries
from pytest_gpusync.machine.native_libraries import NativeUnavailable
from pytest_gpusync.simulated.abi.lifetimes import LIBRARY, Ring
from pytest_gpusync.simulated.base.state import process
from pytest_gpusync.simulated.base.sync_events import conditions
from pytest_gpusync.simulated.base.versions import SimulationUnavailable
from pytest_gpusync.simulated.kernels import calibration, cpu_backed, registration
from pytest_gpusync.simulated.native_path import torch_layout
from pytest_gpusync.simulated.races import device_work
from pytest_gpusync.simulated.races.hooks import hooks
from pytest_gpusync.simulated.tensors import memory, streams
from pytest_gpusync.source import attribution

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType, FrameType

_MAX_ARGUMENTS, _MAX_RESULTS = 32, 8
_ONLY_DEVICE, _ONCE, _WRITES, _VIEW, _USES, _FILLS = 1, 2, 4, 8, 16, 32
_INTERPRETER: Final = {
    "take_lock": "PyGILState_Ensure",
    "give_lock": "PyGILState_Release",
    "frame": "PyEval_GetFrame",
    "caller": "PyFrame_GetBack",
    "code": "PyFrame_GetCode",
    "instruction": "PyFrame_GetLasti",
    "let_go": "Py_DecRef",
}
"""Functions of the interpreter that the native path calls, by their place in the context."""


class _Plan(ctypes.Structure):
    """What native_path.cpp knows of an operator: ``struct plan`` there."""

    _fields_ = [
        ("host", ctypes.c_uint64),
        ("arguments", ctypes.c_uint32),
        ("results", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("changed", ctypes.c_uint32),
        ("never", ctypes.c_int8),
        ("alike", ctypes.c_int8),
        ("written", ctypes.c_int8 * _MAX_RESULTS),
    ]


class _NativePath:
    """The native library, and what was found of torch."""

    def __init__(self) -> None:
        lifetimes = memory.lifetimes()
        if not isinstance(lifetimes, Ring):
            native_libraries.load(LIBRARY)  # says why it is missing
            raise torch_layout.UnknownLayout("the native library was missing at the first use of the device")
        self.context = lifetimes.context
        self._library = lifetimes.library
        self._library.native_path_plan.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._library.native_path_plan.restype = ctypes.c_bool
        self._library.native_path_code.argtypes = [ctypes.c_uint64, ctypes.c_bool]
        self._library.native_path_code.restype = ctypes.c_bool
        torch_layout.find_tensors(self.context)
        self._tables = torch_layout.find_values(self.context, self._address("native_path_inspect"))

        self._codes: dict[int, CodeType] = {}
        self._has_room = True
        self.can_follow = self._find_interpreter()
        """Whether native calls tell what they read and write."""

    def _find_interpreter(self) -> bool:
        if not all(hasattr(ctypes.pythonapi, name) for name in _INTERPRETER.values()):
            return False  # Python 3.10
        for place, name in _INTERPRETER.items():
            setattr(self.context, place, ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value)
        return True

    def learn_codes(self, frame: FrameType | None) -> None:
        """Let native calls know the code from `frame` to the user's innermost frame, unless there are none now."""
        if streams.any_side_stream():
            return
        found = attribution.user_instruction(frame)
        users = None if found is None else found[0]
        while frame is not None:
            code = frame.f_code
            if id(code) not in self._codes:
                if not self._has_room:
                    return
                self._has_room = self._library.native_path_code(id(code), frame is users)
                self._codes[id(code)] = code
            frame = None if frame is users else frame.f_back

    def code(self, identity: int) -> CodeType | None:
        """Return the code object that a native call named."""
        return self._codes.get(identity)

    def _address(self, name: str) -> int:
        return ctypes.cast(self._library[name], ctypes.c_void_p).value or 0

    def enter(self, names: Iterable[str]) -> None:
        """Have torch enter the native path for those of the operators `names` that are plain."""
        function = self._address("native_path_enter")
        for name in names:
            op = registration.overload(name)
            if op is None:
                continue
            entry = torch_layout.entry_of(op)
            plan = self._plan(op, name, entry)
            if plan is None:
                continue
            if not self._library.native_path_plan(self._tables.kernel(entry), ctypes.byref(plan)):
                return  # no room for more
            self._tables.replace(entry, function)

    def _plan(self, op: Any, name: str, entry: int) -> _Plan | None:
        host = self._tables.host_kernel(entry)
        if host is None or self._tables.registered(entry) is None:
            return None
        schema = cpu_backed.Schema(op)
        arguments, results = len(schema.arguments), len(schema.returns)
        plan = _Plan(host, arguments, results, 0, 0, -1, -1)
        if schema.view:
            plan.flags |= _VIEW
            return plan
        if not _is_plain(op, schema) or arguments > _MAX_ARGUMENTS or results > _MAX_RESULTS:
            return None
        if name in _COPIES:
            plan.flags |= _ONLY_DEVICE
        if "batch_norm" in name:
            # It updates its running statistics, which the schema does not say, so it must not run a second time.
            plan.flags |= _ONCE
        if schema.writes:
            plan.flags |= _WRITES
        if not device_work.reads_nothing(name):
            plan.flags |= _USES
            plan.changed = sum(1 << place for place in schema.written)
        if None in schema.returns and device_work.fills_results(name):
            plan.flags |= _FILLS
        for place, argument in enumerate(schema.arguments):
            if argument in {"pin_memory", "half_to_float"}:
                plan.never = place
            elif argument == "input_dtype":
                plan.alike = place
        for place, written in enumerate(schema.returns):
            plan.written[place] = -1 if written is None else written
        return plan


_COPIES: Final = frozenset({"aten::copy_", "aten::_to_copy"})
"""Operators with a kernel of their own, which does what others do unless a tensor of the host takes part."""
_LIKE_THE_HOSTS: Final = frozenset(
    {
        "aten::_softmax",
        "aten::_softmax_backward_data",
        "aten::_log_softmax",
        "aten::_log_softmax_backward_data",
    }
)
"""Operators that are replaced for a result type that the CPU's do not have; otherwise they are the CPU's."""


def _is_plain(op: Any, schema: cpu_backed.Schema) -> bool:
    """Return whether the operator's Python kernel does no more than run the CPU's."""
    name = schema.name
    return (
        (name in registration.derived or name in _COPIES)
        and (name not in cpu_backed.replacements or name in _LIKE_THE_HOSTS)
        and name not in cpu_backed.MIXED_DEVICES - _COPIES
        and calibration.announcer(name) is None
        and schema.generator < 0
        and not schema.outs
        and not (schema.writes and None in schema.returns)
        and torch.Tag.inplace_view not in op.tags
        and all(str(result.type) in {"Tensor", "List[Tensor]"} for result in op._schema.returns)
    )


_native_path: _NativePath | None = None
unavailable: str | None = None
"""Why there is no native path, with the remedy; None if there is one, or before :func:`install`."""


def install() -> None:
    """Have the registered kernels enter the native path, once per process, if it works here."""
    global _native_path, unavailable
    if _native_path is not None or unavailable is not None:
        return
    try:
        _native_path = _NativePath()
    except NativeUnavailable as error:
        unavailable = f"{error}; {error.remedy}"
        return
    except (torch_layout.UnknownLayout, SimulationUnavailable) as error:
        unavailable = str(error)
        return
    _native_path.enter(name for name in registration.known() if name.startswith("aten::"))
    process.changed = update
    context = _native_path.context
    hooks.shared_counters = (ctypes.addressof(context) + type(context).shared.offset) >> 3
    if _native_path.can_follow:
        hooks.learn_codes, hooks.code = _native_path.learn_codes, _native_path.code
    update()


def update() -> None:
    """Open the native path, or close it while the Python kernels do more than run the CPU's."""
    if _native_path is not None:
        _native_path.context.devices = process.devices
        _native_path.context.following = process.tracking
        _native_path.context.open = not (
            process.blocked
            or not process.values
            or conditions.capturing
            or memory.on_birth is not None
            or streams.any_side_stream()
            or (process.tracking and not _native_path.can_follow)
        )


def calls() -> int:
    """Return how many calls have taken the native path so far."""
    return int(_native_path.context.calls) if _native_path is not None else 0
