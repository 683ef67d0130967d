"""Named tuples of numbers in few bytes: a training of millions of steps may run in one region."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = TypeVar("Row", bound=NamedTuple)


_BLOCK: Final = 1 << 13
"""Rows in a block. A single array would be moved whenever it grows, and leave its old places as unused memory."""


class Rows(Sequence[Row], Generic[Row]):
    """Tuples of one class whose fields are integers of at least 0, or None; each field takes eight bytes.

    Any thread may append.
    """

    def __init__(self, kind: type[Row]) -> None:
        self._kind: Any = kind
        self._width = len(self._kind._fields)
        self._blocks = [array("q")]

    def append(self, row: Row) -> None:
        """Add a row at the end."""
        numbers = tuple([-1 if value is None else value for value in row])
        block = self._blocks[-1]
        if len(block) >= _BLOCK * self._width:
            # If several threads are here at once, blocks differ in length, which no reader minds.
            block = array("q")
            self._blocks.append(block)
        block.extend(numbers)  # one call, during which no other thread runs

    def clear(self) -> None:
        """Remove all rows."""
        self._blocks[:] = [array("q")]

    def __len__(self) -> int:
        return sum(map(len, self._blocks)) // self._width

    def __iter__(self) -> Iterator[Row]:
        width = self._width
        for block in self._blocks[:]:
            for place in range(0, len(block), width):
                yield self._row(block[place : place + width])

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = (index if index >= 0 else index + len(self)) * self._width
        if place >= 0:
            for block in self._blocks:
                if place < len(block):
                    return self._row(block[place : place + self._width])
                place -= len(block)
        raise IndexError(index)

    def _row(self, numbers: array[int]) -> Row:
        row: Row = self._kind(*[None if value < 0 else value for value in numbers])
        return row
