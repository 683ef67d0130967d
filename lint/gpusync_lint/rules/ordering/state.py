"""What names refer to at a point of a function, and the accesses that are performed there."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.rules.ordering.clocks import COLLECTIVES, CURRENT, HOST, Clocks, Snapshot
from gpusync_lint.rules.ordering.memory import NONE, Access, Conditions, Memory, Place, contradict, overlap

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable

    from gpusync_lint.rules.ordering.memory import View, Views


class Kind(Enum):
    """The kinds of races."""

    HOST_READ = "host-read"
    HOST_WRITE = "host-write"
    STREAM = "stream"
    FREED = "freed"
    COLLECTIVE = "collective"


class Race(NamedTuple):
    """Two accesses of the same memory that nothing orders."""

    kind: Kind
    node: ast.expr
    """The later access; of memory that is freed too early, the access that may still be under way."""
    statement: ast.stmt
    writes: bool
    """Whether the later access writes."""
    earlier: Access
    memory: Memory
    stream: str
    """The line of execution of the later access."""
    waits: str = ""
    """The source of the stream that would have to wait, if it has a name."""
    waits_for: str = ""
    """The source of the stream of the earlier access, or of the work of the collective, if it has a name."""
    block: ast.stmt | None = None
    """The outermost `with` statement that sets the stream of the later access; None if there is none."""


NAMED = "stream at "
"""The beginning of the names of streams that were created elsewhere, before their paths."""
_UNCERTAIN = "?"
"""The beginning of the names of streams that may be the current one."""


def uncertain_stream(path: str) -> str:
    """The name of a stream that may be the current one."""
    return f"{_UNCERTAIN}{path}"


def is_uncertain(stream: str) -> bool:
    """Whether a stream may be the current one."""
    return stream.startswith(_UNCERTAIN)


@dataclass(slots=True)
class State:
    """What is known at one point."""

    views: dict[str, Views] = field(default_factory=dict)
    """By dotted path, the memory that it refers to."""
    streams: dict[str, str] = field(default_factory=dict)
    events: dict[str, Snapshot] = field(default_factory=dict)
    """By dotted path, what an event, or the work of a collective, comes after."""
    numbers: dict[str, int] = field(default_factory=dict)
    """By name, the value of a counter."""
    clocks: Clocks = field(default_factory=Clocks)
    current: str = CURRENT
    freed: tuple[tuple[Memory, Access], ...] = ()
    """Accesses that were under way when their memory was freed."""

    def copy(self) -> State:
        """A copy for another path."""
        names = dict(self.views), dict(self.streams), dict(self.events), dict(self.numbers)
        return State(*names, self.clocks.copy(), self.current, self.freed)

    def merge(self, other: State) -> None:
        """Join two paths that meet."""
        for path in self.views.keys() | other.views.keys():
            self.views[path] = self.views.get(path, NONE) | other.views.get(path, NONE)
        for path, stream in other.streams.items():
            if self.streams.setdefault(path, stream) != stream:
                self.streams[path] = uncertain_stream(path)
        for path in self.events.keys() & other.events.keys():
            a, b = self.events[path], other.events[path]
            reached = {one: max(a.reached.get(one, -1), b.reached.get(one, -1)) for one in {*a.reached, *b.reached}}
            self.events[path] = Snapshot(reached, max(a.everything, b.everything))
        for path in self.events.keys() ^ other.events.keys():
            self.events.pop(path, None)  # then it may come after anything
        self.numbers = {name: one for name, one in self.numbers.items() if other.numbers.get(name) == one}
        self.clocks.merge(other.clocks)
        self.freed = tuple(dict.fromkeys((*self.freed, *other.freed)))

    def forget(self, path: str) -> list[Memory]:
        """Unbind a path and what is below it; return the memory that it referred to."""
        gone: list[Memory] = []
        self.numbers.pop(path, None)
        for known in (self.views, self.streams, self.events):
            for one in [one for one in known if one == path or one.startswith((f"{path}.", f"{path}["))]:
                old = known.pop(one)
                if known is self.views:
                    gone += [view.memory for view in old]  # type: ignore[union-attr]
        return gone


class Accesses:
    """Performs accesses on a state, and collects the races that they are a part of."""

    def __init__(self) -> None:
        self.state = State()
        self.conditions: list[tuple[str, bool]] = []
        """The tests of the branches around the statement."""
        self.statement: ast.stmt
        self.captured: list[tuple[View, bool]] | None = None
        """The accesses of the graph that is being captured; None outside of a capture."""
        self.entered: list[ast.stmt] = []
        """The `with` statements around the statement that set a stream."""
        self.snapshots: dict[ast.expr, Snapshot] = {}
        """By call, what the event or the work that it returned comes after."""
        self.races: dict[tuple[Kind, ast.expr], Race] = {}

    # waits

    def host_waits(self, until: Snapshot) -> None:
        """The host waits for a point in time. A stream that may be any stream may be the one that it waits for."""
        clocks = self.state.clocks
        clocks.wait(HOST, until)
        clocks.wait(HOST, clocks.reached_by(is_uncertain))

    def host_waits_for_current(self) -> None:
        """The host waits for the current stream."""
        current = self.state.current
        clocks = self.state.clocks
        self.host_waits(clocks.now() if is_uncertain(current) else clocks.snapshot(current))

    def order_everything(self) -> None:
        """Something may wait for everything."""
        self.state.clocks.wait(HOST, self.state.clocks.now())

    # accesses

    def host_reads(self, views: Iterable[View], node: ast.expr) -> None:
        """The host reads memory."""
        self._host(views, node, writes=False)

    def host_writes(self, views: Iterable[View], node: ast.expr) -> None:
        """The host writes memory."""
        self._host(views, node, writes=True)

    def _host(self, views: Iterable[View], node: ast.expr, writes: bool) -> None:
        kind = Kind.HOST_WRITE if writes else Kind.HOST_READ
        for view in views:
            if view.memory.place.on_host:
                self._compare(view, node, writes, HOST, kind)

    def stream_accesses(self, views: Iterable[View], node: ast.expr, writes: bool, stream: str = "") -> None:
        """A stream, by default the current one, or a collective, accesses memory."""
        if self.captured is not None:
            self.captured += [(view, writes) for view in views]
            return
        stream = stream or self.state.current
        number = self.state.clocks.launch(stream)
        for view in views:
            if view.memory.place is Place.HOST:
                continue  # copies of memory that is not pinned are done, or staged, when the call returns
            self._compare(view, node, writes, stream, Kind.STREAM)
            conditions: Conditions = frozenset(self.conditions)
            view.memory.record(Access(stream, number, writes, node, self.statement, conditions, view.part))

    def _compare(self, view: View, node: ast.expr, writes: bool, stream: str, kind: Kind) -> None:
        """Report the earlier accesses of the memory that conflict with one, if nothing orders them."""
        conditions: Conditions = frozenset(self.conditions)
        for old in view.memory.accesses:
            if not (writes or old.writes) or not overlap(old.part, view.part) or contradict(old.conditions, conditions):
                continue
            if self.state.clocks.comes_after(stream, old.stream, old.number):
                continue
            between = {old.stream, stream}
            found = Kind.COLLECTIVE if COLLECTIVES in between else kind
            if found is Kind.STREAM and any(map(is_uncertain, between)):
                continue
            block = self.entered[0] if self.entered else None
            waits_for = self._work(old) if found is Kind.COLLECTIVE else self._source(old.stream)
            race = Race(
                found, node, self.statement, writes, old, view.memory, stream, self._source(stream), waits_for, block
            )
            self.races.setdefault((found, node), race)

    def _source(self, stream: str) -> str:
        """An expression that refers to a stream; empty if there is none."""
        if stream == CURRENT:
            return "torch.cuda.current_stream()"
        if stream.startswith(NAMED):
            return stream.removeprefix(NAMED)
        return next((path for path, one in self.state.streams.items() if one == stream), "")

    def _work(self, collective: Access) -> str:
        """The path that refers to the work of a collective; empty if there is none."""
        wanted = self.snapshots.get(collective.node)
        return next((path for path, snapshot in self.state.events.items() if snapshot is wanted), "")

    # allocations

    def allocate(self, place: Place, node: ast.expr, name: str = "") -> Memory:
        """Allocate memory; on the device, the current stream writes it."""
        owner = self.state.current if place is Place.DEVICE and self.captured is None else None
        memory = Memory(place, name, owner)
        if owner is not None:
            self.state.clocks.wait(owner, self.state.clocks.snapshot(HOST))
            for freed, access in self.state.freed:
                if freed.owner == owner and not self.state.clocks.comes_after(owner, access.stream, access.number):
                    self._report_freed(freed, access)
            self.state.freed = tuple(one for one in self.state.freed if one[0].owner != owner)
        return memory

    def _report_freed(self, memory: Memory, access: Access) -> None:
        if (Kind.STREAM, access.node) not in self.races:
            race = Race(Kind.FREED, access.node, access.statement, access.writes, access, memory, memory.owner or "")
            self.races.setdefault((Kind.FREED, access.node), race)

    def unbind(self, path: str) -> None:
        """A path refers to nothing any more. Memory to which nothing else refers is freed."""
        gone = {memory for memory in self.state.forget(path) if not memory.escapes and memory.owner is not None}
        if not gone:
            return
        used = {view.memory for views in self.state.views.values() for view in views}
        for memory in gone - used:
            under_way = [
                (memory, access)
                for access in memory.accesses
                if access.stream not in (memory.owner, COLLECTIVES, *memory.recorded)
                and not is_uncertain(access.stream)
                and not is_uncertain(memory.owner or "")
            ]
            self.state.freed += tuple(under_way[-1:])


def escape(views: Iterable[View]) -> None:
    """Something that is not followed may keep the memory."""
    for view in views:
        view.memory.escapes = True
