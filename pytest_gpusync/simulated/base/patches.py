"""Replaces attributes in torch, and restores them."""

from __future__ import annotations

from typing import Any

_MISSING = object()


class Patches:
    """Remembers the original attributes; :meth:`undo` restores them in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set attribute `name` of `owner`, a module, class or object."""
        # Use the owner's own dictionary instead of getattr: an inherited or bound attribute must not become the owner's
        # own.
        self._undo.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Restore everything."""
        while self._undo:
            owner, name, value = self._undo[-1]
            if value is not _MISSING:
                setattr(owner, name, value)
            elif name in vars(owner):
                delattr(owner, name)
            self._undo.pop()  # afterwards: an interrupted call is repeated
