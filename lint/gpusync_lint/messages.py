"""Parts of messages about wrong input: suggestions, the types of TOML values, and text that was not written by us."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is most similar to another one; empty if none is similar."""
    import difflib  # needed only for an error

    return next(iter(difflib.get_close_matches(word, list(known), 1)), "")


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of a message about an unknown word: the nearest known one, else `otherwise`, else all known ones."""
    known = list(known)
    near = nearest(word, known)
    if near:
        return f"did you mean {near!r}?"
    return otherwise or f"known are {', '.join(known)}"


def wrong_type(expected: str, value: object) -> str:
    """The problem with a TOML value that is not `expected`, which is written with an article: `a list of strings`."""
    if isinstance(value, list) and expected.startswith("a list"):
        return f"must be {expected}, and one of its values is not"
    if isinstance(value, bool):
        return f"must be {expected}, not a boolean"
    names = {str: "a string", int: "an integer", float: "a float", dict: "a table", list: "a list"}
    return f"must be {expected}, not {names.get(type(value), f'a {type(value).__name__}')}"


_WORKFLOW_COMMAND = re.compile(r"^(\s*):(?=:)|#(?=#\[)")
"""What GitHub takes for a command in the log of a job: two colons at the start of a line, ``##[`` anywhere."""


def printable(text: str) -> str:
    """Text that was not written by us, such as a path or a name, as one line that no terminal or CI log interprets.

    Control characters, line separators, invisible and bidirectional formatting characters, and lone surrogates become
    escapes such as ``\\x1b``, as does the start of a workflow command.
    """
    if not text.isprintable():
        text = "".join(
            char if char.isprintable() or char == "\t" else char.encode("unicode_escape").decode() for char in text
        )
    return _WORKFLOW_COMMAND.sub(lambda found: found[1] + r"\x3a" if found[0][-1] == ":" else r"\x23", text)
