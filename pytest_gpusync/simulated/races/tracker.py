"""Brings accesses and their order together while somebody listens, and reports the races.

Copies between the host and the device are always followed, as long as somebody listens: there are few. What operators
on the device touch is followed only while ``process.tracking`` is set: once there is a side stream, or while there is a
collective that nobody has waited for. With default streams alone all work of a device is ordered.

Operators on default streams mostly run in native code, which writes what they use into the ring of :mod:`..abi
.lifetimes`. :func:`operator_ran` is told later, at the latest before anybody waits for anything: until then no such
access can race, because operators that use memory which another stream may still use are left to Python, where
:func:`before` compares their accesses while their frame still exists.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pytest_gpusync.model.measurement import HOST, Race
from pytest_gpusync.simulated.base import sync_events
from pytest_gpusync.simulated.base.native import cells
from pytest_gpusync.simulated.base.state import current_device, in_backward, process
from pytest_gpusync.simulated.base.sync_events import conditions
from pytest_gpusync.simulated.races import clocks, sentences
from pytest_gpusync.simulated.races.clocks import Timeline, timeline
from pytest_gpusync.simulated.races.extents import Extent, of_strided, of_tensor, overlap
from pytest_gpusync.simulated.races.history import Access, History
from pytest_gpusync.source import attribution

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import CodeType, FrameType

    from pytest_gpusync.model.measurement import Kind, RaceKind
    from pytest_gpusync.simulated.races.clocks import Snapshot
    from pytest_gpusync.simulated.races.history import Place

Tensor = torch.Tensor
RaceSink = Callable[[Race], None]

COPY: Final = "copy"
GRAPH: Final = "graph"
COLLECTIVE: Final = "collective"
_OPERATOR: Final = "operator"
_IS_WRITE, _HAS_GAPS, _ADDRESS = 1 << 62, 1 << 61, (1 << 48) - 1
"""Bits of the first word of an access in a record of the native path."""
_SHARED_SLOTS: Final = 1 << 12
"""``SHARED`` of native_path.cpp."""
_MAX_PENDING: Final = 4096
"""Pinned memory with copies under way that is remembered; the oldest is dropped beyond."""
_MAX_FREED: Final = 4096
"""Pieces of freed memory that are remembered while another stream may use them; the oldest are dropped beyond."""
_MAX_REPORTED: Final = 1024
"""Different races that are described; programs with more have one cause for many."""

_NO_CONTENT: Final = re.compile(
    r"aten::(new_\w+|empty\w*|\w+_like|is_(?!nonzero)\w+|size|stride|sym_\w+|numel|dim|storage_offset|result_type|"
    r"_version|_has_\w+|resize_\w*|set_|record_stream|requires_grad_|retain_grad|rename_?|can_cast)(\.\w+)?$"
)


class _Sweeps:
    """When pinned memory that no copy uses any more is forgotten: each time that its number has doubled."""

    least = next = 64


_sweeps: Final = _Sweeps()
pending: dict[int, History] = {}
"""Pinned memory that copies may still read or fill, by its first address."""
_device: dict[int, History] = {}
"""Memory of the device that was used while operators were followed, by its first address."""
_sinks: tuple[RaceSink, ...] = ()
_reported: dict[tuple[Any, ...], Race] = {}
_side_streams_seen = False
_collectives = 0
"""Collectives that the stream that started them has not waited for."""


class _Hooks:
    """What this package is told about other parts of the device, on which it may not depend."""

    current_stream: Callable[[int], int] = staticmethod(lambda index: 0)
    """The id of the calling thread's current stream of a device."""
    catch_up: Callable[[], None] = staticmethod(lambda: None)
    """Bring the model of the allocator up to date."""
    learn_codes: Callable[[FrameType | None], None] = staticmethod(lambda frame: None)
    """Let native code know the code from a frame to the user's innermost one."""
    code: Callable[[int], CodeType | None] = staticmethod(lambda identity: None)
    """The code object that native code named."""
    shared_counters: int | None = None
    """Cell of the first counter by which native code knows memory that another stream may still use; None without
    native code."""
    key_of: Callable[[int], int | None] = staticmethod(lambda base: None)
    """What the allocator knows the memory by that begins at an address."""


hooks: Final = _Hooks()


