"""Disjoint sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

_T = TypeVar("_T", bound="Hashable")


class DisjointSets(Generic[_T]):
    """Disjoint sets that can be joined: union-find with path halving."""

    def __init__(self, items: Iterable[_T]) -> None:
        self._parent = {item: item for item in items}

    def find(self, item: _T) -> _T:
        """The representative of the set of an item."""
        parent = self._parent
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    def join(self, one: _T, other: _T) -> None:
        """Join the sets of two items."""
        self._parent[self.find(one)] = self.find(other)
