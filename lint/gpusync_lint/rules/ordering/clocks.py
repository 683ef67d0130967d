"""What each line of execution has waited for: vector clocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HOST = "host"
CURRENT = "current"
"""The stream that is the current one when the function is entered."""
COLLECTIVES = "collectives"
"""The streams of process groups. All groups count as one, so collectives are ordered among themselves."""


class Snapshot(NamedTuple):
    """A point in time of one line of execution: what it has reached, and what it has waited for."""

    reached: Mapping[str, int]
    """By stream, the last operation that is known to be done."""
    everything: int = -1
    """All operations up to this one are done, on all streams."""


NOTHING = Snapshot({})


@dataclass(slots=True)
class Clocks:
    """By line of execution, the operations of the others that are known to be done before what it does next.

    Operations are numbered in the order in which they are launched.
    """

    _known: dict[str, dict[str, int]] = field(default_factory=dict)
    _floors: dict[str, int] = field(default_factory=dict)
    """By line of execution, the operation up to which everything is done."""
    _numbers: count[int] = field(default_factory=count)
    _last: int = -1

    def launch(self, stream: str) -> int:
        """Launch an operation on a stream, after all that the host has waited for; return its number."""
        self.wait(stream, self.snapshot(HOST))
        self._last = number = next(self._numbers)
        self._known.setdefault(stream, {})[stream] = number
        return number

    def snapshot(self, stream: str) -> Snapshot:
        """What is done when a line of execution has done what it was given so far."""
        return Snapshot(dict(self._known.get(stream, {})), self._floors.get(stream, -1))

    def wait(self, waiter: str, until: Snapshot) -> None:
        """A line of execution waits for a point in time of another one."""
        known = self._known.setdefault(waiter, {})
        for stream, number in until.reached.items():
            known[stream] = max(number, known.get(stream, -1))
        self._floors[waiter] = max(until.everything, self._floors.get(waiter, -1))

    def reached_by(self, wanted: Callable[[str], bool]) -> Snapshot:
        """The point at which what some streams were given so far is done."""
        return Snapshot({one: known[one] for one, known in self._known.items() if wanted(one) and one in known})

    def now(self) -> Snapshot:
        """The point at which everything that was launched so far is done."""
        return Snapshot({}, self._last)

    def comes_after(self, waiter: str, stream: str, number: int) -> bool:
        """Whether what a line of execution does next comes after an operation of a stream."""
        if waiter == stream or number <= self._floors.get(waiter, -1):
            return True
        return self._known.get(waiter, {}).get(stream, -1) >= number

    def copy(self) -> Clocks:
        """A copy that numbers operations together with this one."""
        known = {stream: dict(reached) for stream, reached in self._known.items()}
        return Clocks(known, dict(self._floors), self._numbers, self._last)

    def merge(self, other: Clocks) -> None:
        """Join two paths: what one of them has waited for counts as waited for."""
        for stream in other._known:
            self.wait(stream, other.snapshot(stream))
        for stream, floor in other._floors.items():
            self._floors[stream] = max(floor, self._floors.get(stream, -1))
        self._last = max(self._last, other._last)
