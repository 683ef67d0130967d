"""Allocations, parts of them, and the accesses that may still be under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ast

Conditions = frozenset[tuple[str, bool]]
"""The tests of the branches around a statement, as source, each with its outcome."""


EVERYTHING = (0, 1 << 62)
"""The indices of a whole dimension."""
Part = tuple[tuple[int, int] | str, ...]
"""For each dimension, the indices from and to, or the source of an unknown one. Missing dimensions are whole."""


class Place(Enum):
    """Where memory is."""

    PINNED = "pinned"
    HOST = "host"
    """On the host, and not known to be pinned."""
    DEVICE = "device"
    UNKNOWN = "unknown"

    @property
    def on_host(self) -> bool:
        """Whether the host can read it."""
        return self in (Place.PINNED, Place.HOST)


class Access(NamedTuple):
    """An access by a stream, or by a collective."""

    stream: str
    number: int
    """The operation, as the clocks number it."""
    writes: bool
    node: ast.expr
    statement: ast.stmt
    conditions: Conditions
    part: Part


@dataclass(eq=False, slots=True)
class Memory:
    """One allocation."""

    place: Place
    name: str = ""
    """The expression that refers to it in the source."""
    owner: str | None = None
    """The stream whose allocator gets it back; None if it was not allocated in the function."""
    of_module: bool = False
    """Whether it stands for the parameters of a module."""
    escapes: bool = False
    """Whether something else than the names of the function may refer to it."""
    recorded: set[str] = field(default_factory=set)
    """The streams that were given to `record_stream`."""
    accesses: list[Access] = field(default_factory=list)

    def record(self, access: Access) -> None:
        """Add an access. A newer one of the same expression and part replaces the old one."""
        same = (access.node, access.stream, access.writes, access.part)
        self.accesses = [old for old in self.accesses if (old.node, old.stream, old.writes, old.part) != same]
        self.accesses.append(access)


class View(NamedTuple):
    """An allocation, or a part of it, as an expression refers to it."""

    memory: Memory
    part: Part = ()
    is_indexed: bool = True
    """Whether further indices add to those of the part: it is the whole, or one element, in its own shape."""
    array: bool = False
    """Whether it is a NumPy array."""


Views = frozenset[View]
NONE: Views = frozenset()


def overlap(a: Part, b: Part) -> bool:
    """Whether two parts have elements in common. Two unknown indices are taken to differ, unless they are the same."""
    return all(_meet(one, other) for one, other in zip(a, b, strict=False))


def _meet(a: tuple[int, int] | str, b: tuple[int, int] | str) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a == b or EVERYTHING in (a, b)
    return a[0] < b[1] and b[0] < a[1]


def contradict(a: Conditions, b: Conditions) -> bool:
    """Whether two conditions cannot hold in the same run of a function."""
    return any((text, not outcome) in b for text, outcome in a)