def listen(sink: RaceSink) -> None:
    """Call `sink` with each race from now on, on the thread of its later access."""
    global _sinks
    if not _sinks:
        _forget_accesses()
    _sinks = (*_sinks, sink)
    reconsider()


def is_listening() -> bool:
    """Return whether races are reported to anybody."""
    return bool(_sinks)


def stop_listening(sink: RaceSink) -> None:
    """Stop calling `sink`. Does nothing if it does not listen."""
    global _sinks, _collectives
    _sinks = tuple(other for other in _sinks if other != sink)
    if not _sinks:
        _forget_accesses()
        _collectives = 0
    reconsider()


def _forget_accesses() -> None:
    _recorded.clear()
    pending.clear()
    _reported.clear()
    _forget_device()


def _forget_device() -> None:
    for history in _device.values():
        _set_shared(history, False)
    _device.clear()
    _bases.clear()
    _suspects.clear()
    _freed.clear()


def reset() -> None:
    """Forget everything; the device was switched off."""
    global _sinks, _collectives, _side_streams_seen
    _sinks, _collectives, _side_streams_seen = (), 0, False
    _forget_accesses()
    clocks.reset()
    process.tracking = False


# ---- what the host waits for ----


def _waited(kind: Kind, device: int | None, stream: int | None) -> None:
    """Let the host come after what it has just waited for; called for every sync, except those of an event."""
    if kind == "event":
        return
    index = current_device() if device is None else device
    if kind in ("device", "free"):
        clocks.synchronize_device(index)
    else:
        clocks.host.wait(timeline(index, hooks.current_stream(index) if stream is None else stream).snapshot())


sync_events.hooks.waited = _waited


def current(index: int) -> Timeline:
    """Return the timeline of the calling thread's current stream of ``cuda:index``."""
    return timeline(index, hooks.current_stream(index))


# ---- when operators are followed ----


def stream_made(stream: Any, index: int, number: int) -> None:
    """Follow operators from now on: the program has made a side stream."""
    timeline(index, number).add_handle(weakref.ref(stream))
    if not process.tracking:
        reconsider()


def reconsider() -> None:
    """Follow operators as long as somebody listens, if there was a side stream since, or a collective is under way."""
    global _side_streams_seen
    _side_streams_seen = bool(_sinks) and (_side_streams_seen or clocks.any_side_stream())
    wanted = bool(_sinks) and (_collectives > 0 or _side_streams_seen)
    if wanted != process.tracking:
        process.tracking = wanted
        if wanted:
            # Memory that was freed before must not be taken for what lies at its address now.
            hooks.catch_up()
        else:
            _forget_device()
        process.changed()


# ---- accesses by work on streams ----


def launch(index: int) -> Timeline:
    """Start work on the current stream of ``cuda:index``."""
    clocks.settle()
    stream = current(index)
    stream.launch()
    return stream


def read(tensor: Tensor, stream: Timeline, place: _Line, what: str) -> None:
    """Work on `stream` reads a tensor of the device."""
    _touch(tensor, False, stream, place, what)


def write(tensor: Tensor, stream: Timeline, place: _Line, what: str) -> None:
    """Work on `stream` writes a tensor of the device."""
    _touch(tensor, True, stream, place, what)


def _touch(tensor: Tensor, is_write: bool, stream: Timeline, line: _Line, what: str) -> None:
    count = tensor.numel()
    if count:
        # This runs for each tensor of each operator on a side stream.
        start, item = tensor.data_ptr(), tensor.element_size()
        base = start - int(tensor.storage_offset()) * item
        extent = (start, start + count * item, None) if tensor.is_contiguous() else of_tensor(tensor)
        history = _device.get(base) or _history(base)
        default = stream.default if tensor.get_device() == stream.device else timeline(tensor.get_device(), 0)
        if history.only is stream:
            new = tuple.__new__(Access, (extent, stream, stream.clock, line.place, what, False))
            history.add(new, is_write)  # in a third of the time
        else:
            access(history, extent, is_write, stream, line, what, tensor)
        if history.storage is None and stream is not (history.owner or stream.default):
            history.storage = StorageWeakRef(tensor.untyped_storage())
            if history.key is None:
                history.key = hooks.key_of(base)
            if history.key is not None:
                _bases[history.key] = base
                _suspects[base] = history
        if stream is default or not history.shared:
            _update_shared(history, stream, default)


