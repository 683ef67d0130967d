"""What the work of the device uses: operators, copies, and replays of graphs.

Operators on default streams mostly run in native code, which writes what they use into the ring of :mod:`..abi
.lifetimes`. :func:`operator_ran` is told later, at the latest before anybody waits for anything: until then no such
access can race, because operators that use memory which another stream may still use are left to Python, where
:func:`before` compares their accesses while their frame still exists.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch

from pytest_gpusync.simulated.base.state import process
from pytest_gpusync.simulated.base.sync_events import conditions
from pytest_gpusync.simulated.races import captured, pinned_memory
from pytest_gpusync.simulated.races.accesses import COPY, GRAPH, access
from pytest_gpusync.simulated.races.clocks import Timeline, timeline
from pytest_gpusync.simulated.races.current_stream import launch
from pytest_gpusync.simulated.races.device_memory import histories, history_of, touch, update_shared
from pytest_gpusync.simulated.races.extents import Extent, base_of, of_strided, of_tensor
from pytest_gpusync.simulated.races.history import Access, History
from pytest_gpusync.simulated.races.hooks import hooks
from pytest_gpusync.simulated.races.lines import Line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpusync.simulated.races.captured import Captured
    from pytest_gpusync.simulated.races.history import Place

Tensor = torch.Tensor

_OPERATOR: Final = "operator"
_IS_WRITE, _HAS_GAPS, _ADDRESS = 1 << 62, 1 << 61, (1 << 48) - 1
"""Bits of the first word of an access in a record of the native path."""

_NO_CONTENT: Final = re.compile(
    r"aten::(new_\w+|empty\w*|\w+_like|is_(?!nonzero)\w+|size|stride|sym_\w+|numel|dim|storage_offset|result_type|"
    r"_version|_has_\w+|resize_\w*|set_|record_stream|requires_grad_|retain_grad|rename_?|can_cast)(\.\w+)?$"
)


@cache
def reads_nothing(name: str) -> bool:
    """Return whether an operator looks at no element of its arguments."""
    return _NO_CONTENT.match(name) is not None


def fills_results(name: str) -> bool:
    """Return whether an operator writes the new tensors that it returns."""
    return "empty" not in name


def before(schema: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    """An operator is about to run on tensors of the device: keep what it reads and writes.

    `schema` has ``name``, ``arguments``, and the positions ``tensors``, ``lists`` and ``written``.
    """
    if reads_nothing(schema.name):
        return
    line = Line.of(sys._getframe(2))
    given, written, name = len(arguments), schema.written, schema.name
    use = _capture if conditions.capturing else touch
    streams: dict[int, Timeline] = {}
    for position in (*schema.tensors, *schema.lists):
        value = arguments[position] if position < given else keywords.get(schema.arguments[position])
        for tensor in (value,) if isinstance(value, Tensor) else value if isinstance(value, (list, tuple)) else ():
            if isinstance(tensor, Tensor) and tensor.is_cuda and tensor.layout is torch.strided:
                index = tensor.get_device()
                stream = streams.get(index)
                if stream is None:
                    stream = streams[index] = launch(index)
                use(tensor, position in written, stream, line, name)


def after(schema: Any, result: Any) -> None:
    """An operator has made new tensors of the device, which it has written, unless it leaves them empty."""
    if not fills_results(schema.name):
        return
    line = None
    for tensor in result if isinstance(result, (list, tuple)) else (result,):
        if isinstance(tensor, Tensor) and tensor.is_cuda and tensor.layout is torch.strided:
            line = line or Line.of(sys._getframe(2))
            _use(tensor, True, launch(tensor.get_device()), line, schema.name)


def operator_ran(index: int, words: Sequence[int], place: int, end: int) -> None:
    """Keep what native code has noted of an operator on the default stream of ``cuda:index``.

    `words` from `place` on are a record of native_path.cpp after its first word.
    """
    stream = timeline(index, 0)
    stream.launch()
    clock = stream.clock
    code = hooks.code(words[place])
    at: Place = None if code is None else (code, words[place + 1] - 1)
    place += 2
    while place < end:
        memory, start, third = words[place], words[place + 1], words[place + 2]
        place += 3
        extent: Extent
        if memory & _HAS_GAPS:
            dimensions, item = divmod(third, 256)
            strides = [(stride - 1) * item for stride in words[place + dimensions : place + 2 * dimensions]]
            extent = of_strided(start, words[place : place + dimensions], strides, item)
            place += 2 * dimensions
        else:
            extent = start, third, None
        history = histories.get(memory & _ADDRESS) or history_of(memory & _ADDRESS)
        if history.shared:
            access(history, extent, bool(memory & _IS_WRITE), stream, Line(None, at), _OPERATOR)
        else:
            history.add(Access(extent, stream, clock, at, _OPERATOR), bool(memory & _IS_WRITE))


def copies(tensor: Tensor, is_write: bool, stream: Timeline, line: Line, is_direct: bool) -> None:
    """A copy reads or writes `tensor`; `is_direct` if the device itself accesses the host's memory."""
    if tensor.is_cuda:
        if process.tracking or conditions.capturing:
            _use(tensor, is_write, stream, line, COPY)
    elif is_direct:
        pinned_memory.copy_uses(tensor, is_write, stream, line)
    else:
        pinned_memory.host_uses(tensor, is_write)


def replay(accesses: Iterable[Captured]) -> None:
    """A graph is replayed on the current stream."""
    line = Line.of(sys._getframe(1))
    for base, extent, is_write, device, pinned in accesses:
        if pinned:
            history = pinned_memory.pending.setdefault(base, History(base, None))
            access(history, extent, is_write, launch(device), line, GRAPH)
        elif process.tracking:
            stream, history = launch(device), history_of(base)
            access(history, extent, is_write, stream, line, GRAPH)
            update_shared(history, stream, timeline(device, 0))


def _use(tensor: Tensor, is_write: bool, stream: Timeline, line: Line, what: str) -> None:
    (_capture if conditions.capturing else touch)(tensor, is_write, stream, line, what)


def _capture(tensor: Tensor, is_write: bool, stream: Timeline, line: Line, what: str) -> None:
    if tensor.numel():
        captured.keep(base_of(tensor), of_tensor(tensor), is_write, stream.device, pinned=False)
