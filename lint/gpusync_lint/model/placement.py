"""Call graphs, and positions of findings in them."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """The position of a finding in its function."""

    function: int
    """The number of the function in the graph; -1 if it is not in the graph."""
    step: int
    """The last step on the path to the finding that the graph knows; -1 for none."""
    beyond: str
    """The kinds of the steps after it, as digits; loops among them repeat only what is inside them."""
    repeated: bool
    """Inside a comprehension."""
    deferred: bool
    """Inside code that may be called later, or never."""


class Row(NamedTuple):
    """A function that calls others, or that contains evidence of a training step."""

    number: int
    steps: list[int]
    signs: list[int]
    calls: list[int]
    """What it calls unconditionally: numbers of functions; -1 and below for functions outside the graph."""
    ways: list[int]
    """What else it calls: alternately the function and the path to the call, as in `FunctionRun.calls`."""
    batches: list[int]


class Graph(NamedTuple):
    """How functions run and call each other, as lists, strings and numbers only."""

    files: list[str]
    names: list[str]
    """For each file, the names of its functions, separated by spaces. Functions are numbered in this order."""
    heads: str
    """For each function, a character with the heat that its framework implies and its flags."""
    rows: list[Row]
    outside: list[list[str]]
    """The keys of functions that are called but are not in the graph."""
