"""Which of some items are connected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

_T = TypeVar("_T", bound="Hashable")


class DisjointSets(Generic[_T]):
    """Items in sets of their own that are joined one by one (union-find with path halving)."""

    def __init__(self, items: Iterable[_T]) -> None:
        self._parent = {item: item for item in items}

    def find(self, item: _T) -> _T:
        """The representative of the set that an item is in."""
        parent = self._parent
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    def join(self, one: _T, other: _T) -> None:
        """Make the sets of two items one."""
        self._parent[self.find(one)] = self.find(other)
