"""Calls of `itertools` and `functools.reduce`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import element, join_elements
from gpusync_lint.domain.values import HOST, UNKNOWN, Kind, Value, list_of, tuple_of
from gpusync_lint.inference.transfer.calling import call_value

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame
    from gpusync_lint.inference.tables import Call

_OF_LAST = frozenset({"filterfalse", "takewhile", "dropwhile"})
"""Functions whose last argument is the iterable that they take elements from."""
_OF_FIRST = frozenset({"islice", "compress", "accumulate"})
_OF_ALL = frozenset({"chain", "cycle"})
_ROWS = frozenset({"product", "zip_longest"})
_SELECTIONS = frozenset({"combinations", "combinations_with_replacement", "permutations", "pairwise", "batched"})


def call_itertools(frame: Frame, name: str, call: Call) -> Value:
    """The iterator that a function of `itertools` returns."""
    args = call.args
    if not args or name == "count":
        return list_of(HOST)
    if name in _OF_ALL:
        return list_of(join_elements([element(value) for value in args]))
    if name in _OF_FIRST or name in _OF_LAST:
        return list_of(element(args[0 if name in _OF_FIRST else -1]))
    if name in _ROWS:
        repeat = call.kwargs.get("repeat")
        return list_of(list_of(element(args[0])) if repeat else tuple_of([element(value) for value in args]))
    if name in _SELECTIONS:
        return list_of(list_of(element(args[0])))
    if name == "from_iterable":
        return list_of(element(element(args[0])))
    if name == "repeat":
        return list_of(args[0])
    if name == "groupby":
        return list_of(tuple_of([UNKNOWN, list_of(element(args[0]))]))
    if name == "starmap" and len(args) > 1:
        row = element(args[1])
        given = list(row.items or ()) if row.kind is Kind.TUPLE else []
        return list_of(call_value(frame, call._replace(callee=args[0], args=given, kwargs={})))
    return list_of(list_of(element(args[0]))) if name == "tee" else UNKNOWN


def reduced(frame: Frame, call: Call) -> Value:
    """`functools.reduce(function, iterable, initial)`."""
    function, each = call.args[0], element(call.args[1])
    first = call.args[2] if len(call.args) > 2 else each
    return call_value(frame, call._replace(callee=function, args=[first, each], kwargs={}))
