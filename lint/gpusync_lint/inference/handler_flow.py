"""The flow of a request through the methods of a handler, which a server calls one after the other, and from what it
calls before a handler to the handler.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.domain.lattice import element
from gpusync_lint.domain.values import UNKNOWN, Kind, Value, list_of
from gpusync_lint.project.entry_points import flow_of, injections
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusync_lint.inference.scopes import Scopes
    from gpusync_lint.inference.summaries import Interpreter
    from gpusync_lint.project.class_hierarchy import ClassHierarchy
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import FunctionDef, ModuleDef

_SEQUENCES = frozenset({Kind.LIST, Kind.TUPLE})


def responses(
    files: Iterable[ModuleDef], classes: ClassHierarchy, interpreter: Interpreter
) -> Iterator[tuple[FunctionDef, Value]]:
    """The methods that are given what another method has returned, each with that value."""
    for file in files:
        for cls in file.classes.values():
            value: Value | None = None
            for stage in flow_of(cls, classes):
                method = cls.methods.get(stage.method)
                if method is None:
                    continue
                if value is not None and value.kind is not Kind.UNKNOWN:
                    if stage.takes == "list":
                        value = list_of(value)
                    elif stage.takes == "item" and value.kind in _SEQUENCES:
                        value = element(value)
                    yield method, value
                value = interpreter.summary(method).returns


class Injected(NamedTuple):
    """A function that a server calls before a handler."""

    called: FunctionDef
    handler: FunctionDef | None
    """The handler that gets what it returns; None if none does, or if it is not known."""
    parameter: str
    """The parameter of the handler."""
    value: Value
    """What the handler gets."""


def injected(
    files: Iterable[ModuleDef], project: Project, scopes: Scopes, interpreter: Interpreter
) -> Iterator[Injected]:
    """The functions of a project that a server calls before its handlers: `value=Depends(read)`."""
    for file in files:
        handlers: dict[ast.AST, FunctionDef] = {}
        for one in injections(file):
            handlers = handlers or {fn.node: fn for fn in file.all_functions}
            called = called_of(_value(one.called, file, project, scopes, interpreter), project.classes)
            if called is None:
                continue
            value = UNKNOWN
            if called.name not in ("__init__", "__call__"):
                returned = interpreter.summary(called).returns or UNKNOWN
                value = (element(returned) if _yields(called) else returned) or UNKNOWN
            handler = None if one.handler is None else handlers.get(one.handler)
            yield Injected(called, handler, one.parameter, value)


def called_of(value: Value, classes: ClassHierarchy, of_class: str = "__init__") -> FunctionDef | None:
    """The function of a project that a call of a value runs; `of_class` is the method that counts for a class."""
    if value.kind is Kind.FUNCTION:
        return value.ref  # type: ignore[no-any-return]  # a `FunctionDef`
    if value.kind is Kind.CLASS:
        return classes.method(value.ref, of_class)
    return classes.method(value.ref, "__call__") if value.kind is Kind.INSTANCE else None


def _value(node: ast.expr, file: ModuleDef, project: Project, scopes: Scopes, interpreter: Interpreter) -> Value:
    """The value of a name in a module, or of a method of an object with a name in it."""
    value = project.static(file, node)
    if value.kind is Kind.UNKNOWN and isinstance(node, ast.Name):
        return scopes.module_name(interpreter.summary(file.body).reader, node.id) or UNKNOWN
    if value.kind is Kind.UNKNOWN and isinstance(node, ast.Attribute):
        owner = _value(node.value, file, project, scopes, interpreter)
        if owner.kind in (Kind.INSTANCE, Kind.CLASS):
            method = project.classes.method(owner.ref, node.attr)
            return UNKNOWN if method is None else Value(Kind.FUNCTION, ref=method)
    return value


def _yields(fn: FunctionDef) -> bool:
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in walk_block(fn.node.body))