def _history(base: int) -> History:
    """Return what is known of the memory of the device at `base`."""
    history = _device.get(base)
    if history is None:
        history = _device[base] = History(base, None)
        history.recorded |= _recorded.pop(base, set())
    return history


def _update_shared(history: History, stream: Timeline, default: Timeline) -> None:
    """Set whether memory is shared, after work on `stream` has used it."""
    if stream is not default:
        _set_shared(history, True)
    elif history.shared:
        _set_shared(history, _is_shared(history, default))


def _is_shared(history: History, default: Timeline) -> bool:
    """Return whether another stream than the default one may still use memory, or was not seen to be its owner's."""
    if history.storage is None and history.owner not in (None, default):
        return True
    return any(
        old.stream is not default and not default.has_seen(old.stream, old.clock)
        for kept in (history.writes, history.reads)
        for old in kept
    )


def _set_shared(history: History, shared: bool) -> None:
    """Set whether operators that use memory are left to Python."""
    if shared is not history.shared:
        history.shared = shared
        if hooks.shared_counters is not None:
            cells[hooks.shared_counters + (history.base >> 6) % _SHARED_SLOTS] += 1 if shared else -1


def access(
    history: History,
    extent: Extent,
    is_write: bool,
    stream: Timeline,
    line: _Line,
    what: str,
    tensor: Tensor | None = None,
) -> None:
    """Work on `stream` uses memory: report what races with it, and keep it."""
    for other, was_write in history.unordered(extent, is_write, stream):
        if in_backward() and not is_write and not other.freed:
            # The engine runs the operator on the stream of its forward operator, after what that stream waited for.
            stream.wait(other.stream.seen)
            stream.wait({other.stream: other.stream.clock})
            continue
        _report(_kind(what, other, was_write), line, stream.name, is_write, extent, tensor, other, was_write)
    history.add(Access(extent, stream, stream.clock, line.place, what), is_write)


def _kind(what: str, other: Access, was_write: bool) -> RaceKind:
    if other.freed:
        return "allocator"
    if COLLECTIVE in (what, other.what):
        return "distributed"
    return "graph" if GRAPH in (what, other.what) else "stream"


def copy_uses_pinned(tensor: Tensor, is_write: bool, stream: Timeline, line: _Line, what: str = COPY) -> None:
    """Work on `stream` reads or fills pinned memory."""
    base = base_of(tensor)
    if conditions.capturing:
        if captured.accesses is not None:
            captured.accesses.append(Captured(base, of_tensor(tensor), is_write, stream.device, True))
        return
    history = pending.get(base)
    if history is None:
        if len(pending) >= _sweeps.next:
            _forget_done()
            _sweeps.next = max(_sweeps.least, 2 * len(pending))
        history = pending[base] = History(base, None)
    access(history, of_tensor(tensor), is_write, stream, line, what, tensor)


def copies(tensor: Tensor, is_write: bool, stream: Timeline, line: _Line, is_direct: bool) -> None:
    """A copy reads or writes `tensor`; `is_direct` if the device itself accesses the host's memory."""
    if tensor.is_cuda:
        if process.tracking or conditions.capturing:
            _use(tensor, is_write, stream, line, COPY)
    elif is_direct:
        copy_uses_pinned(tensor, is_write, stream, line)
    else:
        host_uses(tensor, is_write)


def pinned_memory_made(base: int) -> None:
    """Forget what was known of this address: torch's allocator gives out no memory that a copy still uses."""
    pending.pop(base, None)


