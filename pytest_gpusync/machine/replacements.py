"""Attributes of libraries that are replaced for as long as a region is open."""

from __future__ import annotations

from typing import Any, Final

_INHERITED: Final = object()


class Replacements:
    """Replaces attributes, and restores them in reverse order; an interrupted call can be repeated.

    One that somebody has replaced since is left: restoring the original would undo their work.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._replaced)

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a module or class."""
        self._replaced.append((owner, name, vars(owner).get(name, _INHERITED), value))
        setattr(owner, name, value)

    def restore(self) -> None:
        """Restore everything."""
        while self._replaced:
            owner, name, original, value = self._replaced[-1]
            if vars(owner).get(name) is value:
                if original is _INHERITED:
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)
            self._replaced.pop()
