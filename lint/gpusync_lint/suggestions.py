"""The nearest known word, for messages about an unknown one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is most like another one; empty when none is."""
    import difflib  # only an error needs it

    return next(iter(difflib.get_close_matches(word, list(known), 1)), "")


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of a message about an unknown word: the nearest known one, else `otherwise`, else all known ones."""
    known = list(known)
    near = nearest(word, known)
    if near:
        return f"did you mean {near!r}?"
    return otherwise or f"known are {', '.join(known)}"
