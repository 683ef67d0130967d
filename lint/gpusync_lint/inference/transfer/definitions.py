"""Imports, definitions of functions and classes, and `global`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain.values import UNKNOWN, Kind, Value
from gpusync_lint.inference.tables import Call, executes
from gpusync_lint.inference.transfer.calling import call_value
from gpusync_lint.project.imports import of_statement

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame
    from gpusync_lint.project.symbols import ClassDef

_FIELDS = ("dataclasses.field", "attr.ib", "attrs.field")


@executes(ast.Import, ast.ImportFrom)
def import_names(frame: Frame, node: ast.Import | ast.ImportFrom) -> None:
    """`import a`, `from a import b`. Those of a module are resolved on use, unless the module rebinds the name."""
    for one in of_statement(node):
        if one.name != "*" and not (frame.fn.is_module and one.bound not in frame.names):
            frame.store.set(one.bound, frame.analysis.scopes.imported(frame.reader, one.target))


@executes(ast.FunctionDef, ast.AsyncFunctionDef)
def define_function(frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """`def name():`."""
    fn = frame.fn.nested.get(node)
    if fn is not None and fn.cls is None:
        frame.store.set(node.name, Value(Kind.FUNCTION, ref=fn))


@executes(ast.ClassDef)
def define_class(frame: Frame, node: ast.ClassDef) -> None:
    """`class Name:`. Of the body only the assignments are executed here."""
    cls = frame.fn.file.classes.get(node.name)
    if cls is None or cls.node is not node:
        return
    value = Value(Kind.CLASS, ref=cls)
    frame.store.set(node.name, value)
    for decorator in node.decorator_list:
        _decorate(frame, decorator, value)
    registers = frame.analysis.project.classes.next_method(cls, "__init_subclass__")
    if registers is not None:
        frame.analysis.call(frame, registers, [value], {})
    for statement in node.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            frame.statement = statement
            _class_attribute(frame, cls, statement)


def _decorate(frame: Frame, decorator: ast.expr, decorated: Value) -> None:
    """Call a decorator of the project, which may register what it decorates: `@register("name")`."""
    called = frame.eval(decorator.func if isinstance(decorator, ast.Call) else decorator)
    if called.kind is Kind.FUNCTION and called.ref.keeps_arguments:
        callee = frame.eval(decorator) if isinstance(decorator, ast.Call) else called
        made = ast.copy_location(ast.Call(decorator, [], []), decorator)
        call_value(frame, Call(made, callee, [decorated], {}))


def _class_attribute(frame: Frame, cls: ClassDef, statement: ast.Assign | ast.AnnAssign) -> None:
    if isinstance(statement, ast.AnnAssign):
        targets: list[ast.expr] = [statement.target]
        declared = frame.declared(statement.annotation)
        default = _made_by_field(frame, statement.value) or statement.value
        value = frame.eval(default) if default is not None else UNKNOWN
        value = declared if declared.kind else value
    else:
        targets, value = statement.targets, frame.eval(statement.value)
    for target in targets:
        if isinstance(target, ast.Name) and value.kind not in (Kind.UNKNOWN, Kind.NONE):
            frame.analysis.classes.set_attribute(cls, target.id, value)


def _made_by_field(frame: Frame, default: ast.expr | None) -> ast.expr | None:
    """What the factory of a field of a dataclass makes: `field(default_factory=list)` is `[]`."""
    if not isinstance(default, ast.Call) or frame.eval(default.func).dotted_name not in _FIELDS:
        return None
    factory = next((given.value for given in default.keywords if given.arg == "default_factory"), None)
    if isinstance(factory, ast.Lambda):
        return factory.body
    if factory is None:
        return next((given.value for given in default.keywords if given.arg == "default"), None)
    return ast.copy_location(ast.Call(factory, [], []), factory)


@executes(ast.Nonlocal)
def declare_nonlocal(frame: Frame, node: ast.Nonlocal) -> None:
    """`nonlocal name`."""
    frame.outer_names.update(node.names)


@executes(ast.Global)
def declare_global(frame: Frame, node: ast.Global) -> None:
    """`global name`."""
    if not frame.fn.is_module:
        frame.outer_names.update(node.names)
    for name in node.names:
        value = frame.analysis.scopes.module_name(frame.reader, name)
        if value is not None:
            frame.store.set(name, value)
