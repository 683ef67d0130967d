"""Where findings stand in the call graph."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """Where in its function a finding stands."""

    function: int
    """Its number in the graph; -1 for one that is not there."""
    step: int
    """The last step on the way there that the graph knows; -1 for none."""
    beyond: str
    """The kinds of those after it, as digits; loops among them only repeat what is in them."""
    repeated: bool
    """In a comprehension."""
    deferred: bool
    """In what may be called later, or never."""


class Row(NamedTuple):
    """A function that calls others, or holds a sign of a step."""

    number: int
    steps: list[int]
    signs: list[int]
    calls: list[int]
    """What it calls from its entry: numbers of functions, -1 and below for those outside."""
    ways: list[int]
    """What else it calls: the function, and the way as in `FunctionRun.calls`, by turns."""
    batches: list[int]


class Graph(NamedTuple):
    """How functions run and call each other. Made of lists, strings and numbers throughout."""

    files: list[str]
    names: list[str]
    """Of each file the names of its functions, between spaces; the functions are numbered in this order."""
    heads: str
    """Of each function a character: the rank of its convention, and its flags."""
    rows: list[Row]
    outside: list[list[str]]
    """Keys of functions that are called and not in the graph."""
