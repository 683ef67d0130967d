"""The parameters of functions, with their defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator


def with_defaults(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """The parameters that take one argument, in order, each with its default; None without one."""
    positional = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    yield from zip(positional, [*missing, *arguments.defaults], strict=True)
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
