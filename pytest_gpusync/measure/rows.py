"""Named tuples of numbers in few bytes: a training of millions of steps may run in one region."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = TypeVar("Row", bound=NamedTuple)


class Rows(Sequence[Row], Generic[Row]):
    """Tuples of one class whose fields are integers of at least 0, or None; each field takes eight bytes.

    Any thread may append.
    """

    def __init__(self, kind: type[Row]) -> None:
        self._kind: Any = kind
        self._width = len(self._kind._fields)
        self._numbers = array("q")

    def append(self, row: Row) -> None:
        """Add a row at the end."""
        numbers = tuple([-1 if value is None else value for value in row])
        self._numbers.extend(numbers)  # one call, during which no other thread runs

    def clear(self) -> None:
        """Remove all rows."""
        del self._numbers[:]

    def __len__(self) -> int:
        return len(self._numbers) // self._width

    def __iter__(self) -> Iterator[Row]:
        numbers, width = self._numbers[:], self._width
        for place in range(0, len(numbers), width):
            yield self._row(numbers[place : place + width])

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        place = index % len(self) * self._width
        return self._row(self._numbers[place : place + self._width])

    def _row(self, numbers: array[int]) -> Row:
        row: Row = self._kind(*[None if value < 0 else value for value in numbers])
        return row
