"""The tables of transfer functions: which function interprets a type of node, calls a kind of value, or its methods.

The modules of `transfer` fill them by decorator when they are imported. A function is given the `Frame` of the run,
which holds all state, and the node, or the `Call`, that it interprets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gpusync_lint.domain.lattice import UNKNOWN, Kind

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable

    from gpusync_lint.domain.lattice import Value

_F = TypeVar("_F", bound="Callable[..., Any]")


class Call(NamedTuple):
    """A call whose parts have been evaluated."""

    node: ast.Call
    callee: Value
    args: list[Value]
    kwargs: dict[str, Value]
    receiver: Value = UNKNOWN
    """What a method is called on; unknown for a plain function."""
    method: str = ""
    """The name of the method that is called; empty for a plain function."""

    @property
    def values(self) -> list[Value]:
        """All arguments, with and without a name."""
        return [*self.args, *self.kwargs.values()] if self.kwargs else self.args


class _Table(dict[Any, "Callable[..., Any]"]):
    """A table with a default for what has no entry: syntax that a newer Python adds."""

    default: Callable[..., Any]

    def __missing__(self, key: Any) -> Callable[..., Any]:
        return self.default


EXPRESSIONS = _Table()
"""By type of expression: `(frame, node) -> Value`."""
STATEMENTS = _Table()
"""By type of statement: `(frame, node) -> None`."""
CALLS: dict[Kind, Callable[..., Value | None]] = {}
"""By kind of what is called: `(frame, call) -> Value`; None where nothing is known of it."""
METHODS: dict[Kind, Callable[..., Value | None]] = {}
"""By kind of the receiver: `(frame, call) -> Value`; None where the kind says nothing about the method."""


def evaluates(*types: type[ast.expr]) -> Callable[[_F], _F]:
    """Register the transfer function of types of expressions."""
    return _registers(EXPRESSIONS, types)


def executes(*types: type[ast.stmt]) -> Callable[[_F], _F]:
    """Register the transfer function of types of statements."""
    return _registers(STATEMENTS, types)


def calls(*kinds: Kind) -> Callable[[_F], _F]:
    """Register what calling a value of some kinds gives back."""
    return _registers(CALLS, kinds)


def methods_of(*kinds: Kind) -> Callable[[_F], _F]:
    """Register what the methods of values of some kinds give back."""
    return _registers(METHODS, kinds)


def _registers(table: dict[Any, Callable[..., Any]], keys: tuple[Any, ...]) -> Callable[[_F], _F]:
    def register(function: _F) -> _F:
        table.update(dict.fromkeys(keys, function))
        return function

    return register
