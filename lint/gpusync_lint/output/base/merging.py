"""Merging the findings of shards.

A finding that is in two shards, because both contain its file, is reported once, with the hotter of the two heats: a
shard that lacks callers of a function sees it run less often than it does. The result does not depend on the order of
the shards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusync_lint.model.levels import Heat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class MergeError(ValueError):
    """Files cannot be merged. The message is one line for the user."""


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
