"""Parts of messages: suggestions and the types of TOML values for wrong input, and whether to color."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


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


def wants_color(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether to color what is written to a stream.

    `NO_COLOR` (https://no-color.org) says no and `FORCE_COLOR` (https://force-color.org) says yes, with any value but
    an empty one; if both are set, `NO_COLOR` counts, as in Python and pytest. Otherwise a terminal is colored, unless
    it is a dumb one.
    """
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and environ.get("TERM") != "dumb"
