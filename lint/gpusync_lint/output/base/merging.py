"""Merging the findings of shards.

A finding that two shards report, because both were given its file, is reported once, at the hotter of its two heats:
what a shard does not see cannot make a line cooler. The result does not depend on the order of the shards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusync_lint.model.levels import Heat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class MergeError(ValueError):
    """Files that cannot be merged, in one line."""


def once(found: Iterable[Any], *, key: Callable[[Any], str], heat: Callable[[Any], str]) -> list[Any]:
    """Each finding once, the hottest where shards differ; of equally hot ones always the same."""
    kept: dict[str, Any] = {}
    for finding in sorted(found, key=lambda one: (Heat(heat(one)).rank, repr(one))):
        kept.setdefault(key(finding), finding)
    return list(kept.values())


def distinct(items: Iterable[Any]) -> list[Any]:
    """The items without repeats, in their order; they need not be hashable."""
    kept: list[Any] = []
    for item in items:
        if item not in kept:
            kept.append(item)
    return kept
