"""The tables of transfer functions: by type of syntax node, by kind of callee, and by kind of receiver.

The modules of `transfer` register their functions with the decorators below when they are imported. A transfer function
takes the `Frame` of the run, which holds all state, and the node or the `Call` to interpret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gpusync_lint.domain.values import UNKNOWN, Kind

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable

    from gpusync_lint.domain.values import Value

_F = TypeVar("_F", bound="Callable[..., Any]")


class Call(NamedTuple):
    """A call with the values of its parts."""

    node: ast.Call
    callee: Value
    args: list[Value]
    kwargs: dict[str, Value]
    receiver: Value = UNKNOWN
    """The object whose method is called; unknown for a call of a plain function."""
    method: str = ""
    """The name of the method; empty for a call of a plain function."""

    @property
    def values(self) -> list[Value]:
        """All arguments, positional ones first."""
        return [*self.args, *self.kwargs.values()] if self.kwargs else self.args

    @property
    def first(self) -> Value:
        """The first positional argument; unknown if there is none."""
        return self.args[0] if self.args else UNKNOWN


class _Table(dict[Any, "Callable[..., Any]"]):
    """A table with a default, for syntax of newer versions of Python."""

    default: Callable[..., Any]

    def __missing__(self, key: Any) -> Callable[..., Any]:
        return self.default


EXPRESSIONS = _Table()
"""By type of expression: `(frame, node) -> Value`."""
STATEMENTS = _Table()
"""By type of statement: `(frame, node) -> None`."""
CALLS: dict[Kind, Callable[..., Value | None]] = {}
"""By kind of callee: `(frame, call) -> Value`; None if the result is unknown and the callee may do anything."""
METHODS: dict[Kind, Callable[..., Value | None]] = {}
"""By kind of receiver: `(frame, call) -> Value`; None if the kind does not decide what the method does."""


def evaluates(*types: type[ast.expr]) -> Callable[[_F], _F]:
    """Register the transfer function of types of expressions."""
    return _registers(EXPRESSIONS, types)


def executes(*types: type[ast.stmt]) -> Callable[[_F], _F]:
    """Register the transfer function of types of statements."""
    return _registers(STATEMENTS, types)


def calls(*kinds: Kind) -> Callable[[_F], _F]:
    """Register the transfer function of calls of values of some kinds."""
    return _registers(CALLS, kinds)


def methods_of(*kinds: Kind) -> Callable[[_F], _F]:
    """Register the transfer function of method calls on values of some kinds."""
    return _registers(METHODS, kinds)


def _registers(table: dict[Any, Callable[..., Any]], keys: tuple[Any, ...]) -> Callable[[_F], _F]:
    def register(function: _F) -> _F:
        table.update(dict.fromkeys(keys, function))
        return function

    return register