def _forget_done() -> None:
    """Drop pinned memory that no copy uses any more, and the oldest of the rest if it is still too much."""
    seen = clocks.host.seen
    for base, history in list(pending.items()):
        if all(seen.get(old.stream, 0) >= old.clock or old.stream.forgotten for old, _ in history.all()):
            del pending[base]
    for base in list(pending)[: max(0, len(pending) - _MAX_PENDING // 2)]:
        del pending[base]


# ---- memory that is freed while another stream uses it ----


class _Freed(NamedTuple):
    """Memory that was freed while other streams than its owner may have used it."""

    history: History
    address: int
    """Where the caching allocator has it on the simulated device."""
    nbytes: int


_bases: dict[int, int] = {}
"""The first addresses of memory, by what the allocator knows it by."""
_suspects: dict[int, History] = {}
"""Live memory that was used on another stream than that of its allocation, by first address."""
_freed: list[_Freed] = []
_recorded: dict[int, set[Timeline]] = {}
"""Streams given to ``record_stream``, by the first address of memory that is not followed yet."""


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
        history = _device.get(memory & _ADDRESS) or _history(memory & _ADDRESS)
        if history.shared:
            access(history, extent, bool(memory & _IS_WRITE), stream, _Line(None, at), _OPERATOR)
        else:
            history.add(Access(extent, stream, clock, at, _OPERATOR), bool(memory & _IS_WRITE))


def must_know_blocks() -> bool:
    """Return whether new memory may be what another stream still uses: then :func:`born` needs to know where it is."""
    return bool(_freed) or any(
        history.storage is not None and history.storage.expired() for history in _suspects.values()
    )


def born(
    base: int, key: int, when: int, device: int, block: tuple[int, int] | None, owner: Timeline | None = None
) -> None:
    """Memory was allocated.

    Args:
        base: its first address.
        key: what the allocator knows it by.
        when: its place in the order of allocations and frees.
        device: the index of its device.
        block: where the caching allocator has it, and its size.
        owner: the stream that allocated it; by default the current one.
    """
    owner = owner or launch(device)
    _suspects.pop(base, None)
    _recorded.pop(base, None)
    if base in _device:
        _set_shared(_device[base], False)
    history = _device[base] = History(base, owner)
    history.key, history.born = key, when
    _bases[key] = base
    default = timeline(device, 0)
    if owner is not default:
        _set_shared(history, True)
    if block is None:
        return
    address, nbytes = block
    for freed in list(_freed):
        shift = base - freed.history.base + freed.address - address
        # The allocator gives memory back to the stream that allocated it: that one must come after all uses.
        holder = freed.history.owner or owner
        still_used = False
        for access, is_write in freed.history.all():
            if access.stream in freed.history.recorded:
                continue
            still_used |= not holder.has_seen(access.stream, access.clock)
            if owner.has_seen(access.stream, access.clock):
                continue
            start, end, layout = access.extent
            if start + shift < base + nbytes and end + shift > base:
                moved = access._replace(extent=(start + shift, end + shift, layout), freed=True)
                history.take_over(moved, is_write)
                _set_shared(history, True)
        if not still_used:
            _freed.remove(freed)


def record_stream(tensor: Tensor, stream: Timeline) -> None:
    """When `tensor` is freed, its memory is not reused before `stream` has done its work so far."""
    clocks.settle()
    base = base_of(tensor)
    history = _device.get(base)
    if history is not None:
        history.recorded.add(stream)
    elif len(_recorded) < _MAX_FREED:
        _recorded.setdefault(base, set()).add(stream)


def died(key: int, when: int, address: int, nbytes: int) -> None:
    """Memory returned to the caching allocator, which has it at `address`, at place `when` of the order."""
    base = _bases.get(key, key)
    history = _device.get(base)
    if history is None or history.key not in (None, key) or when < history.born:
        return
    _bases.pop(key, None)
    del _device[base]
    _set_shared(history, False)
    if _suspects.pop(base, None) is not None:
        _freed.append(_Freed(history, address, nbytes))
        del _freed[:-_MAX_FREED]


# ---- accesses by the host ----


def host_uses(tensor: Tensor, is_write: bool, frame: FrameType | None = None) -> None:
    """The host reads or writes a tensor of its own; reports copies that nothing has waited for."""
    if not pending or not tensor.numel() or conditions.capturing:
        return
    base = base_of(tensor)
    if base in pending:
        host_uses_memory(base, of_tensor(tensor), is_write, frame or sys._getframe(1), tensor)


def pinned_base(address: int) -> int | None:
    """Return the first address of the pinned memory with copies under way that `address` lies in, or None."""
    base = max((base for base in pending if base <= address), default=None)
    if base is None or all(address >= access.extent[1] for access, _ in pending[base].all()):
        return None
    return base


def host_uses_memory(base: int, extent: Extent, is_write: bool, frame: FrameType, value: Any) -> None:
    """The host reads or writes part of the pinned memory at `base`, through `value`."""
    history = pending.get(base)
    if history is None:
        return
    seen = clocks.host.seen
    left = False
    for other, was_write in list(history.all()):
        if seen.get(other.stream, 0) >= other.clock or other.stream.forgotten:
            continue
        left = True
        if (is_write or was_write) and overlap(other.extent, extent):
            kind: RaceKind = "host-write" if is_write else "host-read"
            _report(kind, _Line.of(frame), HOST, is_write, extent, value, other, was_write)
    if not left:
        del pending[base]


# ---- operators ----


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
    line = _Line.of(sys._getframe(2))
    given, written, name = len(arguments), schema.written, schema.name
    use = _capture if conditions.capturing else _touch
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
            line = line or _Line.of(sys._getframe(2))
            _use(tensor, True, launch(tensor.get_device()), line, schema.name)


def _use(tensor: Tensor, is_write: bool, stream: Timeline, line: _Line, what: str) -> None:
    (_capture if conditions.capturing else _touch)(tensor, is_write, stream, line, what)


def _capture(tensor: Tensor, is_write: bool, stream: Timeline, line: _Line, what: str) -> None:
    if captured.accesses is not None and tensor.numel():
        captured.accesses.append(Captured(base_of(tensor), of_tensor(tensor), is_write, stream.device, False))


# ---- collectives ----


class Collective:
    """A collective under way on the stream of its process group."""

    def __init__(self, device: int, reached: Snapshot) -> None:
        self._device = device
        self._reached = reached
        self._waited = False

    def wait(self) -> None:
        """Let the current stream wait for it; the host goes on."""
        global _collectives
        current(self._device).wait(self._reached)
        if not self._waited:
            self._waited = True
            _collectives = max(_collectives - 1, 0)
            reconsider()


def collective(group: str, reads: Sequence[Tensor], writes: Sequence[Tensor], frame: FrameType) -> Collective | None:
    """A collective is started; its own stream waits for the current one. None if no tensor of the device takes part.

    Its tensors stay alive until somebody waits for it.
    """
    global _collectives
    tensors = [tensor for tensor in (*writes, *reads) if tensor.is_cuda]
    if not tensors or not _sinks:
        return None
    device = tensors[0].get_device()
    _collectives += 1
    reconsider()
    stream = timeline(device, f"stream of {group}")
    stream.wait(current(device).snapshot())
    line = _Line.of(frame)
    for used, is_write in ((reads, False), (writes, True)):
        for tensor in used:
            if tensor.is_cuda and tensor.numel():
                _touch(tensor, is_write, stream, line, COLLECTIVE)
                _device[base_of(tensor)].recorded.add(stream)
    return Collective(device, stream.snapshot())


# ---- graphs ----


class Captured(NamedTuple):
    """An access that each replay of a graph repeats."""

    base: int
    extent: Extent
    is_write: bool
    device: int
    pinned: bool


class _Capture:
    accesses: list[Captured] | None = None


captured: Final = _Capture()


def replay(accesses: Iterable[Captured]) -> None:
    """A graph is replayed on the current stream."""
    line = _Line.of(sys._getframe(1))
    for base, extent, is_write, device, pinned in accesses:
        if pinned:
            access(pending.setdefault(base, History(base, None)), extent, is_write, launch(device), line, GRAPH)
        elif process.tracking:
            stream, history = launch(device), _history(base)
            access(history, extent, is_write, stream, line, GRAPH)
            _update_shared(history, stream, timeline(device, 0))


# ---- reports ----


class _Line:
    """Where an access comes from."""

    __slots__ = ("frame", "place")

    def __init__(self, frame: FrameType | None, place: Place) -> None:
        self.frame = frame
        self.place = place

    @staticmethod
    def of(frame: FrameType | None) -> _Line:
        """Return the user's innermost line below `frame`."""
        if process.tracking:
            hooks.learn_codes(frame)
        found = attribution.user_instruction(frame)
        return _Line(None, None) if found is None else _Line(found[0], found[1:])


Line = _Line


def base_of(tensor: Tensor) -> int:
    """Return the first address of the storage of a tensor."""
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()


def _report(
    kind: RaceKind,
    line: _Line,
    stream: str,
    is_write: bool,
    extent: Extent,
    value: Any,
    other: Access,
    was_write: bool,
) -> None:
    key = (kind, line.place, other.place, is_write, was_write)
    race = _reported.get(key)
    if race is None:
        if len(_reported) >= _MAX_REPORTED:
            return
        race = _reported[key] = sentences.describe(
            kind, line.frame, line.place, stream, is_write, extent, value, other, was_write
        )
    for sink in _sinks:
        sink(race)
