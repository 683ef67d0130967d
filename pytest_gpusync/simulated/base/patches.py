"""Attributes replaced in torch, and how they are put back."""

from __future__ import annotations

from typing import Any

_MISSING = object()


class Patches:
    """Remembers what it replaces; :meth:`undo` restores it in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set attribute `name` of `owner`, a module, class or object."""
        # The owner's own dictionary, not getattr: an inherited or bound attribute must not become the owner's own.
        self._undo.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put back everything."""
        while self._undo:
            owner, name, value = self._undo.pop()
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
