"""The values of names outside the function that reads them: in enclosing functions and in modules."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import widened
from gpusync_lint.domain.values import Kind, contents
from gpusync_lint.inference.dependencies import EXTENDED
from gpusync_lint.project.symbols import ModuleDef, binding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusync_lint.domain.values import Value
    from gpusync_lint.inference.dependencies import Reader, Revisions
    from gpusync_lint.inference.summaries import FunctionSummary, Interpreter
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import FunctionDef

_CONTAINERS = frozenset({Kind.LIST, Kind.DICT, Kind.TUPLE})
_PLAIN = frozenset({Kind.UNKNOWN, Kind.HOST, Kind.NONE})
"""Kinds of values that make no difference where they are read."""
_NOTHING: Mapping[str, Value] = {}


class Scopes:
    """The scopes of the functions and modules of a project. Each read is recorded as a dependency of its reader."""

    def __init__(self, project: Project, interpreter: Interpreter, revisions: Revisions) -> None:
        self._project = project
        self._interpreter = interpreter
        self._revisions = revisions
        self._extensions: dict[FunctionDef, dict[str, Value]] = {}
        self._definitions: dict[ModuleDef, dict[str, Value | None]] = {}
        """By file, the names that `import`, `def` or `class` binds, as far as they were read; None for no binding."""
        self._variables: dict[ModuleDef, dict[str, tuple[ModuleDef, str] | None]] = {}
        """By file, the variables of other modules that it imports, each with its module and its name there."""

    def publish(self, summary: FunctionSummary, names: dict[str, Value]) -> None:
        """Make the names at the end of a run visible to closures and, for a module, to its functions."""
        fn = summary.reader.fn
        file = fn.file
        if fn.is_module or fn.nested:
            self._record_changes(fn, file.scope if fn is file.body else summary.scope, names)
        summary.scope = names
        if fn is file.body:
            file.scope = names

    def extensions(self, reader: Reader) -> Mapping[str, Value]:
        """By name, what functions inside a function, or of a module, add to the containers that it binds."""
        fn = reader.fn
        if not fn.is_module and not fn.nested:
            return _NOTHING
        reader.dependencies.setdefault((fn, EXTENDED), self._revisions.current)
        return self._extensions.get(fn, _NOTHING)

    def extend(self, reader: Reader, name: str, value: Value, *, declared: bool = False) -> None:
        """Record what a function adds to a container that a scope around it binds.

        Or, with `declared`, what it assigns to a name that it declares as global or nonlocal.
        """
        if all(one.kind in _PLAIN for one in (contents(value) if value.kind in _CONTAINERS else (value,))):
            return
        owner = self._owner(reader.fn, name)
        if owner is None or (not declared and name in reader.fn.assignments):
            return
        known = self._extensions.setdefault(owner, {})
        old = known.get(name)
        new = value if old is None else widened(old, value)
        if new != old:
            known[name] = new
            self._revisions.change((owner, EXTENDED))

    def _owner(self, fn: FunctionDef, name: str) -> FunctionDef | None:
        """The function or module around a function that binds a name; None if there is none."""
        outer = fn.outer
        while outer is not None and not outer.is_module:
            if name in self._interpreter.summary(outer).scope:
                return outer
            outer = outer.outer
        return fn.file.body if name in fn.file.scope else None

    def extend_module(self, summary: FunctionSummary) -> None:
        """Add the names that a part of the body of a module binds. Such a part is run on demand."""
        file = summary.reader.fn.file
        names = summary.scope
        self._record_changes(file.body, {name: file.scope[name] for name in names if name in file.scope}, names)
        file.scope.update(names)

    def _record_changes(self, fn: FunctionDef, old: Mapping[str, Value], new: Mapping[str, Value]) -> None:
        for name, value in new.items():
            before = old.get(name)
            if before is not value and before != value:
                self._revisions.change((fn, name))
        for name in old.keys() - new.keys():
            self._revisions.change((fn, name))

    def outer_name(self, reader: Reader, name: str) -> Value | None:
        """The value of a name that a function does not bind itself; None if no scope around it binds the name."""
        fn, now = reader.fn, self._revisions.current
        outer = fn.outer
        while outer is not None and not outer.is_module:
            reader.dependencies.setdefault((outer, name), now)
            value = self._interpreter.summary(outer).scope.get(name)
            if value is not None:
                return value
            outer = outer.outer
        file = fn.file
        reader.dependencies.setdefault((file.body, name), now)
        value = file.scope.get(name)
        if value is not None:
            return value
        definitions = self._definitions.get(file)
        if definitions is None:
            definitions = self._definitions[file] = {}
        if name in definitions:
            value = definitions[name]
        else:
            value = definitions[name] = self._project.named(file, name)
        if value is not None and not value.kind and name in file.imports:
            return self._imported_variable(reader, file, name) or value
        if value is None and file.outline is not None:
            value = self._read_name(file, name)
        if value is None and file.stars and not hasattr(builtins, name):
            return self._starred_name(reader, name)
        return value

    def imported(self, reader: Reader, dotted: str) -> Value:
        """What an import inside a function binds a name to."""
        file = reader.fn.file
        value = self._project.resolve(file, dotted)
        return value if value.kind else self._variable(reader, self._project.variable(file, dotted)) or value

    def _imported_variable(self, reader: Reader, file: ModuleDef, name: str) -> Value | None:
        """The value of a variable that a file imports from a module of the project; None if it is not known."""
        variables = self._variables.setdefault(file, {})
        if name not in variables:
            variables[name] = self._project.variable(file, file.imports[name])
        return self._variable(reader, variables[name])

    def _variable(self, reader: Reader, variable: tuple[ModuleDef, str] | None) -> Value | None:
        if variable is None:
            return None
        file, name = variable
        reader.dependencies.setdefault((file.body, name), self._revisions.current)
        if not self._project.relevant(file):
            self._interpreter.run_once(file.body)
        self.read_body(file)
        value = self._read_name(file, name)
        # What is None at first is set by a function before it is used.
        return None if value is None or value.kind is Kind.NONE else value

    def _starred_name(self, reader: Reader, name: str) -> Value | None:
        """The value that the body of a module assigns to a name that a star import takes from it."""
        if name.startswith("_"):
            return None
        for file in self._project.starred(reader.fn.file):
            if not self._project.relevant(file):
                self._interpreter.run_once(file.body)
            reader.dependencies.setdefault((file.body, name), self._revisions.current)
            value = file.scope.get(name)
            if value is not None:
                return value
        return None

    def module_name(self, reader: Reader, name: str) -> Value | None:
        """The value that the body of the reader's module assigns to a name; None if it does not."""
        reader.dependencies.setdefault((reader.fn.file.body, name), self._revisions.current)
        return self._read_name(reader.fn.file, name)

    def member(self, reader: Reader, file: ModuleDef, name: str) -> Value:
        """The value of an attribute of a module of the project."""
        reader.dependencies.setdefault((file.body, name), self._revisions.current)
        self.read_body(file)
        if file.outline is not None and self._project.named(file, name) is None:
            self._read_name(file, name)
        return self._project.member(file, name)

    def read_body(self, file: ModuleDef) -> None:
        """Run the body of a file of which only the functions that are called are run."""
        if file.called_only and file.outline is None:
            self._interpreter.run_once(file.body)

    def _read_name(self, file: ModuleDef, name: str) -> Value | None:
        """The value of a name of a module. In a file that is read on demand, runs the statement that binds it."""
        if name not in file.scope and file.outline is not None:
            part = binding(file, name)
            if part is not None:
                self._interpreter.run_once(part)
        return file.scope.get(name)
